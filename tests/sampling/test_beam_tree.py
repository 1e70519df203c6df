"""Drawings of a beam search: by hand, and never wider than the terminal."""

import ast
import io
import re
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console
from rich.tree import Tree

from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beam_record import Candidate, Fate, Search, score
from pvml.sampling.beam_tree import draw_steps, draw_texts
from pvml.sampling.beams import search as search_for

LETTERS = "PABE"
LINE = re.compile(r" *(-\d+\.\d{3})  (then )?(steps? .*?: )?('.*?'|\".*?\")(  #.*)?")
"""A line of the texts' tree: sum, link, steps, text, rank."""


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


def leaves(tree: Tree, above: str = "") -> Iterator[tuple[str, str, str]]:
    """What each line without others below it says: sum, steps or rank, and the text from the root.

    above: the text that leads to the tree's own lines.
    """
    so_far = above
    for branch in tree.children:
        found = LINE.fullmatch(str(branch.label))
        assert found, branch.label
        logprob_sum, then, steps, text, rank = found.groups()
        so_far = (so_far if then else above) + ast.literal_eval(text)
        if branch.children:
            assert steps is None and rank is None
            yield from leaves(branch, so_far)
        else:
            yield logprob_sum, steps or rank, so_far


def test_the_texts_by_hand() -> None:
    """What both results share stands once; B, an alternative to it, beside it, not below it."""
    assert drawn(draw_texts(by_hand(), decode)) == (
        "'P': 2 beams, 3 steps, 9 candidates\n"
        "├──   -2.000  steps 1 to 2: 'BB'\n"
        "└──   -0.750  'AA'\n"
        "    ├──   -1.250  'E'  #1\n"
        "    └──   -2.000  'B'  #2\n"
    )


def test_one_result_goes_on_where_another_beam_forks_off() -> None:
    """AA has given up B below it and goes on to E; the score is there where it is not the sum."""
    search = by_hand(num_return_sequences=1, length_penalty=1.0)

    assert drawn(draw_texts(search, decode)) == (
        "'P': 2 beams, 3 steps, 9 candidates\n"
        "├──   -2.000  steps 1 to 2: 'BB'\n"
        "├──   -0.750  'AA'\n"
        "│   └──   -2.000  step 3: 'B'\n"
        "└──   -1.250  then 'E'  #1, score -0.417\n"
    )


def test_many_forks_do_not_drift_to_the_right() -> None:
    """AAAAAA gives up a beam before, inside and after what its two results share."""
    a = grown(None, "A", -0.5, "kept")
    aa = grown(a, "A", -0.5, "kept")
    aaa = grown(aa, "A", -0.5, "kept")
    aaaa = grown(aaa, "A", -0.5, "kept")
    b, ab = grown(None, "B", -1.5, "kept"), grown(a, "B", -1.25, "kept")
    # what AB goes on to: ABA is the likelier at first, and ABBA of all the longest texts
    aba, abb = grown(ab, "A", -1.0, "kept"), grown(ab, "B", -1.25, "kept")
    abaa, abba = grown(aba, "A", -3.0, "kept"), grown(abb, "A", -0.25, "kept")
    e, p, x = (grown(aaaa, letter, -1.0, "kept") for letter in "EPB")
    xa = grown(x, "A", -1.0, "kept")
    ea, pa, xaa = (grown(one, "A", -1.0, "cut") for one in (e, p, xa))
    search = Search(
        prompt=(3, 0),
        args=BeamArgs(num_beams=3, max_new_tokens=6, num_return_sequences=2),
        steps=(
            (a, b),
            (aa, ab),
            (aaa, aba, abb),
            (aaaa, abaa, abba),
            (e, p, x),
            (ea, pa, xa),
            (xaa,),
        ),
        complete=(ea, pa, xaa),
    )

    assert drawn(draw_texts(search, decode)) == (
        "'P': 3 beams, 7 steps, 17 candidates\n"
        "├──   -1.500  step 1: 'B'\n"
        "├──   -0.500  'A'\n"
        "│   └──   -3.250  steps 2 to 4: 'BBA'\n"
        "└──   -2.000  then 'AAA'\n"
        "    ├──   -5.000  steps 5 to 7: 'BAA'\n"
        "    ├──   -4.000  'EA'  #1\n"
        "    └──   -4.000  'PA'  #2\n"
    )


@pytest.mark.parametrize("num_return_sequences", [1, 2, 4])
@pytest.mark.parametrize("prompt", [[0], [0, 1], [0, 2], [0, 1, 1], [0, 2, 1]])
def test_from_the_root_a_line_is_read_as_its_beam(
    make_model: Any, prompt: list[int], num_return_sequences: int
) -> None:
    """Results and given-up beams: the pieces down to one make its text; none is left out."""
    args = BeamArgs(num_beams=4, max_new_tokens=9, num_return_sequences=num_return_sequences)
    search = search_for(make_model(d_vocab=4, n_ctx=12), prompt, args, eos_token_id=3)
    carried = [one for step in search.steps for one in step if one.fate != "dropped"]
    sums = {decode(one.ids): f"{one.logprob_sum:.3f}" for one in carried}
    leading = {one for result in search.results for one in result.line}
    begun = [one for one in carried if one not in leading and one.parent in {None, *leading}]

    ranked, given_up = {}, []
    for logprob_sum, said, text in leaves(draw_texts(search, decode)):
        assert sums[text] == logprob_sum
        if "#" in said:
            ranked[int(said.strip(" #"))] = text
        else:
            steps = [int(number) for number in re.findall(r"\d+", said)]
            assert len(text) == steps[-1]
            given_up.append(text[: steps[0]])

    assert ranked == {n: decode(one.ids) for n, one in enumerate(search.results, start=1)}
    assert begun and sorted(given_up) == sorted(decode(one.ids) for one in begun)


def test_a_character_is_not_cut_by_a_fork() -> None:
    """é, è and ê share their first byte: it is drawn with the second, and alone where none came."""
    n, c3, aa = 110, 0xC3, 0xAA
    texts = {}
    grown_by_ids: list[tuple[tuple[int, ...], float, Fate]] = [
        ((n,), -0.5, "kept"),
        ((c3,), -1.25, "kept"),
        ((n, c3), -1.0, "kept"),
        ((n, c3, 0xA9), -1.5, "cut"),
        ((n, c3, 0xA8), -2.0, "cut"),
        ((n, c3, aa), -2.5, "cut"),
    ]
    for ids, logprob_sum, fate in grown_by_ids:
        texts[ids] = Candidate(
            token=ids[-1],
            logprob_sum=logprob_sum,
            length=len(ids),
            fate=fate,
            parent=texts.get(ids[:-1]),
        )
    found = tuple(texts.values())
    search = Search(
        prompt=(0, 112),
        args=BeamArgs(num_beams=3, max_new_tokens=3, num_return_sequences=2),
        steps=(found[:2], found[2:3], found[3:]),
        complete=found[3:],
    )

    assert drawn(draw_texts(search, lambda ids: bytes(ids).decode(errors="replace"))) == (
        "'p': 3 beams, 3 steps, 6 candidates\n"
        "├──   -1.250  step 1: '\ufffd'\n"
        "└──   -1.000  'n'\n"
        "    ├──   -2.500  step 3: 'ê'\n"
        "    ├──   -1.500  'é'  #1\n"
        "    └──   -2.000  'è'  #2\n"
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
