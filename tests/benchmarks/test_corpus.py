"""The corpus benchmark: no two documents are equal, and memory is counted with the children's."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def corpus(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    yield importlib.import_module("corpus")
    del sys.modules["corpus"]


def test_no_two_documents_are_equal(corpus: Any, tmp_path: Path) -> None:
    """A file of the size that was asked for, and hardly more, of different stories."""
    path = tmp_path / "corpus.jsonl"
    count = corpus.write_corpus(path, 200_000)
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]

    assert len(texts) == len(set(texts)) == count > 100
    assert 200_000 <= path.stat().st_size < 203_000


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="there is no /proc here")
def test_memory_is_counted_with_the_childrens(corpus: Any) -> None:
    """A child that holds 64 MiB adds at least that to what its parent holds."""
    alone = corpus.resident_bytes(os.getpid())
    script = "x = b'x' * (64 << 20); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        together = corpus.resident_bytes(os.getpid())
        child.stdin.write(b"\n")
        child.stdin.close()
        child.wait()

    assert alone > 1 << 20
    assert together - alone > 60 << 20
    assert corpus.resident_bytes(child.pid) == 0


def test_a_command_that_fails_is_told(corpus: Any) -> None:
    """What a failed command said is in the error."""
    with pytest.raises(RuntimeError, match="ended with 3: no luck"):
        corpus.measure(
            [sys.executable, "-c", "import sys; sys.stderr.write('no luck'); sys.exit(3)"]
        )
