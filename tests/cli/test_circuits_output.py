"""What `pvml circuits` says on the way: on stderr, and into a pipe as well."""

import sys
from io import BytesIO, TextIOWrapper

import pytest

from pvml.circuits.weights.composition import CompositionScore
from pvml.cli.circuits_output import progress, say, waiting
from pvml.cli.circuits_overview import _compositions


def test_a_pipe_hears_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for what takes long, one for each thing that is begun, and nothing in the output."""
    with waiting("watching every head"):
        told = capsys.readouterr()
    assert (told.out, told.err) == ("", "watching every head ...\n")
    with progress() as tell:
        for what in ("attention of 0.1", "writing of 0.1"):
            for done in range(1, 4):
                tell(what, done, 4096)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "attention of 0.1, 4,096 in all ...",
        "writing of 0.1, 4,096 in all ...",
    ]
    say("done")
    assert capsys.readouterr().out == "done\n"


def test_pairs_that_are_not_shown_are_counted() -> None:
    """Of seven that compose five are shown, and two are told of; of five all are."""
    pairs = [
        CompositionScore(
            kind=kind,  # type: ignore[arg-type]
            writer=(0, head),
            reader=(1, 0),
            score=0.5 + head / 100,
            null_mean=0.1,
            null_spread=0.01,
            p=1e-9,
        )
        for kind, n in (("K", 7), ("V", 5))
        for head in range(n)
    ]
    lines = _compositions(pairs).splitlines()

    assert lines.count("     and 2 more: pvml circuits MODEL compose") == 1
    at = lines.index("  K: 7 of 7 pairs beyond chance")
    assert lines[at + 1].startswith("     0.6 > 1.0") and lines[at + 6].startswith(
        "     and 2 more"
    )
    assert sum(" > 1.0 " in line for line in lines) == 10 and "more" not in lines[-1]


def test_a_terminal_without_the_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars and shades are plain signs where the encoding has no others; all else stays."""
    raw = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(raw, encoding="ascii"))
    say("█▌│ 0.1 ± 0.2 · ░▒▓█ …")
    sys.stdout.flush()

    assert raw.getvalue() == b"#+| 0.1 +- 0.2 . .-+# ~\n"
