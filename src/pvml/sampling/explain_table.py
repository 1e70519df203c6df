"""Explanations as a table: a row for each new token."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from pvml.sampling.explain import Explanation, Step
from pvml.sampling.strategies import greedy_search

_RIVALS = 2
_PARTS = 3
_GAP = "  "
_INDENT = 4
_NEVER_BELOW = 4
"""Columns, from the left, that stay in the row however narrow it is."""
_TO_THE_LEFT = ("token", "else", "cut", "parts of its logit")


def explanation_table(
    explanations: Sequence[Explanation], decode: Callable[[Sequence[int]], str]
) -> Group:
    """The table, what its columns say, and which step cuts what.

    Of greedy search the rivals are those before it. Columns that do not fit come below their row.
    decode: from ids to their text.
    """
    greedy = any(_greedy(one) for one in explanations)
    with_parts = any(one.contributions for one in explanations)
    headings = ["token", "p", "rank", "chosen at" if greedy else "drawn at", "entropy", "left"]
    headings += ["else", "cut", *(["parts of its logit"] if with_parts else [])]
    rows = [_row(one, lambda token: repr(decode([token]))) for one in explanations]
    told = [_columns_explained(greedy, any(row.note for row in rows))]
    if explanations:
        settings = [f"{step.name}: {step.reason}." for step in explanations[0].steps[1:]]
        told += [" ".join(settings)] if settings else []
    if with_parts:
        told.append(
            "Parts: the three that did most to the logit. The sum of all is exact, with "
            "attention patterns and LayerNorms' scales held at what they were; what a layer "
            "read from those below is in its own part."
        )
    told += _no_parts([one.no_contributions for one in explanations])
    return Group(_Rows(headings, rows), *(Text(f"\n{text}") for text in told))


@dataclass(frozen=True)
class _Row:
    cells: Sequence[Sequence[str]]
    """The lines of each."""
    note: str
    """For below; empty where there is nothing to note."""


@dataclass(frozen=True)
class _Rows:
    """Headings and rows, with as many columns as fit; the others' cells come below each row."""

    headings: Sequence[str]
    rows: Sequence[_Row]

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        widths = [
            max(map(cell_len, [heading, *(line for row in self.rows for line in row.cells[i])]))
            for i, heading in enumerate(self.headings)
        ]
        n = len(widths)
        while n > _NEVER_BELOW and sum(widths[:n]) + len(_GAP) * (n - 1) > options.max_width:
            n -= 1

        def line(cells: Sequence[str]) -> str:
            padded = []
            for cell, width, heading in zip(cells, widths, self.headings, strict=False):
                blank = " " * (width - cell_len(cell))
                padded.append(cell + blank if heading in _TO_THE_LEFT else blank + cell)
            return _GAP.join(padded).rstrip()

        yield Text(line(self.headings[:n]), style="table.header")
        for row in self.rows:
            for cells in zip_longest(*row.cells[:n], fillvalue=""):
                yield Text(line(cells))
            rest = zip(self.headings[n:], row.cells[n:], strict=False)
            below = [f"{heading}: {', '.join(lines)}" for heading, lines in rest if lines]
            for told in [*below, *([row.note] if row.note else [])]:
                yield Padding(Text(told), (0, 0, 0, _INDENT), expand=False)


def _row(one: Explanation, shown: Callable[[int], str]) -> _Row:
    steps = one.steps
    weighed = steps[:-1] if _greedy(one) else steps
    model, last = steps[0], weighed[-1]
    rivals = [(i, p) for i, p in last.likeliest(_RIVALS + 1) if i != one.token][:_RIVALS]
    parts = (one.contributions or ())[:_PARTS]
    return _Row(
        cells=(
            [shown(one.token)],
            [f"{model.probability:.3f}"],
            [f"{model.rank:,}"],
            [f"{last.probability:.3f}"],
            [f"{model.entropy:.2f} → {last.entropy:.2f}"],
            [f"{steps[-1].possible:,}"],
            [f"{shown(i)} {p:.3f}" for i, p in rivals],
            [f"{step.name} {len(step.cut):,}" for step in steps[1:] if len(step.cut)],
            [f"{part.name} {part.value:+.2f}" for part in parts],
        ),
        note=_model_s_first(weighed, shown),
    )


def _model_s_first(steps: Sequence[Step], shown: Callable[[int], str]) -> str:
    """Which steps put the model's likeliest token behind another, or cut it; empty if none did."""
    firsts = [int(greedy_search(step.logits)) for step in steps]
    first = firsts[0]
    if firsts[-1] == first:
        return ""
    behind = next(k for k in reversed(range(len(steps))) if firsts[k] == first) + 1
    cut = next((k for k, step in enumerate(steps) if first in step.cut), None)
    did = [f"put behind by {steps[behind].name}"] if behind != cut else []
    did += [f"cut by {steps[cut].name}"] if cut is not None else []
    p, at_last = (float(step.probabilities[first]) for step in (steps[0], steps[-1]))
    return f"model's first: {shown(first)} {p:.3f} → {at_last:.3f}, {', '.join(did)}"


def _no_parts(reasons: Sequence[str]) -> list[str]:
    """Why rows have no parts: "" is the reason of one that has. Where they differ, the first."""
    given = [reason for reason in reasons if reason]
    if not given:
        return []
    rows = f" in {len(given)} of {len(reasons)} rows; in the first of them" * (len({*reasons}) > 1)
    return [f"No parts of the logit{rows}: {given[0]}."]


def _greedy(one: Explanation) -> bool:
    return one.args.temperature == 0


def _columns_explained(greedy: bool, noted: bool) -> str:
    told = "p and rank: the token in the model's own distribution. "
    if greedy:
        told += (
            "Chosen at: its probability in the one whose likeliest token greedy takes. Entropy: of "
            "the two distributions, in nats. Left: tokens that greedy leaves. Else: the likeliest "
            "others, before greedy."
        )
    else:
        told += (
            "Drawn at: its probability in the one that it was drawn from. Entropy: of the two "
            "distributions, in nats. Left: tokens that could be drawn. Else: the likeliest others, "
            "at the draw."
        )
    told += " Cut: how many tokens each step ruled out."
    if noted:
        told += (
            " Model's first: what the model itself finds likeliest, where a step put another "
            "first; its probability in the two distributions."
        )
    return told
