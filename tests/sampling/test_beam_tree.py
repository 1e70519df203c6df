"""Drawings of a beam search: by hand, and never wider than the terminal."""

import io

from rich.console import Console
from rich.tree import Tree

from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beam_record import Candidate, Fate, Search, score
from pvml.sampling.beam_tree import draw_steps, draw_texts

LETTERS = "PABE"


def decode(ids: object) -> str:
    return "".join(LETTERS[token] for token in ids)  # type: ignore[attr-defined]


def drawn(tree: Tree, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(tree)
    return out.getvalue()


def grown(parent: Candidate | None, letter: str, logprob: float, fate: Fate) -> Candidate:
    return Candidate(
        token=LETTERS.index(letter),
        logprob_sum=logprob + (parent.logprob_sum if parent else 0.0),
        length=1 + (parent.length if parent else 0),
        fate=fate,
        parent=parent,
    )


def by_hand(**knobs: object) -> Search:
    """P goes on to A and B; A to AA, which parts into AAE and AAB; B is given up after BB."""
    a, b = grown(None, "A", -0.5, "kept"), grown(None, "B", -1.0, "kept")
    e = grown(None, "E", -9.0, "dropped")
    aa, bb, ab = (
        grown(a, "A", -0.25, "kept"),
        grown(b, "B", -1.0, "kept"),
        grown(a, "B", -8.0, "dropped"),
    )
    aae, aab, bba = (
        grown(aa, "E", -0.5, "ended"),
        grown(aa, "B", -1.25, "cut"),
        grown(bb, "A", -4.0, "dropped"),
    )
    return Search(
        prompt=(3, 0),
        args=BeamArgs(num_beams=2, max_new_tokens=3, **knobs),
        steps=((a, b, e), (aa, bb, ab), (aae, aab, bba)),
        complete=(aae, aab),
    )


def test_the_texts_by_hand() -> None:
    """What both results share stands once, with what was given up; then each with its rank."""
    assert drawn(draw_texts(by_hand(), decode)) == (
        "'P': 2 beams, 3 steps, 9 candidates\n"
        "└──   -0.750  'AA'\n"
        "    ├──   -2.000  steps 1 to 2: 'BB'\n"
        "    ├──   -1.250  'E'  #1\n"
        "    └──   -2.000  'B'  #2\n"
    )


def test_one_result_is_one_line() -> None:
    """Asked for one text, the tree has one; the score is there where it is not the sum."""
    search = by_hand(num_return_sequences=1, length_penalty=1.0)

    assert drawn(draw_texts(search, decode)) == (
        "'P': 2 beams, 3 steps, 9 candidates\n"
        "└──   -1.250  'AAE'  #1, score -0.417\n"
        "    ├──   -2.000  steps 1 to 2: 'BB'\n"
        "    └──   -2.000  step 3: 'B'\n"
    )


def test_the_steps_by_hand() -> None:
    """Each candidate has its sum, its last token's own log-probability, its fate and its text."""
    whole = drawn(draw_steps(by_hand(), decode))

    assert whole.startswith(
        "'P': 2 beams, 3 steps, 9 candidates\n"
        "├── step 1: 3 candidates from 1 beam\n"
        "│   ├──   -0.500   -0.500  kept    'A'\n"
        "│   ├──   -1.000   -1.000  kept    'B'\n"
        "│   └──   -9.000   -9.000  dropped 'E'\n"
        "├── step 2: 3 candidates from 2 beams\n"
        "│   ├──   -0.750   -0.250  kept    'AA'\n"
    )
    assert "ended   'AAE'" in whole and "cut     'AAB'" in whole
    assert "step 2" not in drawn(draw_steps(by_hand(), decode, first=1))


def test_no_line_is_too_wide() -> None:
    """Whatever the tokens' texts are, 80 columns hold the lines, and markup is only text."""
    wide = lambda ids: "[red]" + "no[/red] " * 20 * len(ids)  # noqa: E731

    for tree in (draw_texts(by_hand(), wide), draw_steps(by_hand(), wide)):
        lines = drawn(tree).splitlines()
        assert max(map(len, lines)) <= 80
        assert any("[/red]" in line for line in lines)


def test_the_score_by_hand() -> None:
    """The sum over length to the power of the penalty: itself, the mean, and so on."""
    assert [score(-6.0, 2, penalty) for penalty in (0.0, 1.0, 2.0, -1.0)] == [
        -6.0,
        -3.0,
        -1.5,
        -12.0,
    ]


def test_a_candidate_knows_its_line() -> None:
    """From any candidate the way back to the first new token can be read off."""
    search = by_hand()
    best = search.results[0]

    assert best.ids == (1, 1, 3)
    assert [c.logprob for c in best.line] == [-0.5, -0.25, -0.5]
    assert [c.length for c in best.line] == [1, 2, 3]
    assert repr(best).count("Candidate(") == 1
