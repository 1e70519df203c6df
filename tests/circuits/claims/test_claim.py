"""Claims: made of what is beyond chance, checked again from what they carry, stored exactly."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits import heads
from pvml.circuits.claims.claim import Claim, ClaimKind
from pvml.circuits.claims.inputs import ClaimSettings, hash_of_weights
from pvml.circuits.claims.search import (
    KINDS,
    ClaimSearch,
    composition,
    copying,
    induction,
    lacks,
    previous_token,
)
from pvml.circuits.heads.names import HeadScore
from pvml.config import Config
from pvml.errors import PvmlError
from pvml.loading import load
from pvml.modules.transformer import Transformer

QUICK = ClaimSettings(n_sequences=24, n_random=100, n_copying=200, n_rotations=100)
LEAN = dataclasses.replace(QUICK, effects=False)


@pytest.fixture(scope="module")
def search(make_circuit: Any, circuit_text: Tensor) -> ClaimSearch:
    """Everything that can be claimed of the circuit written as weights."""
    return ClaimSearch(make_circuit(), circuit_text, settings=QUICK)


@pytest.fixture(scope="module")
def claim(search: ClaimSearch) -> Claim:
    """That it has an induction head."""
    return search.claims("induction")[0]


def test_each_part_of_the_circuit_is_claimed(search: ClaimSearch) -> None:
    """The two heads, the copying of one, and the link between them: no more and no less."""
    found = {kind: [(c.heads, c.edge) for c in search.claims(kind)] for kind in KINDS}

    assert found == {
        "previous-token": [(((0, 1),), None)],
        "induction": [(((1, 2),), None)],
        "copying": [(((1, 2),), None)],
        "composition": [(((0, 1), (1, 2)), "K")],
    }


def test_a_claim_carries_its_evidence(claim: Claim, search: ClaimSearch) -> None:
    """A sentence, a score with two nulls, what the head is worth beside others, and all inputs."""
    (score,), (effect,) = claim.scores, claim.effects

    assert "continues repetitions: in random tokens that repeat, 100% of its att" in claim.says
    assert claim.stands
    assert [null.what for null in score.nulls] == [
        "the tokens shuffled",
        "random heads in its place",
    ]
    assert all(null.p is not None and null.p < 0.001 for null in score.nulls)
    assert effect.value is not None and effect.value > 0.5
    assert effect.beyond and effect.nulls[0].most == pytest.approx(0, abs=1e-9)
    assert (claim.inputs.made, claim.inputs.n_rows, claim.inputs.posn) == ("given", 67, 31)
    assert claim.model.weights == hash_of_weights(search.subject.model)
    assert claim.settings == QUICK
    assert str(claim).splitlines()[1].startswith("  induction score: 1.000 of the attention (the ")


def test_a_claim_holds_when_it_is_measured_again(claim: Claim) -> None:
    """Of the same model on the same rows every figure is what it was."""
    check = claim.check()

    assert check and check.holds and check.same_model
    assert check.again == claim
    assert check.difference == 0
    assert str(check).startswith("Holds, measured again, figures 0 apart: Head 1.2 continues")


def test_json_gives_an_equal_claim(search: ClaimSearch) -> None:
    """Every kind of claim, and one whose effects were not measured, to the last bit."""
    for kind in KINDS:
        for claim in search.claims(kind):
            assert Claim.from_json(claim.to_json()) == claim
            bare = dataclasses.replace(claim, effects=(), notes=("näher <&> \u2028",))
            assert Claim.from_json(bare.to_json()) == bare


def test_a_changed_model_is_told(claim: Claim, make_circuit: Any) -> None:
    """Other weights: no claim about them; it is said whether it would hold. Another shape: no."""
    claim = dataclasses.replace(claim, settings=LEAN, effects=())
    other, broken = make_circuit(), make_circuit(induction=False)
    with t.no_grad():
        other.unembed.b_U[3] += 1
    kept, lost = claim.check(other), claim.check(broken)

    for check in (kept, lost):
        assert not check and not check.same_model
    assert "has other weights than" in str(kept) and "Of them it holds" in str(kept)
    assert "Of them it does not hold" in str(lost) and "induction score: 0.0" in str(lost)
    shaped = claim.check(make_circuit(n_layers=3))
    assert not shaped and shaped.again is None
    assert str(shaped).startswith("Does not hold: a model without a name (weights ")


def test_a_model_that_changed_since_is_told(make_circuit: Any, circuit_text: Tensor) -> None:
    """A claim keeps the model, not its weights: if it was trained on, that is seen."""
    model = make_circuit()
    claim = induction(model, circuit_text, settings=LEAN)[0]
    with t.no_grad():
        model.blocks[1].attn.W_Q.zero_()

    assert not claim.check().same_model


def test_rows_that_were_given_must_be_given_again(
    claim: Claim, make_circuit: Any, circuit_text: Tensor
) -> None:
    """A claim from a file knows the rows' hash: without them, or with others, it is no check."""
    stored = Claim.from_json(claim.to_json())

    with pytest.raises(PvmlError, match="about a model that has no name: give check the model"):
        stored.check()
    with pytest.raises(PvmlError, match="which are not stored: give the same rows as tokens"):
        stored.check(make_circuit())
    with pytest.raises(PvmlError, match="not the rows that the claim was made on"):
        stored.check(make_circuit(), circuit_text[:-1])
    assert stored.check(make_circuit(), circuit_text)


