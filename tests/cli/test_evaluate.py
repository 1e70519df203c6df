"""`pvml evaluate`: a model's grades on a text, by any word that load and --data take."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch as t

import pvml.bundled
from pvml.cli.evaluate import _few_positions, _hardest
from pvml.cli.main import main
from pvml.config import Config
from pvml.data.sources import fingerprint_of
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.training.evaluation import DocumentGrades, bits_per_byte, grade_documents

STORIES = [f"The {word} sat on the red mat. 🙂" for word in ("cat", "dog", "bird", "fish")]
OTHERS = ["A hen ran.", "", "Oh no! The cat sat on the hen."]


def write(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """In the current folder, a run of one layer on the stories, and files of both texts."""
    monkeypatch.chdir(tmp_path)
    write(Path("stories.jsonl"), STORIES)
    write(Path("others.jsonl"), OTHERS)
    tokenizer = Tokenizer.train(STORIES, 270)
    sizes = {"d_model": 13, "n_heads": 3, "d_head": 5, "n_layers": 1, "n_ctx": 11}
    cfg = Config(**sizes, d_vocab=tokenizer.d_vocab, init_range=0.5)  # type: ignore[arg-type]
    data = {"fingerprint": fingerprint_of(STORIES), "held_out_documents": 1}
    run = RunDir.create("run", cfg=cfg, tokenizer=tokenizer, args={}, data=data)
    for step in (1, 2):
        run.save_checkpoint(step, Transformer(cfg, seed=step), {})
    return run


def told(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert main(["evaluate", *flags, "--device", "cpu", "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_the_grades_are_the_librarys(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """Bits per byte as training counts them; loss and accuracy per token; sizes of the text."""
    found = told(capsys, "run", "--data", "others.jsonl")
    model, tokenizer = run.load_model("cpu"), run.tokenizer()
    texts = [text for text in OTHERS if text]
    grades = grade_documents(model, tokenizer, texts)

    assert found["bits_per_byte"] == bits_per_byte(model, tokenizer, texts)
    assert (found["loss"], found["accuracy"]) == (grades.loss, grades.accuracy)
    assert found["tokens"] == sum(len(tokenizer.encode(text)) + 1 for text in texts)
    assert (found["documents"], found["bytes"], found["n_ctx"]) == (2, 40, 11)
    assert found["seconds"] > 0
    assert found["notes"] == ["Empty documents skipped: 1."]
    assert found["fingerprint"] == fingerprint_of(texts)
    assert len(found["loss_by_position"]) == 10


def test_any_model_limit_and_window(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint has its own grades; --limit takes the first documents, --n-ctx cuts shorter."""
    flags = ["--data", "others.jsonl", "--limit", "1", "--n-ctx", "5"]
    found = told(capsys, "run/checkpoints/step-1", *flags, "--batch-size", "1")
    grades = grade_documents(run.load_model("cpu", step=1), run.tokenizer(), OTHERS[:1], 1, 5)

    assert found["loss"] == grades.loss
    assert (found["documents"], found["n_ctx"]) == (1, 5)
    assert told(capsys, "run", *flags)["loss"] != grades.loss


def test_the_grades_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json: a line for each grade, losses at some positions, and the hardest tokens."""
    found = told(capsys, "run", "--data", "stories.jsonl")
    assert main(["evaluate", "run", "--data", "stories.jsonl", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]

    assert f"bits/byte  {found['bits_per_byte']:.4f}\n" in out
    assert f"loss       {found['loss']:.4f} nats/token\n" in out
    assert f"accuracy   {found['accuracy']:.4f}\n" in out
    assert "text       stories.jsonl: 4 documents, 130 bytes\n" in out
    assert [row[0] for row in rows if row and row[0].isdigit()] == ["1", "2", "4", "8", "10"]
    assert rows[[row[:1] for row in rows].index(["10"])][:2] == ["10", "4"]
    hardest = found["hardest_tokens"][0]
    assert f"{hardest['token']!r:<13}" in out and f"{hardest['share_of_loss']:.1%}" in out


@pytest.mark.parametrize(
    ("data", "notes"),
    [
        ({}, ["trained on this text, but for the 1 documents that it held out: its grades"]),
        ({"held_out": "others.jsonl"}, ["The run was trained on this text: its grades here"]),
        ({"fingerprint": "another"}, []),
    ],
)
def test_text_that_was_trained_on_is_told(
    run: RunDir, data: dict[str, Any], notes: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that read this very text is flattered by it, whichever of its checkpoints is graded."""
    config = {**run.config, "data": {**run.data, **data}}
    (run.path / "config.json").write_text(json.dumps(config))
    for model in ("run", "run/checkpoints/step-1"):
        found = told(capsys, model, "--data", "stories.jsonl")["notes"]
        assert [note in text for note, text in zip(notes, found, strict=True)] == [True] * len(
            notes
        )


