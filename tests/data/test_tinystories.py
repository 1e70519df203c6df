"""The seeds' loaders and the command that shows what they give."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch as t

import pvml.data
from pvml.config import Config
from pvml.data.rows import pack
from pvml.data.split import split_documents
from pvml.data.tinystories import main, tinystories_loaders
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError

DOCUMENTS = [f"The {n}th bird sat on tree {n * n}." for n in range(211)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(DOCUMENTS, 277)


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write(tmp_path / "birds.jsonl", DOCUMENTS))


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def config(n_ctx: int = 23, d_vocab: int = 277) -> Config:
    return Config(n_ctx=n_ctx, d_vocab=d_vocab)


# Laws


def test_both_loaders_together_read_the_corpus(data: str, tokenizer: Tokenizer) -> None:
    """One pass over each loader visits every row of its documents once, in the seeds' shape."""
    train, test = tinystories_loaders(config(), tokenizer, data, batch_size=7, n_held_out=31)
    sides = split_documents(DOCUMENTS, 31, seed=0)
    for loader, documents in zip((train, test), sides, strict=True):
        batches = [batch["tokens"] for batch in loader]
        rows = pack(tokenizer, documents, 23)
        expected = {tuple(rows[row]["tokens"].tolist()) for row in range(len(rows))}
        assert {tuple(row) for batch in batches for row in batch.tolist()} == expected
        assert batches[0].shape == (7, 23)
        assert len(batches) == len(loader)


def test_the_test_loader_reads_each_row_once_in_order(data: str, tokenizer: Tokenizer) -> None:
    """Its last batch may be short: no row is dropped and none is read twice."""
    _, test = tinystories_loaders(config(), tokenizer, data, batch_size=7, n_held_out=31)
    rows = pack(tokenizer, split_documents(DOCUMENTS, 31, seed=0)[1], 23)

    assert t.equal(t.cat([batch["tokens"] for batch in test]), rows.batch(range(len(rows))))


# a machine with one core is told that two workers are more than it has
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")
def test_workers_change_no_batch(data: str, tokenizer: Tokenizer) -> None:
    """Batches fetched by two processes are those fetched by this one, in the same order."""
    alone, shared = (
        tinystories_loaders(config(), tokenizer, data, batch_size=7, n_held_out=31, workers=n)
        for n in (0, 2)
    )
    for one, two in zip(alone, shared, strict=True):
        assert t.equal(
            t.cat([batch["tokens"] for batch in one]), t.cat([batch["tokens"] for batch in two])
        )


def test_the_held_out_documents_survive_reordering(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The corpus in another order, cut to another n_ctx, holds out the same documents."""
    texts = []
    for seed, n_ctx in ((1, 5), (2, 11)):
        shuffled = random.Random(seed).sample(DOCUMENTS, len(DOCUMENTS))
        path = write(tmp_path / f"{seed}.jsonl", shuffled)
        _, test = tinystories_loaders(config(n_ctx), tokenizer, str(path), n_held_out=7)
        stream = t.cat([batch["tokens"][:, 1:].flatten() for batch in test])
        texts.append(set(tokenizer.decode(stream).split("<|endoftext|>")[:-1]))

    assert all(len(held_out) >= 6 for held_out in texts)  # the remainder may cut the last one
    assert texts[0] | texts[1] <= set(split_documents(DOCUMENTS, 7, seed=0)[1])


# Contracts


def test_the_listing(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints rows, row length, a batch, the first row as text, then statistics."""
    flags = ["--data", data, "--tokenizer", "bpe:277", "--n-ctx", "23", "--n-held-out", "31"]
    assert main(flags) == 0
    first = capsys.readouterr().out
    assert main(flags) == 0

    assert capsys.readouterr().out == first
    lines = first.splitlines()
    train, held_out = split_documents(DOCUMENTS, 31, seed=0)
    tokenizer = Tokenizer.train(train, 277)
    rows = pack(tokenizer, train, 23)
    assert lines[:4] == [
        f"train rows   : {len(rows)}",
        f"test rows    : {len(pack(tokenizer, held_out, 23))}, of 31 documents held out whole",
        "row length   : 23 tokens",
        "batch        : (4, 23)  keys=['tokens']",
    ]
    assert tokenizer.decode(rows[0]["tokens"]) in first
    assert "corpus              : birds, tokenizer bpe:277" in lines
    assert "documents           : 211" in lines


def test_the_module_runs_without_a_warning(data: str) -> None:
    """`python -m pvml.data.tinystories` runs with warnings as errors."""
    command = [sys.executable, "-W", "error", "-m", "pvml.data.tinystories", "--data", data]
    done = subprocess.run(
        [*command, "--n-held-out", "101", "--tokenizer", "bpe:277"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "row length   : 128 tokens" in done.stdout


def test_bad_use_ends_with_two(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing file, a bad tokenizer or too few documents: the reason on stderr, exit code 2."""
    for flags, reason in (
        (["--data", str(tmp_path / "none.txt")], "there is no corpus"),
        (["--data", data, "--tokenizer", "gpt9", "--n-held-out", "3"], "tokenizer 'gpt9'"),
        (["--data", data, "--n-held-out", "211"], "cannot hold out 211 of 211 documents"),
    ):
        assert main(flags) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("pvml: ") and reason in printed.err
        assert printed.out == ""


def test_a_model_too_small_for_the_ids_is_refused(data: str, tokenizer: Tokenizer) -> None:
    """A d_vocab below the tokenizer's would meet ids outside its table: refused beforehand."""
    with pytest.raises(PvmlError, match="d_vocab 263, and tokenizer bpe:277 gives ids up to 276"):
        tinystories_loaders(config(d_vocab=263), tokenizer, data)


def test_the_package_imports_nothing_by_itself() -> None:
    """`import pvml.data` loads neither torch nor tokenizers."""
    script = (
        "import sys, pvml.data; "
        "print([n for n in ('torch', 'tokenizers', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"


def test_the_package_finds_its_names() -> None:
    """Every public name is found where it lives; a misspelt one is an AttributeError."""
    assert pvml.data.tinystories_loaders is tinystories_loaders
    assert all(hasattr(pvml.data, name) for name in pvml.data.__all__)
    assert set(pvml.data.__all__) <= set(dir(pvml.data))
    with pytest.raises(AttributeError, match="no attribute 'Bathces'"):
        _ = pvml.data.Bathces
