"""`pvml compare`: the texts and the table, in the terminal, as JSON and as a page."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch as t

from pvml.cli.compare import CompareFlags, Writer, prompt_told
from pvml.cli.compare_page import fenced, page, table
from pvml.cli.main import main
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.runs.weights import save_weights
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler
from pvml.sampling.stories import Figures, Story

FEW = ["--max-new-tokens", "9", "--n-seeds", "2", "--device", "cpu"]


def make(path: str, n_vocab: int, n_ctx: int = 31) -> RunDir:
    tokenizer = Tokenizer.train(["the cat sat on the mat, and the dog sat on the rug"], n_vocab)
    cfg = Config(d_model=11, n_heads=1, n_layers=1, n_ctx=n_ctx, d_vocab=tokenizer.d_vocab)
    run = RunDir.create(path, cfg=cfg, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, Transformer(cfg, seed=3), {})
    return run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunDir, RunDir]:
    """In the current folder, runs/one and runs/two, whose tokenizers differ."""
    monkeypatch.chdir(tmp_path)
    return make("runs/one", 260), make("runs/two", 265)


def test_the_settings_are_the_seeds() -> None:
    """Two prompts, temperature 0.7, top-p 0.95, seeds 0 to 4, at most 250 tokens."""
    flags = CompareFlags(models=("m",))

    assert flags.prompts == ("Once upon a time", "Lily went to the park and saw")
    assert flags.settings() == ("Temperature 0.7, top-p 0.95, at most 250 new tokens, seeds 0 to 4")
    plain = SamplingArgs(seed=3, top_k=4, prepend_bos=False)
    one = CompareFlags(models=("m",), prompt=("a", "b", "a"), n_seeds=1, sampling=plain)
    assert one.prompts == ("a", "b")
    assert one.settings() == "Temperature 1.0, top-k 4, no BOS, at most 50 new tokens, seed 3"
    more = CompareFlags(models=("m",), sampling=SamplingArgs(seed=0, min_p=0.1, stop=("x",)))
    assert more.settings().startswith("Temperature 1.0, min p 0.1, stop ('x',), at most")


def test_lines_of_json_hold_every_story(
    runs: tuple[RunDir, RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each model's line has its texts as the sampler gives them, and figures that follow."""
    assert main(["compare", "runs/one", "runs/two", "--prompt", "the", *FEW, "--json"]) == 0

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["model"], line["tokenizer"]) for line in lines] == [
        ("one", "bpe:260"),
        ("two", "bpe:265"),
    ]
    for run, line in zip(runs, lines, strict=True):
        sampler = Sampler(run.load_model("cpu"), run.tokenizer())
        for story, seed in zip(line["written"], (0, 1), strict=True):
            args = SamplingArgs(max_new_tokens=9, temperature=0.7, top_p=0.95, seed=seed)
            assert "the" + story["text"] == sampler.sample("the", args)
        assert line["tokens"] == sum(story["tokens"] for story in line["written"]) / 2
        assert line["ended"] == sum(story["ended"] for story in line["written"]) / 2
    assert lines[0]["settings"] == lines[1]["settings"]


