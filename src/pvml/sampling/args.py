"""What may change from one sampled text to the next. Nothing here imports torch."""

from dataclasses import dataclass
from typing import Any

import tyro

from pvml.config import LARGEST_SEED
from pvml.errors import PvmlError
from pvml.plain import is_finite, is_whole, plain_tuple


@dataclass(frozen=True, kw_only=True)
class SamplingArgs:
    """How tokens are chosen, and how many.

    NumPy's numbers, lists and a dictionary of biases are kept as Python's numbers and tuples.

    Raises: PvmlError at construction for a value that cannot be used, naming field and value.
    """

    max_new_tokens: int = 50
    """Stop after so many new tokens; end-of-text and stop strings stop earlier."""
    temperature: float = 1.0
    """Logits are divided by it: below 1 bolder, above 1 wilder, 0 always the likeliest token."""
    top_k: int = 0
    """Only the k likeliest tokens can be drawn. 0: no limit."""
    top_p: float = 0.0
    """Only the fewest tokens whose probabilities add up to p can be drawn. 0: no limit."""
    min_p: float = 0.0
    """Only tokens at least this many times as likely as the likeliest can be drawn. 0: no limit."""
    frequency_penalty: float = 0.0
    """Taken off a token's logit for each time that the whole sequence has it already.
    BOS counts, and has the id of end-of-text: the end loses it from the start."""
    repetition_penalty: float = 1.0
    """Divides the logit of a token that the sequence has (or multiplies it, below 0). 1: off.
    BOS counts, and has the id of end-of-text: a large penalty lets few texts end."""
    no_repeat_ngram_size: int = 0
    """No n tokens in a row come twice. 0: no limit.
    BOS counts, and has the id of end-of-text: with 1 no text after BOS ends by itself."""
    logit_bias: tyro.conf.UseAppendAction[tuple[tuple[int, float], ...]] = ()
    """A token's id and what is added to its logit; can be given again."""
    banned_tokens: tyro.conf.UseAppendAction[tuple[int, ...]] = ()
    """The id of a token that is never chosen; can be given again."""
    stop: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A text that ends what is written, and is not part of it; can be given again."""
    seed: int | None = None
    """The same seed gives the same text. Unset: a new text every time."""
    prepend_bos: bool = True
    """Begin with the BOS token, as every training row does; it is not part of the text."""

    def __post_init__(self) -> None:
        for name, (fits, expected) in _EXPECTED.items():
            given = getattr(self, name)
            value = plain_tuple(given)
            if not fits(value):
                raise PvmlError(f"{name} must be {expected}, got {given!r}")
            object.__setattr__(self, name, value)
        # what multiplies logits must be no int beyond what torch takes
        for name in _REAL:
            object.__setattr__(self, name, float(getattr(self, name)))
        limits = {name: getattr(self, name) for name in ("top_k", "top_p", "min_p")}
        given = {name: value for name, value in limits.items() if value}
        if len(given) > 1:
            told = " and ".join(f"{name}={value}" for name, value in given.items())
            raise PvmlError(
                f"set at most one of top_k, top_p and min_p, and the others to 0: got {told}"
            )


def allowed(name: str) -> str:
    """What a value of this field must be, in words: `a probability from 0 to 1 (0 is no limit)`."""
    return _EXPECTED[name][1]


_REAL = ("temperature", "top_p", "min_p", "frequency_penalty", "repetition_penalty")


def _ids(value: object) -> bool:
    return isinstance(value, tuple) and all(is_whole(item, 0, LARGEST_SEED) for item in value)


def _biases(value: object) -> bool:
    if not isinstance(value, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in value
    ):
        return False
    ids = tuple(token for token, _ in value)
    return _ids(ids) and len({*ids}) == len(ids) and all(is_finite(added) for _, added in value)


def _texts(value: object) -> bool:
    if not isinstance(value, tuple) or not all(isinstance(text, str) and text for text in value):
        return False
    try:
        "".join(value).encode()
    except UnicodeEncodeError:
        return False
    return True


_EXPECTED: dict[str, tuple[Any, str]] = {
    "max_new_tokens": (lambda x: is_whole(x, 1), "a whole number of at least 1"),
    "temperature": (lambda x: is_finite(x, 0.0), "a finite number of at least 0 (0 is greedy)"),
    "top_k": (lambda x: is_whole(x, 0), "a whole number of at least 0 (0 is no limit)"),
    "top_p": (lambda x: is_finite(x, 0.0, 1.0), "a probability from 0 to 1 (0 is no limit)"),
    "min_p": (lambda x: is_finite(x, 0.0, 1.0), "a share from 0 to 1 (0 is no limit)"),
    "frequency_penalty": (is_finite, "a finite number (0 is off)"),
    "repetition_penalty": (
        lambda x: is_finite(x, 0.0) and x > 0,
        "a finite number above 0 (1 is off)",
    ),
    "no_repeat_ngram_size": (lambda x: is_whole(x, 0), "a whole number of at least 0 (0 is off)"),
    "logit_bias": (
        _biases,
        "a tuple of pairs, each of a token id, given once, and a finite number",
    ),
    "banned_tokens": (_ids, "a tuple of token ids"),
    "stop": (_texts, "a tuple of texts of whole characters, not empty"),
    "seed": (
        lambda x: x is None or is_whole(x, 0, LARGEST_SEED),
        "a whole number from 0 to 2**63 - 1, or None for a new text every time",
    ),
    "prepend_bos": (lambda x: isinstance(x, bool), "True or False"),
}
"""For each field, whether a value can be used, and what to say where it cannot."""
