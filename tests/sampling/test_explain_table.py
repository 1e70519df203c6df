"""The table of explanations, with distributions by hand: tokens a, b, c of 0.5, 0.3 and 0.2."""

import math
from collections.abc import Sequence
from io import StringIO

import pytest
import torch as t
from rich.cells import cell_len
from rich.console import Console

from pvml.sampling.args import SamplingArgs
from pvml.sampling.explain import Contribution, Explanation
from pvml.sampling.explain_table import explanation_table

A, B, C = range(3)
TO_A_TENTH = ((A, -math.log(5)),)
"""A bias that makes 0.5, 0.3, 0.2 to 0.1, 0.3, 0.2: that is 1/6, 1/2 and 1/3."""


def explained(
    token: int,
    args: SamplingArgs,
    history: tuple[int, ...] = (B, C),
    parts: Sequence[float] = (),
    why_none: str = "",
) -> Explanation:
    return Explanation(
        token=token,
        history=history,
        args=args,
        logits=t.tensor([0.5, 0.3, 0.2], dtype=t.float64).log(),
        contributions=tuple(
            Contribution(name=f"head 0.{i}", kind="head", value=value)
            for i, value in enumerate(parts)
        )
        or None,
        no_contributions=why_none,
    )


def printed(explanations: Sequence[Explanation], width: int = 200, letters: str = "abc") -> str:
    console = Console(file=StringIO(), width=width)
    console.print(explanation_table(explanations, lambda ids: "".join(letters[i] for i in ids)))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def rows_of(text: str) -> list[str]:
    """The lines of the table itself, blanks made one."""
    return [" ".join(line.split()) for line in text.partition("\n\n")[0].splitlines()]


def test_greedy_shows_what_it_was_chosen_over() -> None:
    """The rivals, the probability and the entropy are those before greedy, not 1 and nothing."""
    text = printed([explained(A, SamplingArgs(temperature=0.0))])

    entropy = -sum(p * math.log(p) for p in (0.5, 0.3, 0.2))
    assert rows_of(text) == [
        "token p rank chosen at entropy left else cut",
        f"'a' 0.500 1 0.500 {entropy:.2f} → {entropy:.2f} 1 'b' 0.300 greedy 2",
        "'c' 0.200",
    ]
    assert "Chosen at" in text and "Drawn at" not in text


def test_greedy_after_a_bias() -> None:
    """Before greedy is behind the bias; the model's own first choice and what became of it."""
    text = printed([explained(B, SamplingArgs(temperature=0.0, logit_bias=TO_A_TENTH))])

    assert rows_of(text)[1:] == [
        "'b' 0.300 2 0.500 1.03 → 1.01 1 'c' 0.333 greedy 2",
        "'a' 0.167",
        "model's first: 'a' 0.500 → 0.167, put behind by logit bias",
    ]
    assert "Model's first: what the model itself" in " ".join(text.split())


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (SamplingArgs(banned_tokens=(A,)), "'a' 0.500 → 0.000, cut by bans"),
        (
            SamplingArgs(logit_bias=TO_A_TENTH, top_k=2),
            "'a' 0.500 → 0.000, put behind by logit bias, cut by top-k",
        ),
        # 0.1, 0.3 / 4, 0.2 / 4, as b and c occur already: a is first again
        (SamplingArgs(logit_bias=TO_A_TENTH, frequency_penalty=math.log(4)), None),
        # -2.30, -1.20, -1.61; b and c times 3: -3.61, -4.83; plus 3: -0.61, -1.83
        (
            SamplingArgs(logit_bias=TO_A_TENTH, repetition_penalty=3.0, frequency_penalty=-3.0),
            "'a' 0.500 → 0.125, put behind by frequency penalty",
        ),
        (SamplingArgs(temperature=0.5, top_p=0.9), None),
    ],
)
def test_what_became_of_the_models_first(args: SamplingArgs, told: str | None) -> None:
    """The step that put it behind, the one that cut it; nothing where it is still the likeliest."""
    text = printed([explained(B, args)])

    notes = [line for line in rows_of(text) if line.startswith("model's first")]
    assert notes == ([] if told is None else [f"model's first: {told}"])
    assert ("Model's first" in text) == (told is not None)


PARTS = (3.95, 2.88, -2.84, 0.01)


def test_what_is_too_wide_comes_below_the_row() -> None:
    """At 80 columns no cell is folded: parts, then what else does not fit, go below, indented."""
    letters = ["x" * 12, "y" * 9, "z" * 5]
    args = SamplingArgs(top_k=2, banned_tokens=(C,))
    wide, medium, narrow = (
        printed([explained(B, args, parts=PARTS)] * 2, width, letters) for width in (110, 80, 60)
    )

    def line(*cells: str) -> str:
        return " ".join(cells)

    parts = [f"head 0.{i} {value:+.2f}" for i, value in enumerate(PARTS[:3])]
    numbers = "'yyyyyyyyy' 0.300 2 0.375 1.03 → 0.66 2"
    heading = "token p rank drawn at entropy left"
    rival = "'xxxxxxxxxxxx' 0.625"
    assert rows_of(wide) == [
        f"{heading} else cut parts of its logit",
        *(line(numbers, rival, "bans 1", parts[0]), *parts[1:]) * 2,
    ]
    below = f"parts of its logit: {', '.join(parts)}"
    assert rows_of(medium) == [
        f"{heading} else",
        *(line(numbers, rival), "cut: bans 1", below) * 2,
    ]
    assert rows_of(narrow)[:4] == [heading, numbers, f"else: {rival}", "cut: bans 1"]
    for text, width in ((medium, 80), (narrow, 60)):
        assert max(map(len, text.splitlines())) <= width
        assert "\n    cut: bans 1" in text


def test_columns_stand_below_their_headings_whatever_is_in_them() -> None:
    """A character two columns wide takes two; what is to the right begins where it does above."""
    text = printed([explained(A, SamplingArgs()), explained(B, SamplingArgs())], letters="猫b犬")

    heading, *rows = text.partition("\n\n")[0].splitlines()
    rivals = ["'b'", "'犬'", "'猫'", "'犬'"]
    before = [row[: row.index(rival)] for row, rival in zip(rows, rivals, strict=True)]
    assert [cell_len(text) for text in before] == [heading.index("else")] * 4


def test_why_some_have_no_parts() -> None:
    """Rows without parts among rows with them are counted, and the first one's reason is told."""
    args = SamplingArgs()
    some = [
        explained(A, args, parts=PARTS),
        explained(B, args, why_none="3 is not 4"),
        explained(C, args, why_none="5 is not 6"),
    ]

    def told(explanations: Sequence[Explanation]) -> str:
        return " ".join(printed(explanations).split())

    text = told(some)
    assert "Parts: the three" in text
    assert "No parts of the logit in 2 of 3 rows; in the first of them: 3 is not 4." in text
    assert told(some[1:2] * 2).endswith("No parts of the logit: 3 is not 4.")
    assert "No parts" not in told(some[:1])
