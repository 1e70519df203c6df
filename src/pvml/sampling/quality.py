"""How good written texts are, as far as counting tells: do they end, and do they go in circles?

Nothing here knows a model or imports torch; `stories.py` writes the texts.
"""

import re
from collections.abc import Hashable, Sequence

from pvml.errors import PvmlError

_WORD = re.compile(r"\w{1,16}|[^\w\s]")
_LONGEST_TAIL = 100
"""Words at the end of a text that `stuck` looks at."""
_SHORTEST_TEXT = 20
"""Words; in fewer, a chorus of three is most of the text."""
_STUCK_RATE = 0.4


def ended(ids: Sequence[int], eos_token_id: int) -> bool:
    """Whether a text ends by itself: the last of its new ids is end-of-text, not cut off."""
    return bool(ids) and ids[-1] == eos_token_id


def words(text: str) -> list[str]:
    """The words of a text and its punctuation marks, each mark as one; spaces and case matter not.

    They are counted instead of tokens where texts of different tokenizers are compared. A run of
    more than 16 letters, digits and underscores counts as several words, so that a text without
    spaces has words, too.
    """
    return _WORD.findall(text.lower())


def repeated_ngram_rate(tokens: Sequence[Hashable], n: int = 4) -> float:
    """The share of a text's n-grams that occurred in it before, from 0 to 1.

    tokens: token ids or words. A text of fewer than n has none, and 0 of them are repeated.
    Longer texts repeat more: compare texts of one length. Source: Welleck et al. 2019,
    arXiv:1908.04319, seq-rep-n: 1 - (different n-grams) / (n-grams).

    Raises: PvmlError for an n below 1.
    """
    if n < 1:
        raise PvmlError(f"n must be a whole number of at least 1, got {n}")
    grams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def stuck(text: str) -> bool:
    """Whether a text is in a repetition when it stops, by its end or by a cut.

    It is if at least 40% of the three-word runs in its last 100 words (see `words`) occurred before
    among these. That finds a passage of up to 58 words that comes again and again, and sentences
    that differ in a word or two; a repetition that the text left again it does not count. A text of
    fewer than 20 words never is. Of 17,556 stories of TinyStories none is, whole or cut anywhere.
    """
    tail = words(text)[-_LONGEST_TAIL:]
    return len(tail) >= _SHORTEST_TEXT and repeated_ngram_rate(tail, 3) >= _STUCK_RATE
