"""What a prediction is measured by when activations are patched: a number for a pass's logits."""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch as t
from jaxtyping import Float
from torch import Tensor

from pvml.errors import PvmlError

Metric = Callable[[Tensor], "Tensor | float"]
"""From the logits of all prompts (n_prompts, posn, d_vocab) to one number."""


@dataclass(frozen=True, kw_only=True)
class LogitDifference:
    """How much higher the right answer's logit is than the wrong one's, over prompts on average.

    In nats. Calling it with logits (n_prompts, posn, d_vocab) gives a number.

    Raises: PvmlError if the two are one token, or no ids.
    """

    answer: int | Iterable[int]
    """The right token's id: one for all prompts, or one for each."""
    wrong: int | Iterable[int]
    """The wrong token's."""
    position: int = -1
    """Where the prediction is made: from 0, which is BOS, or from the end if negative."""

    def __post_init__(self) -> None:
        for name in ("answer", "wrong"):
            object.__setattr__(self, name, _as_ids(name, getattr(self, name)))
        if self.answer == self.wrong:
            raise PvmlError(f"the answer and the wrong answer are one token, {self.answer}")

    def __call__(self, logits: Float[Tensor, "n_prompts posn d_vocab"]) -> float:
        """The mean difference in a pass.

        Raises: PvmlError as `at` does.
        """
        return self.at(logits[:, self.position])

    def at(self, logits: Float[Tensor, "n_prompts d_vocab"]) -> float:
        """The same from the logits at the position alone.

        Raises: PvmlError for an id outside the vocabulary, or not one for each prompt.
        """
        right, wrong = (_logits_of(ids, logits) for ids in (self.answer, self.wrong))
        return float((right - wrong).mean())

    def described(self, name: Callable[[int], str] = "token {}".format) -> str:
        """In words. name: what an id of the vocabulary is called."""
        at = "the last position" if self.position == -1 else f"position {self.position}"
        names = [_named(ids, name) for ids in (self.answer, self.wrong)]
        return f"logit of {names[0]} minus logit of {names[1]} at {at} (nats)"


def _as_ids(name: str, given: object) -> int | tuple[int, ...]:
    """Whole numbers of any library as Python's, so that metrics are equal if they mean the same."""
    try:
        return operator.index(given)  # type: ignore[arg-type]  # what is none raises TypeError
    except TypeError:
        pass
    try:
        return tuple(operator.index(one) for one in given)  # type: ignore[attr-defined]
    except TypeError as error:
        raise PvmlError(
            f"{name} must be a token's id, or one for each prompt, got {given!r:.60}: "
            f"model.to_single_token(text) gives an id"
        ) from error


def _logits_of(
    ids: int | Iterable[int], logits: Float[Tensor, "n_prompts d_vocab"]
) -> Float[Tensor, " n_prompts"]:
    n, d_vocab = logits.shape
    each = [ids] * n if isinstance(ids, int) else list(ids)
    if len(each) != n:
        raise PvmlError(f"{len(each)} answers were given for {n} prompts: give one for each")
    for one in each:
        if not 0 <= one < d_vocab:
            raise PvmlError(
                f"token id {one} is outside the vocabulary: ids run from 0 to {d_vocab - 1}"
            )
    chosen = logits.gather(1, t.tensor(each, device=logits.device)[:, None])[:, 0]
    return chosen.detach().cpu().double()


def described(metric: Metric, name: Callable[[int], str]) -> str:
    """A metric in words: what it is, or at least what it is called."""
    if isinstance(metric, LogitDifference):
        return metric.described(name)
    return str(getattr(metric, "__name__", type(metric).__name__))


def _named(ids: int | Iterable[int], name: Callable[[int], str]) -> str:
    each = [ids] if isinstance(ids, int) else list(ids)
    return name(each[0]) if len(each) == 1 else f"each of {len(each)} tokens"
