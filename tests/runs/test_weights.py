"""Weights in a file: every one accounted for, only tensors read, the seeds' form too."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch as t
from safetensors.torch import load_file, save_file

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import RunDirError
from pvml.modules.transformer import Transformer
from pvml.runs.format import RunDir
from pvml.runs.weights import build_model, empty_model, parameter_totals

CFG = Config(d_model=12, n_heads=3, n_layers=2, n_ctx=11, d_vocab=263)


def model_at(step: int) -> Transformer:
    return Transformer(CFG, seed=step)


def same(a: Transformer, b: Transformer) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(t.equal(ours[k], theirs[k]) for k in ours)


# By hand


@pytest.mark.parametrize(("tied", "total"), [(False, 163_087_441), (True, 124_439_808)])
def test_parameters_of_gpt2_small(tied: bool, total: int) -> None:
    """GPT-2 small has 163,087,441 parameters, 124,439,808 with one table; 85,056,000 besides."""
    model = empty_model(Config(tie_embeddings=tied))

    assert parameter_totals(model) == {"total": total, "non_embedding": 85_056_000}


def test_the_seeds_runs_have_their_published_sizes() -> None:
    """d128, 6 layers, 4 heads: 14,122,321 parameters at n_ctx 128, 14,171,473 at 512."""
    for n_ctx, total in ((128, 14_122_321), (512, 14_171_473)):
        cfg = Config(d_model=128, n_layers=6, n_heads=4, n_ctx=n_ctx)
        assert parameter_totals(empty_model(cfg))["total"] == total


# Contracts: weights that are not this model's (cases 9 and 13)


def test_every_wrong_name_is_listed() -> None:
    """All missing and all unexpected names are listed, sorted."""
    weights = model_at(1).state_dict()
    for name in ("attn.W_Q", "mlp.b_in", "ln1.w"):
        weights[f"blocks.0.{name}s"] = weights.pop(f"blocks.0.{name}")
    with pytest.raises(RunDirError) as caught:
        build_model(CFG, weights, "somewhere", t.device("cpu"))

    assert str(caught.value) == (
        "somewhere does not hold this model's weights. "
        "missing: blocks.0.attn.W_Q, blocks.0.ln1.w, blocks.0.mlp.b_in; "
        "unexpected: blocks.0.attn.W_Qs, blocks.0.ln1.ws, blocks.0.mlp.b_ins"
    )


def test_only_the_seeds_buffers_are_tolerated() -> None:
    """`mask` and `IGNORE` are left out; any other buffer is unexpected."""
    weights = model_at(1).state_dict()
    weights["blocks.0.attn.mask"] = weights["blocks.1.attn.IGNORE"] = t.tensor(0.0)
    assert same(build_model(CFG, weights, "somewhere", t.device("cpu")), model_at(1))
    for name in ("blocks.0.attn.bias", "blocks.0.attn.masks", "blocks.0.mask.W", "IGNORED"):
        with pytest.raises(RunDirError, match=f"unexpected: {name}$"):
            build_model(CFG, {**weights, name: t.tensor(0.0)}, "somewhere", t.device("cpu"))


def test_the_wrong_number_of_heads_is_refused() -> None:
    """Weights for 3 heads of 4 do not fill 4 heads of 3, although their sizes agree."""
    weights = model_at(1).state_dict()
    four = Config.from_dict({**CFG.to_dict(), "n_heads": 4, "d_head": 3})
    with pytest.raises(RunDirError, match=r"W_K \(3, 12, 4\) instead of \(4, 12, 3\)"):
        build_model(four, weights, "somewhere", t.device("cpu"))


def test_a_misspelt_weight_in_a_run_is_refused(tmp_path: Path) -> None:
    """A weight renamed in a run's file is listed as missing and as unexpected when it is loaded."""
    tokenizer = Tokenizer.train(["the cat sat on the mat"] * 3, 263)
    run = RunDir.create(tmp_path / "run", cfg=CFG, tokenizer=tokenizer, args={})
    run.save_checkpoint(1, model_at(1), {})
    path = run.path / "model.safetensors"
    weights = load_file(path)
    weights["blocks.0.attn.W_q"] = weights.pop("blocks.0.attn.W_Q")
    path.unlink()
    save_file(weights, path)
    with pytest.raises(
        RunDirError, match=r"missing: blocks\.0\.attn\.W_Q; unexpected: blocks\.0\.attn\.W_q$"
    ):
        run.load_model()


