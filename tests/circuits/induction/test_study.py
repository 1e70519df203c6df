"""The induction circuit: found, joined, sufficient and needed where it was built, else nothing."""

import math
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.induction.study import InductionStudy, study_induction
from pvml.circuits.induction.workbench import Workbench, sets_of
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer

QUICK = {"n_sequences": 24, "n_random": 100}


@pytest.fixture(scope="module")
def study(make_circuit: Any, circuit_text: Tensor) -> InductionStudy:
    """Of the circuit written as weights."""
    return study_induction(make_circuit(), circuit_text, search=0.9, **QUICK)


def test_the_circuit_is_found_as_it_was_written(study: InductionStudy) -> None:
    """Its two heads and their K-composition, each beyond its null, and nothing else."""
    assert [(s.layer, s.head) for s in study.previous] == [(0, 1)]
    assert [(s.layer, s.head) for s in study.induction] == [(1, 2)]
    assert study.nearest == ()
    assert [(s.kind, s.writer, s.reader) for s in study.compositions] == [("K", (0, 1), (1, 2))]
    assert study.compositions[0].beyond


def test_its_head_is_needed(study: InductionStudy) -> None:
    """Without the induction head at least half of the advantage goes, without any other nothing."""
    induction, previous = study.lost

    assert study.repeats.beyond
    assert induction.what == "without 1.2" and induction.value > 0.9
    assert previous.what == "without 0.1" and previous.value > 0.5
    for worth in study.lost:
        assert worth.ahead
        assert worth.n_null == 4
        assert worth.null_mean == pytest.approx(0, abs=1e-9)


def test_its_link_is_needed(study: InductionStudy) -> None:
    """If the upper head's keys alone no longer read the lower head, as much goes as without it."""
    (link,) = study.cut

    assert link.value == pytest.approx(study.lost[1].value, abs=1e-6)
    assert link.ahead and link.n_null == 2


def test_the_two_heads_are_enough(study: InductionStudy) -> None:
    """All others ablated, all of the advantage stays; and the search ends with these two."""
    assert study.circuit == ((0, 1), (1, 2))
    for worth in (study.kept, study.searched):
        assert worth is not None
        assert worth.heads == study.circuit
        assert worth.value == pytest.approx(1)
        assert worth.ahead and worth.null_most is not None and worth.null_most < 0.1


def test_the_study_reads_well(study: InductionStudy) -> None:
    """A line for each thing that was found, its null in it."""
    lines = str(study).splitlines()

    assert lines[0].startswith("Random tokens that repeat: 4.")
    assert lines[1].startswith("Natural text: in-context-learning score ")
    assert lines[2].startswith("Previous-token heads (layer.head): 0.1 (score 1.00; shuffled ")
    assert lines[3].startswith("Induction heads (layer.head): 1.2 (score 1.00; shuffled ")
    assert lines[4].startswith("K-composition of 1.2 with 0.1 (score ")
    assert lines[5] == "Of the advantage goes"
    assert lines[6].startswith("  without 1.2: 9") and "(other heads, 4 tried: 0% ± 0%" in lines[6]
    assert lines[8].startswith("  keys of 1.2 without 0.1: ")
    assert lines[9] == "Of the advantage stays"
    assert lines[10].startswith("  with 0.1, 1.2 alone: 100% ")


def test_text_that_repeats_is_learnt_in_context(make_circuit: Any) -> None:
    """On rows that repeat, the circuit alone keeps all that a longer context is worth."""
    keys = t.rand(41, 28, generator=t.Generator().manual_seed(3))
    half = 1 + keys.argsort(1)[:, :15]
    rows = t.cat([t.zeros(41, 1, dtype=t.long), half, half], 1)
    found = study_induction(make_circuit(), rows, **QUICK)

    assert found.context is not None and found.context.beyond
    assert found.context_kept == pytest.approx(1)
    assert "100% stay with the circuit alone" in str(found)


def test_a_circuit_that_is_half_of_the_work_keeps_its_share(make_circuit: Any) -> None:
    """Two alike induction heads, each half as strong: alone, one keeps what the logits say.

    Rows are turns of one another, so each of 28 tokens stands as often at each position. A head
    that finds nothing spreads what it writes: a third on each of the cut rows' three tokens.
    """
    model = make_circuit()
    attn = model.blocks[1].attn
    with t.no_grad():
        for weight in (attn.W_Q, attn.W_K, attn.W_V, attn.W_O):
            weight[0] = weight[2]
        attn.W_O *= 0.5
    half = 1 + (t.arange(28)[:, None] + t.arange(15)) % 28
    rows = t.cat([t.zeros(28, 1, dtype=t.long), half, half], 1)
    found = study_induction(model, rows, **QUICK)

    # logits: 10 of the right token; cut, 10/3 of each of three that are wrong
    whole = math.log(3 * math.exp(10 / 3) + 26) - (math.log(math.exp(10) + 28) - 10)
    # the other head's mean: late, 5/28 of each token but BOS; cut, 10/84, and 5/3 of BOS
    late = math.log(math.exp(5 + 5 / 28) + 27 * math.exp(5 / 28) + 1) - (5 + 5 / 28)
    wrong = [10 / 3] + 2 * [5 / 3 + 10 / 84] + 26 * [10 / 84]
    alone = math.log(sum(map(math.exp, wrong))) - 10 / 84 - late
    assert found.context is not None and found.context.gain == pytest.approx(whole)
    assert len(found.circuit) == 2 and len(found.induction) == 2
    assert found.context_kept == pytest.approx(alone / whole)
    assert 0.8 < alone / whole < 0.9


