"""One sequence while it is written: its tokens, the text that is certain, and when it ends."""

from collections.abc import Sequence
from typing import Literal

import torch as t

from pvml.config import LARGEST_SEED
from pvml.data.tokenizer import Tokenizer
from pvml.sampling.args import SamplingArgs

End = Literal["end-of-text", "stop string", "length"]
"""Why a text ends: the model said so, a stop string came, or max_new_tokens were reached."""


class Writing:
    """A sequence that takes one token after another until it ends.

    ids: the tokens to go on from. index: which sequence of its call it is; see `generator_of`.
    """

    def __init__(
        self, tokenizer: Tokenizer, ids: Sequence[int], args: SamplingArgs, index: int = 0
    ) -> None:
        self.ids, self.n_given = list(ids), len(ids)
        self.generator = generator_of(args.seed, index)
        self.end: End | None = None
        """None while it goes on."""
        self._eos, self._most = tokenizer.eos_token_id, args.max_new_tokens
        self._characters, self._until = tokenizer.stream(), UntilStop(args.stop)
        self._pieces: list[str] = []

    @property
    def new_ids(self) -> tuple[int, ...]:
        """The tokens taken so far."""
        return tuple(self.ids[self.n_given :])

    def take(self, token: int) -> None:
        """Append a token, and find out whether the text ends with it."""
        self.ids.append(token)
        if token == self._eos:
            self._finish("end-of-text")
            return
        self._pieces.append(self._until.feed(self._characters.step(token)))
        if self._until.stopped:
            self.end = "stop string"
        elif len(self.ids) - self.n_given == self._most:
            self._finish("length")

    def text(self) -> str:
        """What was written since this was last asked, as far as it is certain.

        Whole characters only, and nothing that may turn out to belong to a stop string.
        """
        text = "".join(self._pieces)
        self._pieces.clear()
        return text

    def _finish(self, end: End) -> None:
        self._pieces.append(self._until.feed(self._characters.flush()))
        self._pieces.append(self._until.flush())
        self.end = end


class UntilStop:
    """Gives a text on, piece by piece, up to the stop string that is completed first.

    If one character completes several, the longest of them counts. However the text is cut into
    pieces, what is given is the same.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop, self._held = stop, ""
        self.stopped = False
        """Whether a stop string has come; nothing is given any more."""

    def feed(self, text: str) -> str:
        """What is certain now: what could be the beginning of a stop string is held back."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop)) for stop in self._stop if stop in text]
        if found:
            end, minus_length = min(found)
            self.stopped, self._held = True, ""
            return text[: end + minus_length]
        longest = max(map(len, self._stop), default=1) - 1
        begun = next(
            (
                n
                for n in range(min(longest, len(text)), 0, -1)
                if any(stop.startswith(text[-n:]) for stop in self._stop)
            ),
            0,
        )
        self._held = text[len(text) - begun :]
        return text[: len(text) - begun]

    def flush(self) -> str:
        """What was held back, once nothing more comes."""
        held, self._held = self._held, ""
        return held


def generator_of(seed: int | None, index: int) -> t.Generator:
    """The private generator of sequence `index` of a call: that of seed + index.

    So each sequence is the one that it would be alone with that seed. seed: None draws a new one.
    """
    generator = t.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed((seed + index) % (LARGEST_SEED + 1))
    return generator
