"""`pvml patch MODEL`: the library's numbers, in text of 80 columns and in JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pvml.cli.main import main
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.patching.metric import LogitDifference
from pvml.patching.result import Patched
from pvml.patching.sweep import patch_activations
from pvml.processing.rewrite import process
from pvml.runs.format import RunDir

CLEAN, CORRUPTED = "the cat sat on the", "the mat sat on the"
PROMPTS = ["--clean", CLEAN, "--corrupted", CORRUPTED]
TOKENIZER = Tokenizer.train(["the cat sat on the mat"] * 9, 277)


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of one model in the current folder: as it was drawn, and processed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    sizes: dict[str, Any] = {"d_model": 10, "n_heads": 2, "n_layers": 2, "n_ctx": 13}
    cfg = Config(**sizes, d_vocab=TOKENIZER.d_vocab, init_range=0.6)
    model = Transformer(cfg, seed=2)
    for name, one in (("plain", model), ("processed", process(model).model)):
        run = RunDir.create(f"runs/{name}", cfg=one.cfg, tokenizer=TOKENIZER, args={})
        run.save_checkpoint(1, one, {})


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the command; what it printed, or what it complained of."""

    def run(*words: str, code: int = 0) -> str:
        assert main(["patch", *words, "--device", "cpu"]) == code
        out, err = capsys.readouterr()
        if not code:
            assert all(len(line) <= 80 for line in out.splitlines() if "{" not in line)
        return out if not code else err

    return run


def test_the_numbers_are_the_librarys(told: Callable[..., str]) -> None:
    """As JSON, and in a file that can be read back; text shows the map and the largest."""
    words = ["runs/plain", *PROMPTS, "--answer", " cat", "--minus", " mat", "--over", "resid_pre"]
    found = json.loads(told(*words, "--json", "--save", "found.json"))
    model, tokenizer = RunDir.open("runs/plain").load_model("cpu"), TOKENIZER
    answer, wrong = (tokenizer.encode(text)[0] for text in (" cat", " mat"))
    tokens = tokenizer.to_tokens(CLEAN), tokenizer.to_tokens(CORRUPTED)
    wanted = patch_activations(
        model, *tokens, LogitDifference(answer=answer, wrong=wrong), over="resid_pre"
    )

    assert found["numbers"] == pytest.approx(wanted.numbers)
    assert Patched.load(Path("found.json")).numbers == tuple(found["numbers"])
    text = told(*words, "--top", "3", "--plot", "map.svg")
    for line in (
        "clean     0:'<|endoftext|>' 1:'the' 2:' cat' 3:' sat'",
        "rows: layer, columns: position",
        "layer 0, position 2 ' cat'/' mat'",
        f"and {len(found['numbers']) - 3} that change less",
        "picture: map.svg",
    ):
        assert line in text
    assert Path("map.svg").read_text().startswith("<?xml")


def test_the_answers_are_the_models_unless_given(told: Callable[..., str]) -> None:
    """Its first choices after each prompt; where they are one, the command asks for two."""
    with_both = told("plain", *PROMPTS, "--answer", " cat", "--minus", " mat")
    assert "logit of ' cat' minus logit of ' mat' at the last position" in with_both
    model = RunDir.open("runs/plain").load_model("cpu")
    first, other = (
        int(model(TOKENIZER.to_tokens(text))[0, 2].argmax()) for text in (CLEAN, CORRUPTED)
    )
    assert first != other
    found = json.loads(told("plain", *PROMPTS, "--position", "2", "--json"))
    names = [repr(TOKENIZER.decode([i])) for i in (first, other)]
    assert found["metric"] == f"logit of {names[0]} minus logit of {names[1]} at position 2 (nats)"
    same = told("plain", *PROMPTS, "--answer", " cat", "--minus", " cat", code=2)
    assert "both ' cat': give two with --answer and --minus" in same


def test_a_processed_model_says_so(told: Callable[..., str]) -> None:
    """In the title, under the map and in JSON, as the run's own weights say."""
    text = told("processed", *PROMPTS, "--answer", " cat", "--minus", " mat")
    assert " ".join(text.split()).lower().count("weights processed: fold_layer_norm, centre") == 2
    words = ["processed", *PROMPTS, "--answer", " cat", "--minus", " mat", "--json"]
    assert json.loads(told(*words))["processing"][0] == "fold_layer_norm"
    assert "processed" not in told("plain", *PROMPTS, "--answer", " cat", "--minus", " mat")


def test_circuits_and_trace_of_a_processed_model_say_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Their titles name the processing; of a model as it was drawn they say nothing."""
    for name, times in (("processed", 1), ("plain", 0)):
        for command in (["trace", name, "the"], ["circuits", name, "attention", "the"]):
            assert main([*command, "--device", "cpu"]) == 0
            assert capsys.readouterr().out.count("weights processed: fold_layer_norm") == times


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--clean", "the cat sat", "--corrupted", "the"], "has 4 tokens and the corrupted one 2"),
        (["--clean", "the cat", "--corrupted", "the cat"], "are the same"),
        (["--clean", "", "--corrupted", "the cat"], "--clean is empty"),
        ([*PROMPTS, "--over", "neurons"], "over must be heads or a tensor of a layer"),
        ([*PROMPTS, "--direction", "up"], "invalid choice"),
        ([*PROMPTS, "--position", "99"], "position 99 is not in a sequence of 6 tokens"),
        ([*PROMPTS, "--answer", "the cat"], "--answer 'the cat' is 2 tokens"),
        ([*PROMPTS, "--top", "0"], "--top must be at least 1"),
        ([*PROMPTS, "--save", "found.txt"], "--save must be the name of a .json file"),
        ([*PROMPTS, "--plot", "map.gif"], "--plot must end in .png or .svg"),
    ],
)
def test_bad_use(told: Callable[..., str], words: list[str], complaint: str) -> None:
    """A message and exit code 2, before anything is patched."""
    if "--answer" not in words:
        words = [*words, "--answer", " cat", "--minus", " mat"]
    assert complaint in told("plain", *words, code=2)