# Contracts: the seeds' older form


@pytest.fixture
def seeds_run(tmp_path: Path) -> Path:
    """A run as the seeds' code wrote it: debug in the model's fields, buffers in the weights."""
    path = tmp_path / "old"
    path.mkdir()
    config = {"args": {"batch_size": 32}, "model": {**CFG.to_dict(), "debug": True}}
    for newer in ("attn_only", "positions", "normalization", "tie_embeddings"):
        del config["model"][newer]
    (path / "config.json").write_text(json.dumps(config))
    state = model_at(3).state_dict()
    for layer in range(CFG.n_layers):
        state[f"blocks.{layer}.attn.IGNORE"] = t.tensor(float("-inf"))
        state[f"blocks.{layer}.attn.mask"] = t.ones(11, 11, dtype=t.bool).tril()
    t.save(state, path / "model.pt")
    return path


def test_the_seeds_older_form_is_read(seeds_run: Path) -> None:
    """model.pt with IGNORE and mask buffers fills the model; the tokenizer is GPT-2's."""
    run = RunDir.open(seeds_run)
    model = run.load_model()

    assert run.is_seeds_form and same(model, model_at(3)) and not model.cfg.debug
    assert run.tokenizer().name == run.tokenizer_name == "gpt2"
    with pytest.raises(RunDirError, match="holds no checkpoint"):
        run.load_checkpoint()


class Harmful:
    """A pickle of it runs a command when it is loaded by a careless reader."""

    def __reduce__(self) -> Any:
        return (os.system, ("touch harmed",))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_foreign_pickles_are_refused(
    seeds_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model.pt with code in it is refused with a message, and the code never runs."""
    monkeypatch.chdir(tmp_path)
    for content, message in (
        (Harmful(), r"model\.pt is damaged, or holds more than tensors and plain values"),
        ([1, 2], "does not hold a state dict"),
        ({"blocks": 3}, "does not hold a state dict: expected tensors by name$"),
        ({"W": t.nested.nested_tensor([t.ones(2)])}, "does not hold a state dict"),
        ({"step": 3, "model": {"W": t.ones(2)}}, "Its entry 'model' is one: load the file with"),
    ):
        t.save(content, seeds_run / "model.pt")
        with pytest.raises(RunDirError, match=message):
            RunDir.open(seeds_run).load_model()
    for damaged, message in (
        (b"", "cut short: it is empty"),
        (b"no pickle", "damaged, or holds more than tensors"),
        ((seeds_run / "model.pt").read_bytes()[:100], "it has 100 bytes, and torch's archive goes"),
    ):
        (seeds_run / "model.pt").write_bytes(damaged)
        with pytest.raises(RunDirError, match=rf"model\.pt is .*{message}"):
            RunDir.open(seeds_run).load_model()

    assert not (tmp_path / "harmed").exists()


def test_what_a_pickle_asked_for_is_told_and_no_way_around(
    seeds_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the call, and carries none of torch's advice on how to allow it."""
    monkeypatch.chdir(tmp_path)
    t.save(Harmful(), seeds_run / "model.pt")
    with pytest.raises(RunDirError) as refusal:
        RunDir.open(seeds_run).load_model()
    told = str(refusal.value)
    assert told.endswith("save the model's state_dict() instead (it asks for posix.system)")
    assert "weights_only" not in told and "still be loaded" not in told
