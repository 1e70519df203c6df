"""What `python -m pvml.circuits.two_routes` prints: the post's figures, read off a model."""

import subprocess
import sys

import pytest
import torch as t

from pvml.circuits import two_routes as tr
from pvml.demos import two_routes as demo
from pvml.demos.two_routes_command import command
from pvml.errors import CheckFailed

PRINTED = """
the 0.0 3.7 0.2 0.1 4.1 0.0
. 3.5 0.2 0.0 0.1 0.1 0.0
after 'the': row the answers mat (4.1; the next best has 3.7): wrong, it is cat
after 'the cat': row cat answers sat (3.9; the next best has 1.2): right
after 'the cat sat': row sat answers on (4.2; the next best has 1.1): right
1 the 0.4 x x x x x x x x
5 the 0.4 3.4 0.7 0.6 0.4 x x x x
8 the 0.4 3.4 0.7 0.6 0.4 2.3 0.5 0.4 x
9 cat 0.5 0.3 0.6 0.4 0.5 0.8 0.3 0.5 0.3
2 cat 3.4 29.96 29.96 / 49.90 = 60%
6 mat 2.3 9.97 9.97 / 49.90 = 20%
9 cat x 0.00 0.00 / 49.90 = 0%
sum 49.90 100%
A lead of 1.1 in score (cat over mat) is a factor of 3.00 in attention.
Were nothing masked, position 8 would score position 9, its own answer, 3.4:
positions 2 and 9 would tie at 37.5% and 37.5%.
1 the 100% x x x x x x x x
2 cat 55% 45% x x x x x x x
3 sat 28% 51% 21% x x x x x x
4 on 26% 35% 21% 17% x x x x x
5 the 4% 81% 5% 5% 4% x x x x
6 mat 16% 24% 14% 17% 16% 13% x x x
7 . 12% 18% 14% 12% 12% 20% 11% x x
8 the 3% 60% 4% 4% 3% 20% 3% 3% x
9 cat 11% 9% 13% 10% 11% 15% 9% 11% 9%
Down column 2, who reads cat: 5 the 81%, 8 the 60%, 3 sat 51%, ...
2 cat 0.1 5.0 0.2 0.0 0.0 0.0
6 mat 0.1 0.2 0.1 0.0 2.0 0.1
reading '2 cat': 0.60 x 5.0 = +3.00 to cat; all other positions together +0.06
reading '6 mat': 0.20 x 2.0 = +0.40 to mat; all other positions together +0.02
the 0.00 +0.17 0.17
cat 3.70 +3.06 6.76
sat 0.20 +0.31 0.51
on 0.10 +0.14 0.24
mat 4.10 +0.42 4.52
. 0.00 +0.08 0.08
Route 1 alone answers mat, both together cat.
2 cat W_E ----- 60% --+
'-------- the stream ------(+)-- W_U --> cat 6.76, mat 4.52
with A held 7.72, as OV says: 6.76 + 0.20 x (5.0 - 0.2) = 7.72
COPYING: the OV circuit's eigenvalues, 5.03, 4.10, 3.39, 2.00, 1.80, 0.89.
[cat] ... [the] -> [cat]: 0.60 x 4.12 = +2.47
"""


def test_the_command_prints_the_figures() -> None:
    """Every figure of the post, at its corrected value; no warning, and no zero with a minus."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pvml.circuits.two_routes"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]

    assert [line for line in PRINTED.strip().splitlines() if line not in lines] == []
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "-0.0" not in done.stdout and not done.stderr


def test_the_figures_are_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    """With a head that writes nothing, route 2 adds nothing, and OV is not the table any more."""
    model = tr.as_model()
    with t.no_grad():
        model.blocks[0].attn.W_O.zero_()

    with pytest.raises(CheckFailed, match="OV 0.0 is not the table it was built from: 5"):
        demo.main(model)

    printed = capsys.readouterr().out
    assert "Route 1 alone answers mat, both together mat." in printed
    assert "A[8,2] = 60%" in printed  # where it looks is another matter
    assert "score undefined" in printed and "is not beyond chance" in printed


def test_the_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for help it says what it is, and does nothing; what it does not know it refuses."""
    for words, code in (["--help"], 0), (["--walk"], 2):
        with pytest.raises(SystemExit) as left:
            command(words)
        told = capsys.readouterr()
        assert left.value.code == code
        assert "python -m pvml.circuits.two_routes" in told.out + told.err
        assert "ROUTE 1" not in told.out
