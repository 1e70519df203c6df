"""What a claim says otherwise than was measured: every forged word and figure, and no rounding."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from pvml.circuits.claims.claim import Claim, ClaimCheck
from pvml.circuits.claims.compare import differences
from pvml.circuits.claims.inputs import ClaimSettings
from pvml.circuits.claims.search import KINDS, ClaimSearch

QUICK = ClaimSettings(n_sequences=24, n_random=100, n_copying=200, n_rotations=100)
Forge = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def claims(make_circuit: Any, circuit_text: Tensor) -> dict[str, Claim]:
    """One of each kind, of the circuit written as weights."""
    search = ClaimSearch(make_circuit(), circuit_text, settings=QUICK)
    return {kind: search.claims(kind)[0] for kind in KINDS}


def forged(claim: Claim, forge: Forge) -> Claim:
    """A claim whose file was edited."""
    saved = json.loads(claim.to_json())
    forge(saved)
    return Claim.from_json(json.dumps(saved))


def edit(*path: str | int, to: Any) -> Forge:
    """Put another value where these keys lead."""

    def forge(saved: Any) -> None:
        for key in path[:-1]:
            saved = saved[key]
        saved[path[-1]] = to

    return forge


def test_nothing_is_amiss_with_what_was_measured(claims: dict[str, Claim]) -> None:
    """Of every kind: its sentence is that of its figures, to the last bit and through JSON."""
    for claim in claims.values():
        assert differences(forged(claim, lambda _: None), claim) == ()


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (edit("says", to="Head 1.2 does it all."), "it says 'Head 1.2 does it all.', and its own"),
        (edit("scores", 0, "value", to=0.5), "induction score: it has 0.5, measured is 1"),
        (edit("scores", 0, "value", to=None), "induction score: it has none, measured is 1"),
        (edit("scores", 0, "unit", to="nats"), "it is in 'nats', measured in 'of the attention'"),
        (edit("scores", 0, "what", to="a score"), "it has the figures a score, and measured are"),
        (edit("scores", to=[]), "it has the figures none, and measured are induction score"),
        (edit("scores", 0, "nulls", 1, "mean", to=0.9), "in its place: it has a mean of 0.9, mea"),
        (edit("scores", 0, "nulls", 0, "spread", to=0.9), "shuffled: it has a spread of 0.9, mea"),
        (edit("scores", 0, "nulls", 0, "p", to=0.5), "shuffled: it has p = 0.5, measured is p <"),
        (edit("scores", 0, "nulls", 0, "p", to=1e-200), "is p < 0.001 (1e-200 and "),
        (edit("scores", 0, "nulls", 0, "p", to=None), "it has no p, measured is p < 0.001"),
        (edit("scores", 0, "nulls", to=[]), "it stands beside other nulls than were measured"),
        (edit("scores", 0, "beyond", to=False), "whether it is beyond its nulls is not what was"),
        (edit("effects", 0, "value", to=5.0), "the head ablated: it has 5, measured is "),
        (edit("effects", 0, "nulls", 0, "most", to=0.4), "heads (4): it has a most of 0.4, measu"),
        (edit("effects", 0, "beyond", to=False), "whether it is beyond its nulls is not what was"),
        (edit("effects", to=[]), "it has the figures none, and measured are share of the"),
        (edit("notes", to=[]), "it notes nothing, and measured is 'ablated heads write"),
        (edit("notes", to=["a", "b"]), "it notes 'b', and measured is nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_forged_file_is_told(claims: dict[str, Claim], forge: Forge, message: str) -> None:
    """Every field that says something, changed alone, is named; such a claim does not hold."""
    claim = claims["induction"]
    check = ClaimCheck(claim=forged(claim, forge), model=claim.model, again=claim)

    assert any(message in found for found in check.amiss), check.amiss
    assert check.verdict == "not what was measured" and not check and check.same_model
    assert str(check).startswith("Not what was measured: Head 1.2 ")


def test_the_sentence_of_every_kind_is_held_against_its_score(claims: dict[str, Claim]) -> None:
    """A last digit of any sentence, changed, is amiss, and so is a score under its old sentence."""
    for claim in claims.values():
        digits = [i for i, sign in enumerate(claim.says) if sign.isdigit()]
        last = digits[-1]
        other = claim.says[:last] + str((int(claim.says[last]) + 1) % 10) + claim.says[last + 1 :]
        for says in (other, claim.says.replace("ead", "eap")):
            (found,) = differences(dataclasses.replace(claim, says=says), claim)
            assert found.startswith("it says ")
        lower = forged(claim, edit("scores", 0, "value", to=0.015))
        assert len(differences(lower, claim)) == 2


def test_rounding_is_no_difference(claims: dict[str, Claim]) -> None:
    """Figures 1e-6 apart, a p far out in its tail, a tie that falls otherwise: all as measured."""
    claim = claims["induction"]
    (score,), (effect,) = claim.scores, claim.effects

    def moved(value: float | None) -> float | None:
        return None if value is None else value * (1 + 1e-6) + 1e-6

    nulls = tuple(
        dataclasses.replace(null, mean=moved(null.mean), spread=moved(null.spread))
        for null in score.nulls
    )
    near = dataclasses.replace(score, value=moved(score.value), nulls=nulls)
    assert differences(dataclasses.replace(claim, scores=(near,)), claim) == ()

    tails = [
        dataclasses.replace(
            score, nulls=(dataclasses.replace(score.nulls[0], p=p), *score.nulls[1:])
        )
        for p in (1e-50, 2e-50)
    ]
    one, other = (dataclasses.replace(claim, scores=(tail,)) for tail in tails)
    assert differences(one, other) == ()

    most = dataclasses.replace(effect.nulls[0], most=effect.value)
    ties = [dataclasses.replace(effect, nulls=(most,), beyond=beyond) for beyond in (True, False)]
    one, other = (dataclasses.replace(claim, effects=(tie,)) for tie in ties)
    assert differences(one, other) == ()


def test_numbers_in_notes_may_differ_in_their_last_place(claims: dict[str, Claim]) -> None:
    """A note with a rounded loss: 5.90 and 5.91 are one, 5.90 and 5.93 are not."""
    notes = [(f"too little ({loss} nats the second time)",) for loss in ("5.90", "5.91", "5.93")]
    one, near, far = (dataclasses.replace(claims["induction"], notes=note) for note in notes)

    whole = [dataclasses.replace(one, notes=(f"{n} heads were tried",)) for n in (20, 21)]

    assert differences(one, near) == ()
    assert len(differences(*whole)) == 1  # a whole number is not rounded
    assert differences(one, far) == (
        "it notes 'too little (5.90 nats the second time)', and measured is "
        "'too little (5.93 nats the second time)'",
    )
