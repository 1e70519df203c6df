"""What claims are made on: numbers that no claim was made with are refused before they are used."""

from typing import Any

import pytest

from pvml.circuits.claims.as_json import decode, encode
from pvml.circuits.claims.inputs import ClaimInputs, ClaimSettings, hash_of_tokens, opened
from pvml.errors import PvmlError

ROWS: dict[str, Any] = {
    "made": "random",
    "corpus": None,
    "fingerprint": None,
    "bos": 0,
    "n_rows": 4,
    "posn": 8,
    "seed": 3,
    "tokens": "0",
}


@pytest.mark.parametrize(
    "changed",
    [
        {"n_rows": 10**12},
        {"n_rows": 0},
        {"posn": 10**9},
        {"posn": -1},
        {"seed": 2**64},
        {"seed": -1},
    ],
)
def test_rows_that_are_never_made_so(changed: dict[str, int]) -> None:
    """Of a file that was edited: named with what is allowed; rows that were given may be many."""
    ((name, value),) = changed.items()
    with pytest.raises(PvmlError, match=f"inputs.{name} must be [01] to .*, got {value}"):
        decode(ClaimInputs, {**ROWS, **changed})
    inputs = decode(ClaimInputs, {**ROWS, "made": "given", "n_rows": 10**6})
    assert decode(ClaimInputs, encode(inputs)) == inputs


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 2**63},
        {"seed": -1},
        {"n_sequences": 10**12},
        {"n_random": 10**12},
        {"n_copying": -1},
        {"n_rotations": 100_001},
    ],
)
def test_settings_beyond_all_reason(changed: dict[str, int]) -> None:
    """Seeds that nothing is drawn with, and counts that no machine holds."""
    ((name, value),) = changed.items()
    with pytest.raises(PvmlError, match=f"settings.{name} must be 0 to .*, got {value}"):
        ClaimSettings(**changed)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"corpus": "tinystories"}, "its corpus is 'tinystories', and theirs is None"),
        ({"fingerprint": "0" * 64}, "its fingerprint is '0+', and theirs is None"),
        ({"bos": 3}, "its bos is 3, and theirs is 0"),
    ],
)
def test_a_false_origin_is_told(
    make_model: Any, tokens: Any, changed: dict[str, Any], told: str
) -> None:
    """Whatever is said of the rows is held against them, not their hash alone."""
    rows = tokens.clone()
    rows[:, 0] = 0
    true = {**ROWS, "made": "given", "n_rows": 2, "posn": 7, "tokens": hash_of_tokens(rows)}
    assert ClaimInputs(**true).rows(opened(make_model()), rows) is rows
    with pytest.raises(PvmlError, match=told):
        ClaimInputs(**{**true, **changed}).rows(opened(make_model()), rows)
