"""Tied tables (case 11): one tensor through saving, loading, import and a step of training."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch as t

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.loading import import_model, load
from pvml.modules.transformer import Transformer
from pvml.reference.huggingface import tiny_gpt2
from pvml.reference.names import convert_hugging_face
from pvml.runs.format import RunDir


def step(model: Transformer) -> None:
    """One step of an optimizer on everything that it trains."""
    optimizer = t.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    model(t.arange(7)[None]).logsumexp(-1).sum().backward()
    optimizer.step()


@pytest.fixture
def tied(tmp_path: Path, tokenizer: Any) -> RunDir:
    """A run with one table."""
    cfg = Config(d_model=12, n_heads=3, n_layers=1, n_ctx=7, d_vocab=260, tie_embeddings=True)
    run = RunDir.create(tmp_path / "tied", cfg=cfg, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, Transformer(cfg, seed=1), {})
    return run


def test_one_table_stays_one(tied: RunDir, tmp_path: Path) -> None:
    """Loaded, imported and loaded again, then trained: W_U is W_E's own memory, transposed."""
    imported = import_model(load(tied.path), tmp_path / "imported")
    for path in (tied.path, imported.path):
        model = load(path).model
        before = model.embed.W_E.detach().clone()
        step(model)

        assert model.unembed.W_U.data_ptr() == model.embed.W_E.data_ptr()
        assert t.equal(model.unembed.W_U, model.embed.W_E.T)
        assert not t.equal(model.embed.W_E, before)
        assert "unembed.W_U" not in {row.ours for row in load(path).report.rows}


def test_the_shape_decides_over_the_file(tied: RunDir) -> None:
    """Weights of one table in a run whose config says two lack one: an error, no silent tie."""
    path = tied.path / "config.json"
    config = json.loads(path.read_text())
    config["model"]["tie_embeddings"] = False
    path.write_text(json.dumps(config))

    with pytest.raises(PvmlError, match=r"missing: unembed\.W_U$"):
        load(tied.path)


def test_a_gpt2s_one_table_becomes_two(tmp_path: Path, tokenizer: Any) -> None:
    """Hugging Face's tied file: two tables here that start equal and are trained apart."""
    tiny_gpt2(d_vocab=260).save_pretrained(tmp_path)
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load(tmp_path)
    model = loaded.model

    assert t.equal(model.unembed.W_U, model.embed.W_E.T)
    total, own = sum(x.numel() for x in model.parameters()), 260 * 21 + 260
    assert any(f"{total - own:,} with one for both: it has two" in n for n in loaded.report.notes)
    step(model)
    assert not t.equal(model.unembed.W_U, model.embed.W_E.T)


def test_a_tied_shape_drops_the_second_copy() -> None:
    """Asked for one table, lm_head.weight becomes nothing of ours, and it is told why."""
    theirs = tiny_gpt2(d_vocab=53)
    cfg = Config(
        d_model=21, n_heads=3, n_layers=2, n_ctx=17, d_vocab=53, d_mlp=37, tie_embeddings=True
    )
    converted = convert_hugging_face(theirs.state_dict(), cfg)

    assert "unembed.W_U" not in converted.weights
    assert converted.ignored == {
        "lm_head.weight": "it is W_E once more, and this model has one table"
    }
