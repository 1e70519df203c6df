"""`pvml circuits MODEL skips | induction | report | check | training`: claims and corpora."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t
from torch import Tensor

from pvml.circuits.claims.inputs import ClaimSettings, Opened
from pvml.circuits.claims.report import ClaimReport, report_claims
from pvml.circuits.heads.over_training import induction_score
from pvml.circuits.induction.study import LEGEND, study_induction
from pvml.circuits.skips.evidence import find_evidence
from pvml.circuits.skips.reading import Competition
from pvml.circuits.skips.trigrams import find_skip_trigrams
from pvml.cli.main import main
from pvml.config import Config
from pvml.data.rows import pack
from pvml.data.sources import open_corpus
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir

DATA = ["--data", "storybook:8"]
QUICK = ClaimSettings(n_sequences=16, n_random=0, n_copying=200, n_rotations=100)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run whose last checkpoint has a head, 0.0, that copies; its first one has not."""
    tokenizer = Tokenizer.train(list(open_corpus("storybook:30")), 300)
    sizes: dict[str, Any] = {"d_model": 24, "n_heads": 2, "d_head": 12, "n_layers": 2, "n_ctx": 21}
    shape: dict[str, Any] = {"attn_only": True, "normalization": "none", "init_range": 0.4}
    cfg = Config(**sizes, **shape, d_vocab=tokenizer.d_vocab)
    path = tmp_path_factory.mktemp("claims") / "run"
    run = RunDir.create(path, cfg=cfg, tokenizer=tokenizer, args={})
    model = Transformer(cfg, seed=1)
    for step in (0, 4, 8):
        run.log({"step": step, "loss": 5.0 - step / 10})
        if step == 8:
            with t.no_grad():
                model.unembed.W_U.copy_(model.embed.W_E.T)
                model.blocks[0].attn.W_O[0] = model.blocks[0].attn.W_V[0].T  # type: ignore[union-attr, index, operator]
        run.save_checkpoint(step, model, {}, keep=True)
    return run


