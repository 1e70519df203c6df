"""What loading costs: at most 1.3 times the model beyond the mapped file, whichever form it has."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t
from torch.profiler import ProfilerActivity, profile

from pvml.config import Config
from pvml.device import pick_dtype
from pvml.loading import load
from pvml.modules.transformer import Transformer
from pvml.reference.names_out import hugging_face_fields, to_hugging_face, to_nanogpt
from pvml.runs.weights import save_tensors

CFG = Config(d_model=128, n_heads=4, n_layers=3, n_ctx=64, d_vocab=260)
MOST = 1.3


def peak_bytes(act: Callable[[], object]) -> int:
    """The most that torch had allocated on the CPU at once; a mapped file counts as allocated."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = act()
    assert kept is not None
    # the summary of events leaves out what was allocated within an operation
    events = [
        event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(itertools.accumulate(changes, initial=0))


@pytest.fixture
def model() -> Transformer:
    return Transformer(CFG, seed=1)


def in_form(form: str, folder: Path, model: Transformer, tokenizer: Any) -> Path:
    state = {name: x.detach() for name, x in model.state_dict().items()}
    tokenizer.save(folder / "tokenizer.json")
    if form == "nanogpt":
        state["unembed.W_U"] = state["embed.W_E"].T
        sizes = {"n_layer": 3, "n_head": 4, "n_embd": 128, "block_size": 64, "vocab_size": 260}
        saved = {"model": to_nanogpt(state, CFG), "model_args": sizes}
        moments = {i: {"exp_avg": x.clone()} for i, x in enumerate(saved["model"].values())}
        t.save({**saved, "optimizer": {"state": moments}}, folder / "ckpt.pt")
        return folder
    if form == "lens":
        (folder / "config.json").write_text(json.dumps(CFG.to_dict()))
        t.save(state, folder / "model.pt")
        return folder
    fields = {**hugging_face_fields(CFG, tied=False), "model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(fields))
    theirs = {name: x.contiguous() for name, x in to_hugging_face(state, CFG).items()}
    if form == "pickle":
        t.save(theirs, folder / "pytorch_model.bin")
    elif form == "whole":
        save_tensors(theirs, folder / "model.safetensors")
    else:
        places = {name: f"{i % 3}.safetensors" for i, name in enumerate(theirs)}
        for shard in set(places.values()):
            part = {name: x for name, x in theirs.items() if places[name] == shard}
            save_tensors(part, folder / shard)
        index = {"weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["whole", "shards", "pickle", "nanogpt", "lens"])
def test_loading_holds_one_model(
    tmp_path: Path, model: Transformer, tokenizer: Any, form: str, dtype: str
) -> None:
    """No form holds a second copy, of the model or of an optimizer, while tensors are placed."""
    folder = in_form(form, tmp_path, model, tokenizer)
    size = sum(x.numel() for x in model.parameters()) * pick_dtype(dtype).itemsize
    peak = peak_bytes(lambda: load(folder, device="cpu", dtype=dtype))
    files = (*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("*.pt"))
    beyond = peak - sum(file.stat().st_size for file in files)

    assert size <= beyond <= MOST * size
