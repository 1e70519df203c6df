"""What a claim says: one sentence, made of its score and of nothing else."""

from collections.abc import Sequence

from pvml.circuits.claims.claim import ClaimKind, Figure
from pvml.circuits.claims.inputs import Made
from pvml.circuits.held import Head

_SIDES = {"Q": "queries", "K": "keys", "V": "values"}


def sentence(
    kind: ClaimKind, heads: Sequence[Head], edge: str | None, score: Figure, made: Made
) -> str:
    """The sentence of a score. heads, edge: as a claim of this kind has them; made: its rows."""
    if kind == "composition":
        (low, writer), (high, reader) = heads
        turned = score.nulls[0].mean if score.nulls else None
        return (
            f"The {_SIDES[edge or 'K']} of head {high}.{reader} read what head {low}.{writer} "
            f"writes more than chance would: their {edge}-composition is "
            f"{_told(score.value, '.3f')}, and {_told(turned, '.3f')} if the two are turned "
            f"against each other."
        )
    ((layer, head),) = heads
    name = f"Head {layer}.{head}"
    if kind == "copying":
        value = _told(score.value, ".2f")
        return f"{name} copies: the copying score of its OV circuit is {value}."
    share = _told(score.value, ".0%")
    if kind == "induction":
        return (
            f"{name} continues repetitions: in random tokens that repeat, {share} of its "
            f"attention goes to the token that followed the last occurrence of the current one."
        )
    where = "random tokens" if made == "random" else "the text"
    return f"{name} reads the token before: in {where}, {share} of its attention goes there."


def _told(value: float | None, form: str) -> str:
    return "undefined" if value is None else format(value, form)
