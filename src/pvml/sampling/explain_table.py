"""Explanations as a table: a row for each new token."""

from collections.abc import Callable, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pvml.sampling.explain import Explanation

_RIVALS = 2
_PARTS = 3
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
    with_parts = any(one.contributions for one in explanations)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("token", "p", "rank", "drawn at", "entropy", "left"):
        table.add_column(heading, justify="left" if heading == "token" else "right", no_wrap=True)
    for heading in ("else", "cut", *(["parts of its logit"] if with_parts else [])):
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
            "\n".join(f"{shown(i)} {p:.3f}" for i, p in rivals),
            "\n".join(f"{step.name} {len(step.cut):,}" for step in steps[1:] if len(step.cut)),
        ]
        if with_parts:
            parts = (one.contributions or ())[:_PARTS]
            cells.append("\n".join(f"{part.name} {part.value:+.2f}" for part in parts))
        table.add_row(*map(Text, cells))
    told = [COLUMNS_EXPLAINED]
    if explanations:
        settings = [f"{step.name}: {step.reason}." for step in explanations[0].steps[1:]]
        told += [" ".join(settings)] if settings else []
        if with_parts:
            told.append(
                "Parts: the three that did most to the logit. The sum of all is exact, with "
                "attention patterns and LayerNorms' scales held at what they were; what a layer "
                "read from those below is in its own part."
            )
        elif explanations[0].no_contributions:
            told.append(f"No parts of the logit: {explanations[0].no_contributions}.")
    return Group(table, *(Text(f"\n{text}") for text in told))