@pytest.mark.parametrize("part", ["previous", "induction"])
def test_half_a_circuit_is_none(make_circuit: Any, circuit_text: Tensor, part: str) -> None:
    """Without its other half neither head gains anything; there is no circuit to speak of."""
    found = study_induction(make_circuit(**{part: False}), circuit_text, natural=False, **QUICK)

    assert not found.induction and not found.repeats.beyond
    assert bool(found.previous) == (part == "induction")
    assert found.circuit == () and found.lost == () and found.cut == ()
    assert found.context is None and found.context_kept is None
    assert "No induction head formed: the nearest is " in str(found)
    assert all(f"{miss}: {miss.verdict}." in str(found) for miss in found.nearest)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layers": 1, "attn_only": True},
        {"positions": "none", "attn_only": True, "normalization": "none"},
        {"positions": "shortformer", "attn_only": True, "init_range": 0.5},
        {},
        {"n_layers": 0},
    ],
    ids=str,
)
def test_an_untrained_model_has_no_circuit(circuit_text: Tensor, changes: dict[str, Any]) -> None:
    """Random weights of every kind run, and nothing is found in them."""
    sizes = {"d_model": 24, "n_heads": 4, "n_layers": 2, "n_ctx": 31, "d_vocab": 29}
    model = Transformer(Config(**{**sizes, **changes}), seed=3)
    found = study_induction(model, circuit_text, search=0.9, **QUICK)

    assert not found.induction and not found.repeats.beyond
    assert found.circuit == () and found.searched is None


def test_no_head_of_a_search_can_be_left_out(make_model: Any) -> None:
    """What a search ends with keeps enough, and without any one of its heads no longer does."""
    model = make_model(n_layers=3)
    text = t.randint(0, 29, (5, 11), generator=t.Generator().manual_seed(1))
    bench = Workbench.set_up(model, text, 19, seed=0)
    everyone = [(layer, head) for layer in range(3) for head in range(3)]
    least = 0.5
    found = bench.search(least)
    gone = [head for head in everyone if head not in found]

    assert bench.share(gone) >= least
    for head in found:
        assert bench.share([*gone, head]) < least


def test_sets_are_all_or_a_draw() -> None:
    """All sets where they are few, 40 different ones where they are many, none of too few heads."""
    heads = [(0, head) for head in range(13)]

    assert sets_of(heads[:4], 1, 0) == [(head,) for head in heads[:4]]
    assert len(sets_of(heads[:4], 2, 0)) == 6
    drawn = sets_of(heads, 3, 0)
    assert len(set(drawn)) == 40 and all(len(set(some)) == 3 for some in drawn)
    assert sets_of(heads, 3, 0) == drawn != sets_of(heads, 3, 1)
    assert sets_of(heads[:2], 3, 0) == sets_of(heads, 0, 0) == []


def test_what_cannot_be_asked(make_model: Any, tokens: Tensor) -> None:
    """A search for no share; no rows; a model too short to repeat anything."""
    with pytest.raises(PvmlError, match="search must be a share above 0 and up to 1, got 1.2"):
        study_induction(make_model(), tokens, search=1.2)
    with pytest.raises(PvmlError, match="at least one row"):
        study_induction(make_model(), tokens[:0])
    with pytest.raises(PvmlError, match="no rows of text"):
        Workbench.set_up(make_model(), tokens[:0], 5, 0)
    with pytest.raises(PvmlError, match="3 tokens that come again"):
        Workbench.set_up(make_model(n_ctx=6), tokens[:, :6], 5, 0)


# Trained


def trained(n_layers: int, n_heads: int, steps: int) -> Transformer:
    """A model that has seen random tokens which come back again and again, at several distances."""
    sizes = {"d_model": 32, "n_layers": n_layers, "n_heads": n_heads, "n_ctx": 21, "d_vocab": 21}
    shape = {"attn_only": True, "normalization": "none", "init_range": 0.1}
    model = Transformer(Config(**{**sizes, **shape}), seed=0)
    rng = t.Generator().manual_seed(0)
    optimizer = t.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.98))
    schedule = t.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, step / 50) * (1 - step / steps)
    )
    for _ in range(steps):
        words = 1 + t.rand(48, 20, generator=rng).argsort(1)
        period = t.randint(4, 11, (48, 1), generator=rng)
        rows = t.cat([t.zeros(48, 1).long(), words.gather(1, t.arange(20) % period)], 1)
        logits = model(rows)[:, :-1]
        loss = t.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.requires_grad_(False)


def test_a_trained_model_has_the_circuit() -> None:
    """Two layers that learn to continue repetitions form both heads; each part is needed."""
    text = t.randint(1, 21, (64, 21), generator=t.Generator().manual_seed(1))
    text[:, 0] = 0
    found = study_induction(trained(2, 1, 400), text, natural=False, **QUICK)

    assert [(s.layer, s.head) for s in found.previous] == [(0, 0)]
    assert [(s.layer, s.head) for s in found.induction] == [(1, 0)]
    assert found.compositions[0].beyond
    assert found.repeats.beyond and found.repeats.advantage > 2
    assert [worth.value > 0.5 for worth in (*found.lost, *found.cut)] == [True] * 3
    assert found.kept is not None and found.kept.value == pytest.approx(1)


def test_one_layer_trained_alike_has_none() -> None:
    """However it learns to guess what comes again, one layer has no induction head."""
    text = t.randint(1, 21, (64, 21), generator=t.Generator().manual_seed(1))
    text[:, 0] = 0
    found = study_induction(trained(1, 4, 200), text, natural=False, **QUICK)

    assert found.induction == () and found.circuit == ()
