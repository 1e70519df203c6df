"""The demo, with a small model and few steps: every stage runs, and its claims are checked."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch as t
from rich.console import Console

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.demos import demo, learning
from pvml.demos.args import DemoArgs
from pvml.demos.preparing import Pace
from pvml.errors import CheckFailed, RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.trace.tap import listen

SMALL = DemoArgs(
    data="storybook:50", steps=6, n_ctx=32, d_model=12, n_heads=2, d_vocab=281, train_seconds=1e6
)


def printed(args: DemoArgs) -> str:
    out = io.StringIO()
    demo.run(args, Console(file=out, width=100))
    return out.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def output(folder: Path) -> str:
    return printed(replace(SMALL, run_dir=str(folder)))


def test_every_stage_prints(output: str) -> None:
    """Loss, story, verification, decomposition, heads, files and what to try next, in order."""
    stages = [
        r"storybook: 45 documents to learn from, 5 held out; tokenizer bpe:281",
        r"loss \d\.\d+ -> \d\.\d+ nats per token \(held out\), \d\.\d+ bits per byte",
        r"(\d+) of \1 named tensors agree with the float64 reference",
        r"adds to the logit of",
        r"No previous-token head formed",
        r"No induction head formed",
        r"a plot: .*loss\.png",
        r"pvml sample .*demo 'Once upon a time'",
    ]
    places = [re.search(stage, output) for stage in stages]

    assert None not in places, [s for s, p in zip(stages, places, strict=True) if p is None]
    starts = [place.start() for place in places if place]
    assert starts == sorted(starts)


def test_the_loss_falls_from_uniform_guessing(output: str, folder: Path) -> None:
    """The first loss is about ln(d_vocab); six steps bring it down."""
    losses = [row["loss"] for row in RunDir.open(folder / "demo").rows("loss")]

    assert losses[0] == pytest.approx(5.64, abs=0.1)
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.1


def test_the_printed_terms_add_up(output: str) -> None:
    """The table's terms, summed from the print, are the model's own logit below them."""
    cells = re.findall(r"│ ([\w. ']+?) +│ +([+-]\d+\.\d{4}) │", output)
    values = {name: float(value) for name, value in cells}

    total, own = values.pop("sum"), values.pop("the model's own")
    assert set(values) >= {"token", "head 0.0", "head 0.1", "head 1.0", "head 1.1"}
    assert sum(values.values()) == pytest.approx(total, abs=1e-3)
    assert total == pytest.approx(own, abs=2e-4)


def test_what_it_leaves_can_be_used(output: str, folder: Path) -> None:
    """A finished run whose model and tokenizer load, and three PNG files."""
    run = RunDir.open(folder / "demo")

    assert run.finished
    assert run.load_model().cfg.attn_only
    assert run.tokenizer().d_vocab == 281
    files = {file.name: file.read_bytes() for file in (run.path / "plots").iterdir()}
    assert set(files) == {"loss.png", "attention.png", "routes.png"}
    assert all(content.startswith(b"\x89PNG") for content in files.values())


def test_a_rerun_gives_the_same_run(output: str, folder: Path) -> None:
    """The demo replaces its own earlier run, and prints the same losses."""
    before = [row["loss"] for row in RunDir.open(folder / "demo").rows("loss")]
    again = printed(replace(SMALL, run_dir=str(folder)))

    assert [row["loss"] for row in RunDir.open(folder / "demo").rows("loss")] == before
    story = re.compile(r"3\. It writes.*4\. Every tensor", re.DOTALL)
    assert story.findall(again) == story.findall(output)


def test_somebody_elses_run_is_left_alone(tmp_path: Path) -> None:
    """A run of that name that no demo made is an error before any work, and stays."""
    cfg = Config(d_model=4, n_heads=1, n_layers=0, n_ctx=8, d_vocab=257)
    tokenizer = Tokenizer.train(["a"], 257)
    RunDir.create(tmp_path / "demo", cfg=cfg, tokenizer=tokenizer, args={}, data={})
    with pytest.raises(RunDirError, match="did not make.*--name"):
        printed(replace(SMALL, run_dir=str(tmp_path)))

    assert RunDir.open(tmp_path / "demo").cfg == cfg
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with pytest.raises(RunDirError, match="did not make.*--name"):
        printed(replace(SMALL, run_dir=str(tmp_path), name="notes"))


def test_own_text_of_a_few_lines_on_a_slow_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty numbered lines, with signs that no font has, go through; steps are cut, and told."""
    path = tmp_path / "own.txt"
    lines = [f"{i}. Die Kätzin \U0001f408 sah $5 und [b]{i * 7}[/b] Vögel." for i in range(60)]
    path.write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(learning, "pace", lambda *_: Pace(threads=1, steps=3))
    out = printed(
        replace(SMALL, data=str(path), run_dir=str(tmp_path), d_vocab=300, train_seconds=7.0)
    )

    assert "own: " in out
    assert "about 3 steps in 7 s: so many, not 6" in out
    assert len(list(RunDir.open(tmp_path / "demo").rows("loss"))) == 3
    assert re.search(r"(\d+) of \1 named tensors agree", out)
    assert "Done in" in out


def test_a_model_that_differs_from_the_reference_fails_the_demo() -> None:
    """A tensor that is not what the formulae give is an error that names the first wrong one."""
    cfg = Config(d_model=12, n_heads=2, n_layers=2, n_ctx=16, d_vocab=31, attn_only=True)
    model, out = Transformer(cfg, seed=0), io.StringIO()
    rows = t.randint(31, (2, 16), generator=t.Generator().manual_seed(0))
    with (
        listen(model, "blocks.1.attn.z", lambda _, x: 1.01 * x, edits=True),
        pytest.raises(CheckFailed, match="first wrong: blocks.1.attn"),
    ):
        demo.verify(Console(file=out), model, rows)

    assert "WRONG" in out.getvalue()
