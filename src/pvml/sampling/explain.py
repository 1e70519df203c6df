"""Why a token was chosen: where it stood in every distribution on the way from logits to draw.

For attention-only models also what brought its logit about, by `pvml.circuits.paths.routes`. The
table of it all is in `explain_table.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.held import TOLERANCE
from pvml.circuits.paths.routes import decompose
from pvml.errors import CheckFailed
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.strategies import stages


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A distribution on the way, and what the step that led to it did."""

    name: str
    """As `stages` calls it: model, temperature, top-p, ..."""
    reason: str
    """What the step does to which tokens, with its setting."""
    logits: Float[Tensor, " d_vocab"]
    """After the step, in float64; those of the step before are its input."""
    cut: Int[Tensor, " cut"]
    """The ids that were possible before it and are no longer, in order."""
    token: int

    @property
    def probabilities(self) -> Float[Tensor, " d_vocab"]:
        """The distribution after the step; they add up to 1."""
        return self.logits.softmax(-1)

    @property
    def probability(self) -> float:
        """Of the chosen token."""
        return float(self.probabilities[self.token])

    @property
    def rank(self) -> int:
        """Of the chosen token, 1 the likeliest; among equals, lower ids come first."""
        own = self.logits[self.token]
        before = (self.logits > own).sum() + (self.logits[: self.token] == own).sum()
        return 1 + int(before)

    @property
    def possible(self) -> int:
        """How many tokens are left."""
        return int((~self.logits.isneginf()).sum())

    @property
    def entropy(self) -> float:
        """Of the distribution, in nats: 0 where one token is certain."""
        return float(t.special.entr(self.probabilities).sum())

    def likeliest(self, n: int) -> list[tuple[int, float]]:
        """The n likeliest ids (fewer if fewer are possible) and their probabilities."""
        order = self.logits.argsort(descending=True, stable=True)[: min(n, self.possible)]
        return list(zip(order.tolist(), self.probabilities[order].tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What one part of an attention-only model added to the chosen token's logit."""

    name: str
    """token, position, head 0.3 (layer.head, from 0), b_O 0 (layer), ln_final.b or b_U."""
    kind: str
    """direct, head or bias."""
    value: float
    """In nats. All parts add up to the logit that the token was chosen by, but for rounding."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """Why one token came."""

    token: int
    history: tuple[int, ...]
    """The sequence that it follows, BOS included."""
    args: SamplingArgs
    logits: Float[Tensor, " d_vocab"]
    """The model's own."""
    contributions: tuple[Contribution, ...] | None
    """By size, the largest first; None where there are none."""
    no_contributions: str = ""
    """Why there are none."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every distribution on the way, the model's first; the token was drawn from the last.

        They are computed when asked for: kept, they would take the vocabulary's size each.
        """
        found: list[Step] = []
        before = None
        for name, logits in stages(t.tensor(self.history), self.logits, self.args):
            possible = ~logits.isneginf()
            gone = ~possible if before is None else before & ~possible
            found.append(
                Step(
                    name=name,
                    reason=_REASONS[name](self.args),
                    logits=logits,
                    cut=gone.nonzero()[:, 0],
                    token=self.token,
                )
            )
            before = possible
        return tuple(found)


def explain_token(
    token: int,
    history: Sequence[int],
    logits: Float[Tensor, " d_vocab"],
    args: SamplingArgs,
    model: Transformer,
    window: Sequence[int],
) -> Explanation:
    """The explanation of a token chosen after `history`, of which the model saw `window`.

    For an attention-only model it takes a pass of its own, which listeners hear. Where that pass
    does not give the token's logit as it was used, there are no contributions.
    """
    contributions, why_none = _contributions(model, window, token, float(logits[token]))
    return Explanation(
        token=token,
        history=tuple(history),
        args=args,
        logits=logits.detach().cpu().clone(),
        contributions=contributions,
        no_contributions=why_none,
    )


def _contributions(
    model: Transformer, window: Sequence[int], token: int, used: float
) -> tuple[tuple[Contribution, ...] | None, str]:
    if model.cfg.n_layers and not model.cfg.attn_only:
        return None, "the model has MLPs, which are not linear: only attention-only models divide"
    try:
        routes = decompose(model, t.tensor([list(window)], device=model.device))
    except CheckFailed:
        return None, "the parts do not add up to the logits, as when something edits the model"

    parts = tuple(
        Contribution(name=term.name, kind=term.kind, value=value)
        for term, value in routes.values(token)
    )
    total = sum(part.value for part in parts)
    largest = max(abs(used), *(abs(part.value) for part in parts))
    if abs(total - used) > TOLERANCE[model.dtype] * largest:
        return None, (
            f"the parts of a pass over the whole window come to {total:.3f}, and the logit that "
            f"was used is {used:.3f}, as with int8 weights or an edit that counts positions"
        )
    return parts, ""


_REASONS: dict[str, Callable[[SamplingArgs], str]] = {
    "model": lambda args: "as the model gives them",
    "logit bias": lambda args: (
        f"a number added to the logits of given ids, {len(args.logit_bias)} in all"
    ),
    "bans": lambda args: "banned by id",
    "repetition penalty": lambda args: (
        f"tokens that occur already, logits divided by {args.repetition_penalty} (times, below 0)"
    ),
    "frequency penalty": lambda args: (
        f"logits less {args.frequency_penalty} for each time that a token occurs already"
    ),
    "n-gram ban": lambda args: (
        f"would repeat {args.no_repeat_ngram_size} tokens in a row"
        if args.no_repeat_ngram_size > 1
        else "occurs already"
    ),
    "greedy": lambda args: "not the likeliest (of equals, the lowest id)",
    "temperature": lambda args: f"logits divided by {args.temperature}",
    "top-k": lambda args: f"not among the {args.top_k} likeliest",
    "top-p": lambda args: f"likelier tokens reach {args.top_p} without it",
    "min-p": lambda args: f"less than {args.min_p} times as likely as the likeliest",
}
