"""Explanations as a table: a row for each new token."""

from collections.abc import Callable, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pvml.sampling.explain import Explanation

_RIVALS = 2
_TERMS = 4
COLUMNS_EXPLAINED = (
    "p and rank: the token in the model's own distribution. Drawn at: its probability in the one "
    "that it was drawn from. Entropy: of the two distributions, in nats. Left: tokens that could "
    "be drawn. Else: the likeliest others, at the draw. Cut: how many tokens each step ruled out."
)


def explanation_table(
    explanations: Sequence[Explanation], decode: Callable[[Sequence[int]], str]
) -> Group:
    """The table, what its columns say, and which step cuts what.

    decode: from ids to their text.
    """
    with_terms = any(one.contributions for one in explanations)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("token", "p", "rank", "drawn at", "entropy", "left"):
        table.add_column(heading, justify="left" if heading == "token" else "right", no_wrap=True)
    for heading in ("else", "cut", *(["largest parts of its logit"] if with_terms else [])):
        table.add_column(heading, overflow="fold")

    def shown(*ids: int) -> str:
        return repr(decode(ids))

    for one in explanations:
        steps = one.steps
        model, last = steps[0], steps[-1]
        rivals = [(i, p) for i, p in last.likeliest(_RIVALS + 1) if i != one.token][:_RIVALS]
        cells = [
            shown(one.token),
            f"{model.probability:.3f}",
            f"{model.rank:,}",
            f"{last.probability:.3f}",
            f"{model.entropy:.2f} → {last.entropy:.2f}",
            f"{last.possible:,}",
            "  ".join(f"{shown(i)} {p:.3f}" for i, p in rivals),
            "  ".join(f"{step.name} {len(step.cut):,}" for step in steps[1:] if len(step.cut)),
        ]
        if with_terms:
            parts = (one.contributions or ())[:_TERMS]
            cells.append("  ".join(f"{part.name} {part.value:+.2f}" for part in parts))
        table.add_row(*map(Text, cells))
    told = [COLUMNS_EXPLAINED]
    if explanations:
        settings = [f"{step.name}: {step.reason}." for step in explanations[0].steps[1:]]
        told += [" ".join(settings)] if settings else []
        if with_terms:
            told.append(
                "Parts: what the model's parts add to the logit, exactly, with attention patterns "
                "and LayerNorms' scales held at what they were; the four largest."
            )
        elif explanations[0].no_contributions:
            told.append(f"No parts of the logit: {explanations[0].no_contributions}.")
    return Group(table, *(Text(f"\n{text}") for text in told))