@pytest.mark.parametrize(
    ("source", "data", "shared"),
    [
        ("stories.jsonl", "stories.jsonl", True),
        ("./stories.jsonl", "link.jsonl", True),
        (".", "stories.jsonl", True),
        ("stories.jsonl", "others.jsonl", False),
        ("gone.jsonl", "stories.jsonl", False),
        ("storybook", "storybook:5", True),
        ("storybook:5", "storybook:5", True),
        ("tinystories", "storybook:5", False),
        (None, "stories.jsonl", False),
        (7, "stories.jsonl", False),
    ],
)
def test_documents_of_the_training_texts_source_are_told(
    run: RunDir, source: Any, data: str, shared: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part of what was trained on, as --limit takes it, is recognised by where it comes from."""
    Path("link.jsonl").symlink_to("stories.jsonl")
    config = {**run.config, "data": {**run.data, "source": source}}
    (run.path / "config.json").write_text(json.dumps(config))
    found = told(capsys, "run", "--data", data, "--limit", "2")["notes"]

    told_so = [
        f"The run was trained on documents of {source}, but for the 1 documents that it held out, "
        f"and these are from there, too: its grades on what it has read flatter it."
    ]
    assert [note for note in found if "The run" in note] == told_so * shared


def test_a_run_by_its_name_is_recognised_too(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """NAME is the run in runs, to the grades and to the note on its text."""
    Path("runs").mkdir()
    run.path.rename("runs/mine")
    found = told(capsys, "mine", "--data", "stories.jsonl")

    assert found["source"] == "the run in runs/mine"
    assert ["trained on this text" in note for note in found["notes"]] == [True]


def test_a_bundled_model_is_recognised_by_its_name(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The very text, and documents of its source, are told of a bundled model as of a run.

    A run of its name in runs goes before it, as it does when the model is loaded.
    """
    monkeypatch.setattr(pvml.bundled, "FOLDER", Path("bundled"))
    config = {**run.config, "data": {**run.data, "source": "stories.jsonl"}}
    (run.path / "config.json").write_text(json.dumps(config))
    shutil.copytree("run", "bundled/mine")
    for flags, note in (
        ([], "trained on this text"),
        (["--limit", "2"], "trained on documents of stories.jsonl"),
    ):
        found = told(capsys, "mine", "--data", "stories.jsonl", *flags)
        assert found["source"] == "the bundled model mine"
        assert [one for one in found["notes"] if note in one]
    shutil.copytree("run", "runs/mine")
    (Path("runs/mine") / "config.json").write_text(json.dumps({**run.config, "data": {}}))
    assert told(capsys, "mine", "--data", "stories.jsonl")["notes"] == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["run", "--data", "nowhere.txt"], "there is no corpus 'nowhere.txt'"),
        (["run", "--data", "empty.jsonl"], "empty.jsonl holds no document"),
        (["nobody", "--data", "others.jsonl"], "MODEL 'nobody' is not known"),
        (["run", "--data", "others.jsonl", "--n-ctx", "12"], "at most 11"),
        (["run", "--data", "others.jsonl", "--n-ctx", "1"], "no room for a token behind BOS"),
        (["run", "--data", "others.jsonl", "--limit", "0"], "limit must be at least 1"),
        (["run", "--data", "others.jsonl", "--batch-size", "0"], "at least 1 window, got 0"),
        (["run"], "--data"),
    ],
)
def test_bad_use_is_told(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be graded is an error in words, with 2, and nothing on stdout."""
    write(Path("empty.jsonl"), ["", " "])
    assert main(["evaluate", *flags]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""


def test_the_hardest_tokens_by_hand() -> None:
    """The highest means of tokens seen ten times or more; of rarer ones only where all are rare."""
    tokenizer = Tokenizer.train(["ab"], 257)
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    counts, nats = t.zeros(257, dtype=t.int64), t.zeros(257, dtype=t.float64)
    counts[[a, b, c]] = t.tensor([10, 20, 9])
    nats[[a, b, c]] = t.tensor([30.0, 20.0, 50.0]).double()

    def grades() -> DocumentGrades:
        of_all = {"documents": 1, "n_bytes": 39, "hits": 0}
        places = {"nats_by_position": nats.sum()[None], "count_by_position": counts.sum()[None]}
        return DocumentGrades(**of_all, **places, nats_by_token=nats, count_by_token=counts)

    assert _hardest(grades(), tokenizer) == [
        {"token": "a", "id": a, "times": 10, "loss": 3.0, "share_of_loss": 0.3},
        {"token": "b", "id": b, "times": 20, "loss": 1.0, "share_of_loss": 0.2},
    ]
    counts[[a, b]] = 0
    assert [token["token"] for token in _hardest(grades(), tokenizer)] == ["c"]


@pytest.mark.parametrize(
    ("counts", "positions"),
    [([3], [1]), ([3, 1, 0, 0], [1, 2]), ([1] * 9, [1, 2, 4, 8, 9]), ([1] * 7, [1, 2, 4, 7])],
)
def test_a_few_positions(counts: list[int], positions: list[int]) -> None:
    """Powers of two and the last position at which a token stood."""
    assert _few_positions(counts) == positions
