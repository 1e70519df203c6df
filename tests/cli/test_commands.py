"""`pvml sample | trace | data`: what they print, and what they do with bad input."""

from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.cli.main import main
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.sampling.args import SamplingArgs
from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beams import beam_search
from pvml.sampling.sampler import Sampler

CPU = ["--device", "cpu"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """An unfinished run, runs/small, in the current folder."""
    monkeypatch.chdir(tmp_path)
    tokenizer = Tokenizer.train(["the cat sat on the mat"], 260)
    cfg = Config(d_model=11, n_heads=1, n_layers=2, n_ctx=7, d_vocab=tokenizer.d_vocab)
    run = RunDir.create("runs/small", cfg=cfg, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, Transformer(cfg, seed=3), {})
    for step in range(1, 6):
        run.log({"step": step, "epoch": 0, "loss": 5.0 / step, "seconds": 0.5 * step})
    return run


@pytest.mark.parametrize(
    "limit",
    [
        {"top_k": 3},
        {"top_p": 0.6},
        {
            "min_p": 0.1,
            "frequency_penalty": -0.5,
            "repetition_penalty": 1.2,
            "no_repeat_ngram_size": 3,
            "logit_bias": ((5, -2.5), (7, 1.0)),
            "banned_tokens": (9, 11),
            "stop": ("t", "\n"),
        },
    ],
)
def test_sample_prints_what_the_sampler_gives(
    run: RunDir, capsys: pytest.CaptureFixture[str], limit: dict[str, Any]
) -> None:
    """Flags reach the sampler: the same settings give the same text."""
    flags = ["--seed", "3", "--temperature", "0.5", "--max-new-tokens", "9"]
    for field, value in limit.items():
        for one in value if isinstance(value, tuple) else (value,):
            words = one if isinstance(one, tuple) else (one,)
            flags += [f"--{field.replace('_', '-')}", *map(str, words)]
    assert main(["sample", "runs/small", "the cat", *flags, *CPU]) == 0

    args = SamplingArgs(seed=3, temperature=0.5, max_new_tokens=9, **limit)
    expected = Sampler(run.load_model("cpu"), run.tokenizer()).sample("the cat", args)
    assert capsys.readouterr().out == f"{expected}\n"


def test_sample_explains_each_token(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """--explain: the text, then a table with a row for each token and the two likeliest others."""
    flags = ["--temperature", "0", "--max-new-tokens", "3", "--explain"]
    assert main(["sample", "runs/small", "the cat", *flags, *CPU]) == 0

    text, _, table = capsys.readouterr().out.partition("\n\n")
    args = SamplingArgs(temperature=0.0, max_new_tokens=3)
    assert text == Sampler(run.load_model("cpu"), run.tokenizer()).sample("the cat", args)
    heading, *rows = table.partition("\n\n")[0].splitlines()
    assert " ".join(heading.split()) == "token p rank chosen at entropy left else cut"
    assert len(rows) == 6
    assert all(row.endswith("greedy 259") for row in rows[::2])
    assert "No parts of the logit: the model has MLPs" in table


@pytest.mark.parametrize("prompt", [[], [""]])
def test_sample_without_a_prompt_begins_by_itself(
    run: RunDir, capsys: pytest.CaptureFixture[str], prompt: list[str]
) -> None:
    """An empty prompt, or none where nobody can be asked for one, is fine with BOS."""
    assert main(["sample", "runs/small", *prompt, "--temperature", "0", *CPU]) == 0

    greedy = Sampler(run.load_model("cpu"), run.tokenizer()).sample(
        "", SamplingArgs(temperature=0.0)
    )
    assert capsys.readouterr().out == f"{greedy}\n"
    assert main(["sample", "runs/small", *prompt, "--no-prepend-bos", *CPU]) == 2
    assert "pvml: an empty prompt leaves nothing" in capsys.readouterr().err


def test_sample_goes_on_from_any_word(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """No prompt is taken for the absence of one, whatever it says."""
    assert main(["sample", "runs/small", "None", "--max-new-tokens", "1", *CPU]) == 0
    assert capsys.readouterr().out.startswith("None")


BEAMS = ["--beams", "3", "--max-new-tokens", "5", "--no-repeat-ngram-size", "2"]


def test_sample_with_beams_prints_the_best_text(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """--beams: the text of the best score alone; with --explain, the tree of the search below."""
    flags = [*BEAMS, "--length-penalty", "1", "--early-stopping", "yes", "--no-prepend-bos"]
    assert main(["sample", "runs/small", "the cat", *flags, *CPU]) == 0
    plain = capsys.readouterr().out
    assert main(["sample", "runs/small", "the cat", *flags, "--explain", *CPU]) == 0
    explained = capsys.readouterr().out

    args = BeamArgs(
        num_beams=3,
        max_new_tokens=5,
        no_repeat_ngram_size=2,
        length_penalty=1.0,
        early_stopping=True,
        prepend_bos=False,
    )
    found = beam_search(run.load_model("cpu"), run.tokenizer(), "the cat", args)
    assert plain == f"{found[0].text}\n"
    assert explained.startswith(f"{plain}\n'the cat': 3 beams, 5 steps, ")


def test_sample_with_beams_prints_the_best_few(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """--n-best: a line for each text, best first, with its score."""
    assert main(["sample", "runs/small", "the cat", *BEAMS, "--n-best", "2", *CPU]) == 0

    args = BeamArgs(num_beams=3, max_new_tokens=5, no_repeat_ngram_size=2)
    found = beam_search(run.load_model("cpu"), run.tokenizer(), "the cat", args)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == [repr(one.text) for one in found[:2]]
    assert [float(line.split()[0]) for line in lines] == pytest.approx(
        [one.score for one in found[:2]], abs=5e-4
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature", "-1"], "temperature must be"),
        (["--max-new-tokens", "0"], "max_new_tokens must be"),
        (["--top-k", "2", "--top-p", "0.5"], "set at most one of top_k, top_p"),
        (["--beams", "-1"], "beams must be a whole number from 0 to 512"),
        (["--beams", "2", "--n-best", "3"], "n_best must be from 1 to beams, which is 2"),
        (["--beams", "2", "--length-penalty", "99"], "length_penalty must be"),
        (["--n-best", "2"], "n_best belongs to a beam search: give beams"),
        (["--beams", "2", "--top-k", "2", "--seed", "1"], "no use for --top-k and --seed"),
        (["--device", "warp"], "device 'warp' is not a device"),
    ],
)
def test_sample_refuses_nonsense(
    run: RunDir, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    """A value out of range is bad use, told with its limits."""
    assert main(["sample", "runs/small", "the", *flags]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", [["sample"], ["trace"]])
def test_an_unknown_model_is_told_what_there_is(
    run: RunDir, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """A MODEL that does not exist lists what a MODEL can be; the likeliest one is suggested."""
    assert main([*command, "smal", "text"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("pvml: MODEL 'smal' is not known: did you mean small? MODEL can be")


@pytest.mark.parametrize("command", [["sample"], ["trace"]])
def test_a_run_is_a_model_by_its_name(
    run: RunDir, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """NAME does what runs/NAME does."""
    printed = []
    for word in ("small", "runs/small"):
        greedy = ["--temperature", "0"] * (command == ["sample"])
        assert main([*command, word, "the cat", *greedy, *CPU]) == 0
        printed.append(capsys.readouterr().out)

    assert printed[0] == printed[1]


def test_trace_prints_every_tensor(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """The head names model, text and tokens; then each named tensor has its line, in order."""
    assert main(["trace", "runs/small", "the cat", *CPU]) == 0

    head, _, lines = capsys.readouterr().out.partition("\n\n")
    assert head.startswith(
        "small: the run in runs/small\ntext   'the cat'\ntokens ['<|endoftext|>'"
    )
    tags = [line.split("]")[0].strip("[") for line in lines.splitlines()]
    assert tags[0] == "embed"
    assert tags[-1] == "unembed"
    assert {"blocks.0.attn", "blocks.1.mlp", "ln_final"} <= set(tags)
    assert "W_Q" not in lines


def test_trace_shows_only_what_is_asked_for(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """--only takes a pattern, TransformerLens's names too; --weights adds the parameters."""
    main(["trace", "runs/small", "the", "--only", "blocks.1.attn.hook_q", "--weights", *CPU])

    lines = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    assert [line.split("]")[1].split(":")[0].strip() for line in lines] == ["W_Q", "b_Q", "q"]
    assert "(1, 11, 11)" in lines[0]


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("the", ["--only", "*.patern"], "did you mean"),
        ("the cat sat on the mat", [], "n_ctx of 7"),
    ],
)
def test_trace_refuses_what_it_cannot_show(
    run: RunDir, capsys: pytest.CaptureFixture[str], text: str, flags: list[str], message: str
) -> None:
    """A pattern that picks nothing and a text too long are bad use."""
    assert main(["trace", "runs/small", text, *flags, *CPU]) == 2
    assert message in capsys.readouterr().err


def test_data_shows_a_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows, a batch, the first row as text and the statistics of a file."""
    corpus = tmp_path / "tales.txt"
    corpus.write_text("<|endoftext|>".join(f"A cat saw {n} dogs." for n in range(23)))
    flags = ["--data", str(corpus), "--tokenizer", "bpe:280", "--n-ctx", "13", "--n-held-out", "3"]

    assert main(["data", *flags]) == 0

    out = capsys.readouterr().out
    assert "row length   : 13 tokens" in out
    assert "batch        : (4, 13)" in out
    assert "<|endoftext|>A cat saw " in out
    assert main(["data", "--data", str(tmp_path / "none.txt")]) == 2


def test_a_model_on_a_device_gets_its_tokens_there(run: RunDir) -> None:
    """--device reaches the model: on the CPU everything is found there."""
    assert main(["trace", "runs/small", "the", "--device", "cpu:0"]) == 0
    assert t.device("cpu:0").type == run.load_model("cpu").device.type


def test_a_device_that_holds_no_numbers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch's device without memory, and its retired words, are errors like any unknown one."""
    for device in ("meta", "mkldnn"):
        flags = ["--device", device, "--data", "storybook:20", "--run-dir", str(tmp_path / "runs")]

        assert main(["train", *flags]) == 2
        assert f"device '{device}' was asked for" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