def test_without_text_tokens_are_random(make_circuit: Any) -> None:
    """As the first line of a notebook has it; and a stored claim draws the same rows again."""
    claim = heads.induction(make_circuit(), settings=LEAN)[0]

    assert claim.heads == ((1, 2),)
    assert claim.inputs.made == "random" and claim.inputs.bos == 0
    assert "128 rows of 31 random tokens (seed 0), sha256 " in str(claim.inputs)
    assert Claim.from_json(claim.to_json()).check(make_circuit()).difference == 0


def test_a_run_is_read_with_its_tokenizer(finished_run: Path) -> None:
    """A run's path gives stories in its own tokens, and a stored claim finds the run again."""
    settings = dataclasses.replace(QUICK, n_sequences=16)
    search = ClaimSearch(str(finished_run), settings=settings)
    claim = search.claim(search.scores("copying")[0])
    check = Claim.from_json(claim.to_json()).check()

    assert (claim.inputs.made, claim.inputs.corpus) == ("storybook", "storybook:400")
    assert claim.model.name == str(finished_run)
    assert check.same_model and check.difference == 0
    assert check.holds == claim.stands
    assert ClaimSearch(load(finished_run), settings=settings).inputs == claim.inputs
    with pytest.raises(PvmlError, match="stories, which need the model's tokenizer"):
        claim.check(load(finished_run).model)
    gone = dataclasses.replace(claim.model, name="runs/gone")
    lost = dataclasses.replace(claim, model=gone, subject=None)
    with pytest.raises(PvmlError, match="runs/gone of this claim cannot be loaded from here"):
        lost.check()


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layers": 1, "attn_only": True, "normalization": "none"},
        {"positions": "none", "attn_only": True},
        {"positions": "shortformer", "init_range": 0.5},
        {"n_layers": 0},
    ],
    ids=str,
)
def test_nothing_is_claimed_of_an_untrained_model(
    circuit_text: Tensor, changes: dict[str, Any]
) -> None:
    """Random weights of every kind: no claim of any kind."""
    sizes = {"d_model": 24, "n_heads": 3, "n_layers": 2, "n_ctx": 31, "d_vocab": 29}
    model = Transformer(Config(**{**sizes, **changes}), seed=5)

    for find in (induction, previous_token, copying, composition):
        assert find(model, circuit_text, settings=QUICK) == []


def test_effects_that_cannot_be_measured_are_told(make_circuit: Any, circuit_text: Tensor) -> None:
    """Half a circuit gains nothing from repetition; effects can be left out; rows can be short."""
    half = make_circuit(induction=False)
    (claim,) = previous_token(half, circuit_text, settings=QUICK)
    (bare,) = previous_token(half, circuit_text, settings=LEAN)
    (short,) = copying(make_circuit(), circuit_text[:, :1], settings=QUICK)

    assert claim.effects == () and "gains too little where random tokens" in claim.notes[-1]
    assert bare.effects == () and bare.notes == ()
    assert short.effects == () and "could not be measured: " in short.notes[-1]