@pytest.fixture(autouse=True)
def here(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of the run, writing into a pipe."""
    monkeypatch.chdir(run.path.parent)
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def tokens(run: RunDir) -> Tensor:
    """The rows of the text, as the command cuts them."""
    rows = pack(run.tokenizer(), open_corpus("storybook:8"), 21)
    return rows.batch(range(len(rows)))


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command; what it printed, which but for paths fits 80 columns."""

    def go(*words: str, code: int = 0) -> str:
        assert main(["circuits", *words, "--device", "cpu"]) == code
        out = capsys.readouterr().out
        assert [line for line in out.splitlines() if len(line) > 80 and "/" not in line] == []
        return " ".join(out.split())

    return go


@pytest.fixture
def found(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run the command with --json; the one object that it printed."""

    def go(*words: str, code: int = 0) -> dict[str, Any]:
        assert main(["circuits", *words, "--device", "cpu", "--json"]) == code
        return dict(json.loads(capsys.readouterr().out))

    return go


def test_skips_are_the_librarys(
    run: RunDir,
    tokens: Tensor,
    told: Callable[..., str],
    found: Callable[..., dict[str, Any]],
) -> None:
    """What is mined in the text's own competition, its evidence, and the loss without the head."""
    model, d_vocab = run.load_model("cpu"), run.cfg.d_vocab
    competition = Competition.of_text(tokens, d_vocab)
    mined = find_skip_trigrams(
        model, [(0, 0)], top=3, per_source=1, competition=competition, tokenizer=run.tokenizer()
    )
    evidence = find_evidence(mined.found, tokens, document_end=run.tokenizer().eos_token_id)
    values = found("run", "skips", "--head", "0.0", "--top", "3", *DATA)

    assert [one["effect"] for one in values["skip_trigrams"]] == [x.effect for x in mined.found]
    for one, trigram, beside in zip(values["skip_trigrams"], mined.found, evidence, strict=True):
        assert one["ids"] == [trigram.source, trigram.destination, trigram.output]
        assert one["evidence"]["n_output"] == beside.n_output
        assert one["evidence"]["lift"] == beside.lift and one["ablation"]["fill"] == "mean"
        assert one["evidence"]["tested"] == (not beside.untested)
    assert isinstance(values["bugs"], list)
    out = told("run", "skips", "--head", "0.0", "--top", "3", *DATA)
    assert mined.found[0].name in out and "without 0.0 (its mean instead)" in out
    assert "what these heads promote besides" in out
    assert out.count("not beyond chance") == sum(
        one[beside]["tested"] and not one[beside]["beyond"]
        for one in values["skip_trigrams"]
        for beside in ("evidence", "ablation")
    )
    assert "heads above layer 0 are read as if" not in out
    above = told("run", "skips", "--head", "1.0", "--top", "1")
    assert above.index("heads above layer 0 are read as if") < above.index("(attention ")


def test_skips_of_the_weights_alone(
    run: RunDir, told: Callable[..., str], found: Callable[..., dict[str, Any]]
) -> None:
    """Without a text there is no evidence; only the tokens that were asked for are told."""
    values = found("run", "skips", "--source", "a", "--source", "b", "--top", "2")
    ids = [run.tokenizer().encode(one)[0] for one in "ab"]

    assert values["text"] is None and values["bugs"] is None
    assert {one["ids"][0] for one in values["skip_trigrams"]} <= set(ids)
    assert {one["head"] for one in values["skip_trigrams"]} <= {"0.0", "0.1", "1.0", "1.1"}
    assert values["skip_trigrams"][0]["evidence"] is None
    assert "Whether a text does so: --data CORPUS." in told("run", "skips", "--top", "1")


def test_induction_is_the_librarys(
    run: RunDir,
    tokens: Tensor,
    told: Callable[..., str],
    found: Callable[..., dict[str, Any]],
) -> None:
    """The study of the text's rows; a model without a circuit says that there was no search."""
    study = study_induction(run.load_model("cpu"), tokens, n_random=0, seed=2)
    words = ["run", "induction", *DATA, "--n-random", "0", "--seed", "2"]
    values = found(*words)

    assert values["repeats"]["advantage"] == study.repeats.advantage
    assert study.context is not None and values["context"]["gain"] == study.context.gain
    assert values["induction_heads"] == [] and values["circuit"] == []
    assert values["kept"] is None is values["searched"]
    out = told(*words, "--search", "0.9")
    assert "No induction head formed" in out and "Nothing was searched for" in out
    assert " ".join(LEGEND.split()) in out


def test_a_report_is_written(
    run: RunDir,
    told: Callable[..., str],
    found: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three files, whose claims are counted and can be read back; the seed is theirs."""
    monkeypatch.setattr("pvml.circuits.claims.inputs.ClaimSettings", lambda seed: QUICK)
    out = tmp_path / "report"
    values = found("run", "report", "--out", str(out), "--no-circuit")
    report = ClaimReport.read(out / "claims.json")

    assert values["written"] == [str(out / f"claims.{end}") for end in ("json", "md", "html")]
    assert values["claims"] == len(report.claims) > 0
    assert values["kinds"]["copying"]["scores"] == 4
    assert any(claim.kind == "copying" and claim.heads == ((0, 0),) for claim in report.claims)
    said = told("run", "report", "--out", str(out), "--no-circuit")
    n = values["kinds"]["copying"]["claims"]
    assert f"written: {out}" in said and f"copying {n} of 4 scores are claimed" in said
    assert "no place beside the one in question gets more" in said


def test_a_check_tells_by_its_code(
    run: RunDir,
    told: Callable[..., str],
    found: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    """0 where all claims hold of the model, 1 where one does not, on any of a run's steps."""
    model, tokenizer = run.load_model("cpu"), run.tokenizer()
    report = report_claims(
        Opened(model, tokenizer, "run"), settings=QUICK, kinds=["copying"], circuit=False
    )
    report.write(tmp_path)
    n = len(report.claims)
    assert f"{n} of {n} claims hold" in told("run", "check", str(tmp_path))
    values = found("run", "check", str(tmp_path / "claims.json"))
    assert (values["claims"], values["failed"]) == (n, 0)
    assert values["checks"][0]["heads"] == ["0.0"] and values["checks"][0]["difference"] == 0
    other = found("run/checkpoints/step-4", "check", str(tmp_path), code=1)
    assert other["failed"] == n and not other["checks"][0]["same_model"]
    assert "Not about this model" in told("run/checkpoints/step-4", "check", str(tmp_path), code=1)

    file = tmp_path / "claims.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "claims": []}), "utf-8")
    assert "the report claims nothing of this model" in told("run", "check", str(file))
    foreign = " ".join(told("run/checkpoints/step-4", "check", str(file), code=1).split())
    assert "claims nothing of run (weights" in foreign and "which is another model" in foreign


def test_a_check_tells_of_a_forged_file(
    run: RunDir,
    told: Callable[..., str],
    found: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    """A figure of another size, or another sentence: not what was measured, counted, code 1."""
    report_claims(
        Opened(run.load_model("cpu"), run.tokenizer(), "run"),
        settings=QUICK,
        kinds=["copying"],
        circuit=False,
    ).write(tmp_path)
    file = tmp_path / "claims.json"
    saved = json.loads(file.read_text("utf-8"))
    n = len(saved["claims"])
    saved["claims"][0]["scores"][0]["value"] -= 0.25
    file.write_text(json.dumps(saved), "utf-8")

    values = found("run", "check", str(file), code=1)
    first = values["checks"][0]
    assert (values["failed"], first["verdict"]) == (1, "not what was measured")
    assert first["same_model"] and not first["holds"] and len(first["amiss"]) == 2
    assert first["difference"] == pytest.approx(0.25)
    out = told("run", "check", str(file), code=1)
    assert "Not what was measured: Head 0.0 copies" in out and "copying score: it has 0." in out
    assert f"{n - 1} of {n} claims hold; not what was measured: 1" in out


def test_training_follows_the_checkpoints(
    run: RunDir,
    tokens: Tensor,
    told: Callable[..., str],
    found: Callable[..., dict[str, Any]],
    tmp_path: Path,
) -> None:
    """The library's scores at each kept step, the loss up to it, and where each rises most."""
    values = found("run", "training", *DATA, "--plot", str(tmp_path / "a.png"))
    last = induction_score(tokens)(run.load_model("cpu"))

    assert values["steps"] == [0, 4, 8] and values["losses"] == [5.0, 4.6, 4.2]
    assert {name: scores[-1] for name, scores in values["scores"].items()} == last
    assert values["rises_most"]["advantage"] in ([0, 4], [4, 8], None)
    assert values["pictures"] == [str(tmp_path / "a.png")] and (tmp_path / "a.png").is_file()
    assert found("run", "training", *DATA, "--every", "5")["steps"] == [0, 8]
    out = told("run", "training", *DATA)
    assert f"8 4.200 {last['advantage']:z.2f} ({last['advantage, reordered']:z.2f})" in out
    assert "previous-token rises above chance most" in out or "previous-token never rises" in out


def test_a_bundled_model_has_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    """It is there, and has no checkpoints: that is what is said."""
    assert main(["circuits", "attn-2l", "training"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "attn-2l is a bundled model, which has no checkpoints" in said
    assert "does not exist" not in said
