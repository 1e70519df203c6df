"""The price of factoring: crossed trigrams are forced, and told where the text has none."""

from dataclasses import replace
from typing import Any

import pytest
import torch as t

from pvml.circuits.skips.bugs import crossings, find_skip_bugs
from pvml.circuits.skips.trigrams import SkipTrigram, find_skip_trigrams
from pvml.errors import PvmlError

KEEP, IN, AT, MIND, BAY, ELSE = 1, 2, 3, 4, 5, 6
WORDS = ("", " keep", " in", " at", " mind", " bay", " else")


def trigram(destination: int, output: int, attention: float, logit: float) -> SkipTrigram:
    return SkipTrigram(
        head=(0, 0),
        source=KEEP,
        destination=destination,
        output=output,
        attention=attention,
        logit=logit,
        texts=(WORDS[KEEP], WORDS[destination], WORDS[output]),
    )


MEANT = [trigram(IN, MIND, 0.5, 4.0), trigram(AT, BAY, 0.2, 3.0)]


def test_the_papers_example() -> None:
    """keep ... in -> mind and keep ... at -> bay force keep ... in -> bay, keep ... at -> mind."""
    (first, *parents), (second, *others) = crossings(MEANT)

    assert first.name == "' keep' ... ' in' -> ' bay'" and first.effect == 1.5
    assert second.name == "' keep' ... ' at' -> ' mind'" and second.effect == pytest.approx(0.8)
    assert parents == MEANT and others == MEANT[::-1]
    assert first.effect * second.effect == pytest.approx(MEANT[0].effect * MEANT[1].effect)


def test_only_pairs_of_one_head_and_source_force_anything() -> None:
    """Another source's or head's attention is its own; two with one destination cross to
    themselves."""
    assert crossings([MEANT[0], replace(MEANT[1], head=(0, 1))]) == []
    assert crossings([MEANT[0], replace(MEANT[1], source=IN)]) == []
    assert crossings([MEANT[0], trigram(IN, BAY, 0.5, 3.0)]) == []
    assert crossings([]) == []
    with pytest.raises(PvmlError, match="only what is promoted"):
        crossings([MEANT[0], trigram(AT, BAY, 0.2, -3.0)])


def test_what_the_text_supports_is_no_bug() -> None:
    """in ... bay never follows: a bug, and the price of two sure ones; at ... mind does: none."""
    rows = [[0, KEEP, IN, MIND], [0, ELSE, IN, ELSE]] * 25
    rows += [[0, KEEP, AT, BAY], [0, KEEP, AT, MIND], [0, ELSE, AT, ELSE]] * 25
    (bug,) = find_skip_bugs(MEANT, t.tensor(rows))

    assert bug.trigram.name == "' keep' ... ' in' -> ' bay'" and bug.sure
    assert bug.evidence.n_source_destination == 25 and bug.evidence.n_source_output == 0
    told = str(bug)
    assert told.startswith("0.0: ' keep' ... ' in' -> ' bay' +1.50 nats (attention 0.500 x logit ")
    assert "forced by ' keep' ... ' in' -> ' mind' and ' keep' ... ' at' -> ' bay'. Text: " in told
    both = find_skip_bugs(MEANT, t.tensor([row for row in rows if row[2:] != [AT, MIND]]))
    assert [each.trigram.destination for each in both] == [IN, AT]
    assert (
        find_skip_bugs(MEANT, t.tensor(rows), top=1) == [bug]
        and find_skip_bugs([], t.tensor(rows)) == []
    )
    with pytest.raises(PvmlError, match="top must be at least 1"):
        find_skip_bugs(MEANT, t.tensor(rows), top=0)


def test_pairs_without_support_are_no_price_of_anything() -> None:
    """Where the text has in ... mind no more often than elsewhere, nothing is crossed with it."""
    rows = [[0, KEEP, IN, MIND], [0, ELSE, IN, MIND], [0, KEEP, AT, BAY], [0, ELSE, AT, ELSE]]
    assert find_skip_bugs(MEANT, t.tensor(rows)) == []


def test_a_crossed_trigram_may_have_been_mined_too() -> None:
    """The strongest of all is: in ... bay stands above both that force it, and is no less forced;
    its own pair is never it itself."""
    mined = [trigram(IN, BAY, 0.5, 5.0), *MEANT[:1], trigram(AT, BAY, 0.2, 5.0)]
    crossed = crossings(mined)

    assert crossed[0] == tuple(mined)
    assert [each.name for each, _, _ in crossed] == [
        "' keep' ... ' in' -> ' bay'",
        "' keep' ... ' at' -> ' mind'",
    ]
    rows = t.tensor([[0, KEEP, IN, MIND], [0, 9, IN, 9], [0, KEEP, AT, BAY], [0, 9, AT, 9]])
    assert [bug.trigram for bug in find_skip_bugs(mined, rows)] == [x for x, _, _ in crossed]


def test_a_crossed_effect_is_the_heads_own(make_model: Any) -> None:
    """What is told of a crossed trigram is what the miner finds when asked for that one."""
    model = make_model(positions="none")
    mined = find_skip_trigrams(model, [(0, 1)], top=40).found[::3]
    crossed = crossings(mined)

    assert len(crossed) > 1
    for each, one, other in crossed:
        (alone,) = find_skip_trigrams(
            model,
            [(0, 1)],
            sources=[each.source],
            destinations=[each.destination],
            outputs=[each.output],
        ).found
        assert each.effect == pytest.approx(alone.effect, rel=1e-9)
        assert one in mined and other in mined
        assert one.destination == each.destination and other.output == each.output
    effects = [x.effect for x, _, _ in crossed]
    assert effects == sorted(effects, reverse=True)