def test_links_beyond_the_surest_are_claimed_without_effects(
    make_circuit: Any, circuit_text: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trained model has many pairs that compose: not all are cut, and that is said."""
    monkeypatch.setattr("pvml.circuits.claims.search.MOST_LINKS", 0)
    (claim,) = composition(make_circuit(), circuit_text, settings=QUICK)

    assert claim.stands and claim.effects == ()
    assert claim.notes[-1] == "what this link is worth was measured for the 0 surest only"


def test_a_score_that_misses_for_its_size_is_told_so(search: ClaimSearch) -> None:
    """Beyond its nulls, and yet no claim: the verdict of the figure does not blame the nulls."""
    score = search.scores("induction")[0]
    assert isinstance(score, HeadScore)
    small = dataclasses.replace(score, score=score.null_mean + 0.05)
    beside = dataclasses.replace(score, ahead=False)
    chance = dataclasses.replace(score, p=0.5)
    said = "; beyond these, but by too little, or a place beside it gets more)"

    for miss in (small, beside):
        figure = search.claim(miss).scores[0]
        assert not figure.beyond and str(figure).endswith(said)
    assert str(search.claim(chance).scores[0]).endswith("; not beyond these)")
    assert [lacks(miss) for miss in (small, beside, chance)] == [
        "too little above its null",
        "a place beside it gets more",
        "explained by shuffled tokens",
    ]
    by: dict[ClaimKind, str] = {"copying": "heads", "composition": "rotations"}
    for kind, nulls in by.items():
        miss = search.scores(kind)[-1]
        assert lacks(dataclasses.replace(miss, score=0.0)) == f"explained by random {nulls}"
        assert lacks(dataclasses.replace(miss, score=math.nan)) == "there is nothing to score"


def test_what_is_no_claim_is_refused(claim: Claim) -> None:
    """Damaged JSON, another version, a missing, unknown or wrong field: each is named."""
    saved = json.loads(claim.to_json())
    for text, message in {
        "{": "no claim in JSON",
        "[" * 100_000: "no claim in JSON",
        "[]": "expected format 1",
        json.dumps({**saved, "format": 2}): "expected format 1",
        json.dumps({k: v for k, v in saved.items() if k != "says"}): "expected an object of edge",
        json.dumps({**saved, "more": 1}): "the claim is damaged",
        json.dumps({**saved, "says": 3}): "claim.says is damaged: expected str; got 3",
        json.dumps({**saved, "kind": "magic"}): "claim.kind is damaged: expected one of prev",
        json.dumps({**saved, "heads": [[1]]}): r"claim.heads\[0\] is damaged: expected a list of 2",
        json.dumps({**saved, "heads": [[1, True]]}): r"heads\[0\]\[1\] is damaged: expected int",
        json.dumps({**saved, "notes": "a"}): "claim.notes is damaged: expected a list",
        json.dumps(
            {**saved, "model": {**saved["model"], "config": 3}}
        ): "expected a model's config",
    }.items():
        with pytest.raises(PvmlError, match=message):
            Claim.from_json(text)


def test_what_cannot_be_claimed(make_circuit: Any, circuit_text: Tensor) -> None:
    """What is no model, no rows, a BOS that is not there, tokens of another vocabulary."""
    model = make_circuit()
    with pytest.raises(PvmlError, match="at least one row of tokens"):
        induction(model, circuit_text[:0], settings=QUICK)
    with pytest.raises(PvmlError, match="got bos 29"):
        induction(model, bos=29, settings=QUICK)
    with pytest.raises(PvmlError, match="outside the vocabulary"):
        induction(model, circuit_text + 29, settings=QUICK)
    with pytest.raises(PvmlError, match="MODEL 'nowhere' is not known"):
        induction("nowhere", settings=QUICK)
