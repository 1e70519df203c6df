"""A report: all claims on a page and in a file, and a page of nothing says so."""

import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from pvml.circuits.claims.inputs import ClaimSettings
from pvml.circuits.claims.report import ClaimReport, report_claims
from pvml.circuits.heads.names import NAMING
from pvml.config import Config
from pvml.errors import PvmlError, RunDirError
from pvml.modules.transformer import Transformer

QUICK = ClaimSettings(n_sequences=24, n_random=100, n_copying=200, n_rotations=100)
VOID = ("meta",)


@pytest.fixture(scope="module")
def report(make_circuit: Any, circuit_text: Tensor) -> ClaimReport:
    """Of the circuit written as weights."""
    return report_claims(make_circuit(), circuit_text, settings=QUICK)


class Tags(HTMLParser):
    """What is open, and what was asked of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_tells_every_claim(report: ClaimReport) -> None:
    """Each claim under its heading with its figures, and the misses of its kind."""
    page = report.to_markdown()

    assert page.startswith("# What is claimed of a model without a name\n\n4 claims.\n\n")
    for heading, sentence in {
        "Previous-token heads": "Head 0.1 reads the token before",
        "Induction heads": "Head 1.2 continues repetitions",
        "Copying heads": "Head 1.2 copies",
        "Composition of heads": "The keys of head 1.2 read what head 0.1 writes more",
    }.items():
        section = page.split(f"## {heading}\n")[1].split("\n## ")[0]
        assert section.startswith(f"\n- {sentence}")
        assert "\n- Nearest misses:\n  - " in section
        misses = section.split("Nearest misses:\n")[1].strip().splitlines()
        for miss in misses:
            assert miss.endswith(
                (
                    ": explained by shuffled tokens",
                    ": explained by random heads",
                    ": explained by random rotations",
                    ": a place beside it gets more",
                    ": too little above its null",
                    ": there is nothing to score",
                )
            )
    assert NAMING in page and page.count("±: ") == 2
    assert "with 0.1, 1.2 alone: 100%" in page.split("## The induction circuit\n")[1]


def test_files_are_written_and_read_back(report: ClaimReport, tmp_path: Path) -> None:
    """Three files; the JSON one gives an equal report, whose claims can be checked."""
    paths = report.write(tmp_path / "new" / "folder")

    assert [path.name for path in paths] == ["claims.json", "claims.md", "claims.html"]
    assert ClaimReport.read(paths[0]) == report
    assert paths[1].read_text("utf-8") == report.to_markdown()
    assert sorted(p.name for p in paths[0].parent.iterdir()) == sorted(p.name for p in paths)


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("model", "name", "gpt2-xl"),
        ("inputs", "bos", 3),
        ("settings", "seed", 7),
    ],
)
def test_claims_are_of_the_reports_model_and_rows(
    report: ClaimReport, tmp_path: Path, where: str, name: str, value: object
) -> None:
    """A report whose head says otherwise than its claims is damaged."""
    (path, *_) = report.write(tmp_path)
    saved = json.loads(path.read_text("utf-8"))
    saved[where][name] = value
    path.write_text(json.dumps(saved), "utf-8")
    with pytest.raises(PvmlError, match=f"the {where} of claim 0 is not that of the report"):
        ClaimReport.read(path)


def test_all_are_checked_at_once(
    report: ClaimReport, make_circuit: Any, circuit_text: Tensor
) -> None:
    """The same figures come again for the same weights; other weights or another shape fail."""
    again = list(report.check(make_circuit(), circuit_text))
    assert [check.claim for check in again] == list(report.claims)
    assert all(check.holds and check.difference == 0 for check in again)
    others = list(report.check(make_circuit(induction=False), circuit_text))
    assert not any(check.same_model or check.holds for check in others)
    assert [check.again is not None and check.again.stands for check in others] == [
        claim.heads == ((0, 1),) for claim in report.claims
    ]
    larger = Transformer(Config(d_model=4, n_heads=1, n_layers=1, n_ctx=31, d_vocab=29), seed=0)
    assert [check.again for check in report.check(larger, circuit_text)] == [None] * 4
    with pytest.raises(PvmlError, match="which are not stored: give the same rows as tokens"):
        next(report.check(make_circuit()))


def test_the_html_is_whole_and_needs_no_network(report: ClaimReport) -> None:
    """Every tag is closed, nothing is linked, and every sentence is on it."""
    page, tags = report.to_html(), Tags()
    tags.feed(page)

    assert tags.open == [] and tags.links == []
    assert "http" not in page
    assert all(claim.says in page for claim in report.claims)
    assert page.count("±: ") == 2 and "no place beside the one in question gets more" in page


def test_a_page_of_nothing_says_so(circuit_text: Tensor, tmp_path: Path) -> None:
    """An untrained model: nothing is claimed, and the nearest misses stand beside their nulls."""
    cfg = Config(d_model=24, n_heads=3, n_layers=2, n_ctx=31, d_vocab=29, attn_only=True)
    found = report_claims(Transformer(cfg, seed=5), circuit_text, settings=QUICK, circuit=False)
    page = found.to_markdown()

    assert found.claims == ()
    assert "\n\nNothing is claimed.\n\n" in page
    assert page.count("Nothing is claimed: none of") == 4
    assert "none of 6 scores is one." in page and "none of 27 scores is one." in page
    assert page.count("Nearest misses:") == 4 and page.count("random heads ") >= 6
    assert ClaimReport.read(found.write(tmp_path)[0]) == found


def test_a_model_without_layers_has_a_page() -> None:
    """Nothing to look at, and nothing claimed."""
    cfg = Config(d_model=7, n_heads=1, n_layers=0, n_ctx=11, d_vocab=29)
    page = report_claims(Transformer(cfg, seed=0), settings=QUICK).to_markdown()

    assert page.count("Nothing is claimed: none of 0 scores is one.") == 4


def test_a_models_name_is_no_markup(report: ClaimReport) -> None:
    """Whatever a run is called, the page shows it as it is."""
    name = "runs/<b>*x*|`y`</b>\n# z"
    told = dataclasses.replace(report, model=dataclasses.replace(report.model, name=name))

    assert r"claimed of runs/\<b\>\*x\*\|\`y\`\</b\> \# z" in told.to_markdown()
    assert "&lt;b&gt;*x*" in told.to_html() and "<b>" not in told.to_html()


def test_what_cannot_be_reported(report: ClaimReport, make_circuit: Any, tmp_path: Path) -> None:
    """No kinds; a file that is damaged or no report; a folder that is a file."""
    with pytest.raises(PvmlError, match="kinds must be some of previous-token"):
        report_claims(make_circuit(), kinds=[])
    (tmp_path / "damaged.json").write_text("{", "utf-8")
    with pytest.raises(RunDirError, match="damaged.json"):
        ClaimReport.read(tmp_path / "damaged.json")
    for saved in ({}, {"format": 1}, {"format": 1, "claims": [3]}, {"format": 1, "claims": []}):
        (tmp_path / "other.json").write_text(json.dumps(saved), "utf-8")
        with pytest.raises(PvmlError, match="other.json"):
            ClaimReport.read(tmp_path / "other.json")
    with pytest.raises(PvmlError, match="cannot be made a folder"):
        report.write(tmp_path / "other.json")


def test_a_claim_about_what_is_not_there(
    report: ClaimReport, make_circuit: Any, circuit_text: Tensor
) -> None:
    """A head or pair that the model does not have: it does not hold, and the others are told."""
    one = next(claim for claim in report.claims if claim.kind == "induction")
    edited = (dataclasses.replace(one, heads=((9, 9),)), dataclasses.replace(one, heads=()), one)
    checks = list(dataclasses.replace(report, claims=edited).check(make_circuit(), circuit_text))

    assert [check.holds for check in checks] == [False, False, True]
    assert [check.verdict for check in checks[:2]] == ["does not hold"] * 2
    assert "has no induction score of heads 9.9. Head 1.2" in str(checks[0])
    assert "has no induction score of heads (none named)" in str(checks[1])