def test_texts_stand_side_by_side(
    runs: tuple[RunDir, RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal two models fit in a row; then the table has a line for each."""
    assert main(["compare", "runs/one", "runs/two", "--prompt", "the cat", *FEW]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:2] == ["Temperature", "0.7,"]
    assert ["the", "cat", "..."] in lines and ["one", "two"] in lines
    heads = next(line for line in lines if line[:1] == ["model"])
    assert " ".join(heads) == "model n_ctx stories ended stuck repeated 4-grams tokens bytes"
    assert [line[:3] for line in lines if line[1:3] == ["31", "2"]] == [
        ["one", "31", "2"],
        ["two", "31", "2"],
    ]


def test_one_model_is_fine(runs: tuple[RunDir, RunDir], capsys: pytest.CaptureFixture[str]) -> None:
    """A model alone gets its texts and figures, as many texts as are asked for, or none."""
    assert main(["compare", "runs/one", *FEW, "--n-texts", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("Seed 0: ") == out.count("Seed 1: ") == 2
    assert main(["compare", "runs/one", *FEW, "--n-texts", "0"]) == 0
    out = capsys.readouterr().out
    assert "Seed" not in out and "one" in out


def test_two_runs_of_one_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Runs that are called the same are told apart by their paths."""
    given = [str(make(str(tmp_path / folder / "same"), 260).path) for folder in "ab"]

    assert main(["compare", *given, "--prompt", "a", *FEW, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["model"] for line in lines] == given


def test_the_page(runs: tuple[RunDir, RunDir]) -> None:
    """The page has the command, the table, and for each prompt every model's text."""
    arguments = ["runs/one", "runs/two", "--prompt", "the cat", *FEW, "--page", "p.md"]
    assert main(["compare", *arguments]) == 0

    page = Path("p.md").read_text("utf-8")
    assert page.startswith("# Samples compared\n\nWritten by `pvml compare runs/one runs/two ")
    assert "| model | n_ctx | stories | ended |" in page
    places = [page.index(part) for part in ("## the cat ...", "### one", "### two")]
    assert places == sorted(places)
    assert page.count("```text\n") == 2 and page.endswith("\n```\n")


def a_writer(text: str, n_ctx: int = 128) -> Writer:
    tokenizer = Tokenizer.train(["the cat sat on the mat"], 257)
    ids = tuple(tokenizer.encode(text))
    story = Story(prompt="p", seed=7, text=text, ids=ids, ended=True, seconds=1.0)
    numbers = {"ended": 0.7, "stuck": 0.3, "repeated_4grams": 0.0456}
    lengths = {"tokens": 150.4, "n_bytes": 1234.6, "tokens_per_second": 9.0}
    return Writer(
        name="a|b",
        source="",
        n_ctx=n_ctx,
        tokenizer=tokenizer,
        stories=[story],
        figures=Figures(stories=10, **numbers, **lengths),
    )


def test_how_much_of_a_story_is_shown() -> None:
    """Whole where the window holds it; else its first 60 tokens, or as many as asked for."""
    text = "x" * 70
    flags = CompareFlags(models=("m",))

    assert a_writer(text, 512).told("p", flags) == [("Seed 7: 70 tokens, ended by itself", text)]
    short = [("Seed 7: first 60 of 70 tokens, ended by itself", text[:60])]
    assert a_writer(text, 128).told("p", flags) == short
    two = CompareFlags(models=("m",), text_tokens=3)
    assert a_writer(" xé" + text).told("p", two)[0][1] == "x"  # not half of the é


def test_markdown_that_stays_whole() -> None:
    """A name with a bar stays in its cell; a text with a fence in its block; lines are short."""
    assert table([a_writer("x")]).splitlines()[2] == (
        r"| a\|b | 128 | 10 | 70% | 30% | 4.6% | 150 | 1235 |"
    )
    assert fenced("a ```` b\n\nc") == "`````text\na ```` b\n\nc\n`````"
    assert max(map(len, fenced("word " * 99).splitlines())) <= 80


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "compare takes one MODEL or more"),
        (["runs/one", "nobody"], "MODEL 'nobody' is not known"),
        (["runs/one", "--n-seeds", "0"], "--n-seeds must be at least 1, got 0"),
        (["runs/one", "--n-texts", "-1"], "--n-texts must be at least 0, got -1"),
        (["runs/one", "--text-tokens", "0"], "--text-tokens must be at least 1, got 0"),
        (["runs/one", "--seed", "None"], "give --seed a number"),
        (["runs/one", "--page", "no/p.md"], "there is no folder no for the page"),
        (["runs/one", "--page", "runs"], "runs is a folder"),
        (["runs/one", "--page", "new/"], "--page ends in /, as a folder's path"),
        (["runs/one", "--page=new/"], "--page ends in /, as a folder's path"),
        (["runs/one", "--page", "pipe"], "pipe is a pipe, and is left as it is"),
        (["runs/one", "--page", "/proc/x.md"], "/proc/x.md could not be written"),
        (["runs/one", "--n-seeds", "100001"], "--n-seeds must be at most 100,000 from --seed 0 on"),
        (["runs/one", "--seed", str(2**63 - 2), "--n-seeds", "3"], "--n-seeds must be at most 2 "),
        (["runs/one", "runs/two", "runs/one"], "runs/one is given twice"),
        (["runs/one", "runs/two", "one"], "runs/one and one are both the run in runs/one"),
        (["runs/one", "--top-k", "5"], "set at most one of top_k, top_p"),
    ],
)
def test_bad_use(
    runs: tuple[RunDir, RunDir],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    told: str,
) -> None:
    """What makes no sense is told before anything is written, with 2."""
    os.mkfifo("pipe")
    monkeypatch.setattr(Sampler, "complete", None)
    assert main(["compare", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == "" and told in " ".join(err.split())
    assert sorted(os.listdir()) == ["pipe", "runs"]


def test_a_model_that_cannot_write_is_named(
    runs: tuple[RunDir, RunDir], capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights that are no numbers are a fault of the one model that has them."""
    model = runs[1].load_model("cpu")
    with t.no_grad():
        model.unembed.W_U.fill_(float("nan"))
    save_weights(model, runs[1].path / "model.safetensors")
    (runs[1].path / "checkpoints/latest").unlink()
    assert main(["compare", "runs/one", "runs/two", *FEW]) == 2

    assert "two: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("", "(no prompt)"),
        ("\t", r"'\t'"),
        ("a ", "'a '"),
        ("a\nb", r"'a\nb'"),
        ("\x1b[2J", r"'\x1b[2J'"),
        ("Zoé <3", "Zoé <3"),
    ],
)
def test_prompts_are_told_apart(prompt: str, told: str) -> None:
    """A prompt is itself, unless some of it would not be seen: then it stands in quotes."""
    assert prompt_told(prompt) == told


@pytest.mark.parametrize(
    "word", ["a", "a b", "`x`", "``", "a\nb", "```\n# x", "it's\n", "\t\\", "\x1b[0m", "é\u200b"]
)
def test_the_pages_command_is_one_line_that_a_shell_reads(word: str) -> None:
    """Whatever is in a prompt, bash gets it back from the page's code."""
    first, command, _ = page([], CompareFlags(models=("m",)), ["printf", "%s", word]).split(
        "\n\n", 2
    )
    span = command.removeprefix("Written by ").removesuffix(".")
    fence = span[: len(span) - len(span.lstrip("`"))]
    line = span[len(fence) : -len(fence)].strip()

    assert first == "# Samples compared" and "\n" not in span and fence not in line
    read = subprocess.run(["bash", "-c", line], capture_output=True, check=True, text=True)
    assert read.stdout == word


def test_hostile_prompts_stay_data_on_the_page() -> None:
    """Markup in a prompt or name is escaped, and control characters become their escapes."""
    prompt = "<script>`*|_ [x](y)"
    flags = CompareFlags(models=("m",), prompt=(prompt, "a\x1b\nb"))
    lines = page([a_writer("x\x1b[0m\ty")], flags, ["pvml"]).splitlines()

    assert r"## \<script\>\`\*\|\_ \[x\](y) ..." in lines
    assert r"## 'a\\x1b\\nb' ..." in lines
    assert r"### a\|b" in lines
    assert fenced("x\x1b[0m\ty\n\n```") == "````text\nx\\x1b[0m   y\n\n```\n````"
