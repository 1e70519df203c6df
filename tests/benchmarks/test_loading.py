"""The loading benchmark: the folder that it makes is a GPT-2 in shards, and growth is seen."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.config import Config
from pvml.loading import load_hugging_face

TINY = Config(d_model=6, n_heads=2, n_layers=2, n_ctx=5, d_vocab=11)


@pytest.fixture
def loading(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """benchmarks/loading.py, imported as a script in its folder would be."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module("loading")
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("peers", "card", "loading"):
            del sys.modules[name]


def test_the_folder_is_a_gpt2(
    loading: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several shards, an index, the type asked for, two tables: it loads as the shape it is of."""
    monkeypatch.setattr(loading, "_SHARD", 300)
    stored = loading.make_folder(tmp_path, TINY, t.bfloat16)
    model = load_hugging_face(tmp_path)

    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert model.cfg == TINY and model.dtype == t.bfloat16
    held = sum(x.numel() for x in model.parameters()) - TINY.d_vocab  # b_U is in no file
    assert stored == 2 * held
    assert not t.equal(model.unembed.W_U, model.embed.W_E.T)


def test_what_is_measured_is_told(loading: Any, tmp_path: Path) -> None:
    """Parameters, bytes and shards are the model's; a cast changes its bytes."""
    loading.make_folder(tmp_path, TINY, t.float32)
    found = loading.measure(str(tmp_path), "float16")

    assert found["parameters"] == sum(x.numel() for x in load_hugging_face(tmp_path).parameters())
    assert found["model_bytes"] == 2 * found["parameters"]
    assert (found["dtype"], found["shards"]) == ("float16", 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells RssAnon")
def test_growth_is_seen(root: Path) -> None:
    """Forty megabytes that are written to are seen."""
    # in a process of its own: of a large one the system may take as much away meanwhile
    code = """
import torch as t
from loading import sampled_growth

with sampled_growth() as grown:
    held = t.ones(10_000_000)
    while max(grown) < 3.9e7 and len(grown) < 10_000:
        held.add_(0)
print(max(grown) > 3.9e7)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root / "benchmarks")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"
