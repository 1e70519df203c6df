"""The golden figures of TinyStories, computed on the hub's data set and on small ones from here.

The small one is a folder in the place of the hub's repository, read by the same library, with
stories whose tokens can be counted by hand.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pvml.data.rows import Rows, pack
from pvml.data.sources import open_corpus
from pvml.data.statistics import corpus_statistics
from pvml.data.tokenised import Recipe, tokenise
from pvml.data.tokenizer import Tokenizer

Agree = Callable[[Any], None]
N_CTX = 128
OPENING, MORE = "Once upon a time", " the cat sat on the mat"
"""4 and 6 tokens."""


def whole_set(root: Path) -> dict[str, Any]:
    """root: where the tokens are kept, 2 bytes each."""
    recipe = Recipe(data="tinystories", held_out="tinystories:validation")
    made = tokenise(recipe, root, say=lambda line: None)
    rows = Rows(made.stream, N_CTX, made.tokenizer.bos_token_id)
    found = corpus_statistics([rows])
    empty = re.search(r"Empty documents skipped: ([\d,]+)", " ".join(made.notes))
    return {
        "stories": found.documents + (int(empty[1].replace(",", "")) if empty else 0),
        "tokens": found.tokens - 1,
        "rows": found.rows_tails_dropped,
        "stories_per_row": found.documents / found.rows,
    }


def story_lengths() -> dict[str, float]:
    corpus = open_corpus("tinystories", limit=20_000)
    found = corpus_statistics([pack(Tokenizer.gpt2(), corpus, N_CTX)])
    return {
        "mean": found.mean,
        "median": found.percentiles[50],
        "p90": found.percentiles[90],
        "p99": found.percentiles[99],
        "longest": found.longest,
        **{f"fit_{window}": found.fit[window] for window in (128, 512, 1024)},
    }


@pytest.mark.network
def test_whole_set(hub: None, tmp_path: Path, agree: Agree) -> None:
    """2,119,719 stories and 3,731,146 rows: downloads a gigabyte and takes some minutes."""
    agree(whole_set(tmp_path))


@pytest.mark.network
def test_story_lengths(hub: None, agree: Agree) -> None:
    """A story has about 222 tokens; one in twenty fits 128."""
    agree(story_lengths())


@pytest.fixture
def data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], None]:
    """Put a data set of stories with 4 + 6 k tokens in the hub's place; where k is -1, empty ones.

    Its validation part is one story.
    """
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    monkeypatch.setattr("pvml.data.sources.require_hub", lambda what, instead: None)
    monkeypatch.setattr("pvml.data.sources.offline", lambda: False)
    monkeypatch.setattr("pvml.data.sources.HUB_NAME", str(folder))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def put(counts: list[int]) -> None:
        stories = [OPENING + MORE * k if k >= 0 else " " for k in counts]
        for part, texts in (("train", stories), ("validation", ["The end."])):
            lines = [json.dumps({"text": text}) + "\n" for text in texts]
            (folder / f"{part}.jsonl").write_text("".join(lines))

    return put


def test_whole_set_offline(data_set: Callable[[list[int]], None], tmp_path: Path) -> None:
    """1,250 stories of 10 and 16 tokens and 3 empty ones, counted by hand in two thousands."""
    data_set([1, 2] * 625 + [-1] * 3)
    first, second = 500 * (10 + 16) + 999, 125 * (10 + 16) + 249

    assert whole_set(tmp_path) == {
        "stories": 1253,
        "tokens": first + second + 1,
        "rows": first // 127 + second // 127,
        "stories_per_row": 1250 / ((first + second + 2) // 127),
    }


def test_story_lengths_offline(data_set: Callable[[list[int]], None]) -> None:
    """Of a hundred stories 74 fit 128 tokens with BOS; one of 1,024 does not fit 1,024."""
    data_set([0] * 49 + [20] * 25 + [21] * 25 + [170])

    found = story_lengths()
    assert (found["mean"], found["longest"]) == (pytest.approx(75.7), 1024)
    assert (found["median"], found["p90"], found["p99"]) == (124, 130, pytest.approx(138.94))
    assert (found["fit_128"], found["fit_512"], found["fit_1024"]) == (0.74, 0.99, 0.99)
