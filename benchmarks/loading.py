"""What loading a model costs: memory beyond the mapped file, and seconds.

Run: python benchmarks/loading.py --shape gpt2-xl. A folder as Hugging Face writes it is made first,
of random weights, in shards, with a table of its own for the unembedding; it is removed at the end.
Then a fresh process loads it. A card, then one line of JSON; exit code 1 where the process grew by
more than 1.3 times the model's size.

Counted is memory that no file backs (RssAnon), sampled while the model is loaded. Pages of the
mapped file are not in it: the system takes them back whenever it needs room. Linux only.
"""

import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch as t
import tyro
from torch import Tensor

from card import cpu
from peers.worker import peak_bytes
from pvml.config import Config
from pvml.device import pick_dtype
from pvml.reference.names import gpt2_parts
from pvml.reference.names_out import hugging_face_fields
from pvml.runs.weights import save_tensors

LIMIT = 1.3
SHAPES = {
    "small": Config(d_model=256, n_heads=4, n_layers=4, n_ctx=256),
    "gpt2": Config(),
    "gpt2-xl": Config(d_model=1600, n_heads=25, n_layers=48),
}
_SHARD = 1 << 30
"""Bytes after which another shard is begun."""
_EVERY_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Args:
    """Which model is loaded, and as what."""

    shape: Literal["small", "gpt2", "gpt2-xl"] = "gpt2"
    """GPT-2 XL's is 6.6 GB in float32, on the disk and in memory."""
    stored: Literal["float32", "bfloat16", "float16"] = "float32"
    """What the file holds."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """What the model is to compute in. Unset: as stored."""
    folder: Path = Path(tempfile.gettempdir())
    """Where the model is put meanwhile."""


def main(args: Args) -> int:
    """The exit code, once the card is printed."""
    cfg = SHAPES[args.shape]
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        stored_bytes = make_folder(folder, cfg, pick_dtype(args.stored))
        # spawned, so that nothing of this process is in its memory
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found = pool.submit(measure, str(folder), args.dtype).result()
    ratio = found["grown_bytes"] / found["model_bytes"]
    ok = ratio <= LIMIT
    print(f"loading {args.shape}, untied, {args.stored}; shards: {found['shards']}")
    print(f"{cpu()}, torch {t.__version__}")
    print()
    print(f"the files          {stored_bytes / 1e9:8.3f} GB")
    print(
        f"the model          {found['model_bytes'] / 1e9:8.3f} GB, {found['parameters']:,} numbers"
    )
    print(f"the process grew by{found['grown_bytes'] / 1e9:8.3f} GB that no file backs")
    print(f"with mapped pages  {found['peak_bytes'] / 1e9:8.3f} GB at most, libraries included")
    print(f"seconds            {found['seconds']:8.2f}")
    print()
    print(f"grown / model at most {LIMIT:g}: {ratio:.3f}, {'yes' if ok else 'NO'}")
    told = {
        "benchmark": "loading",
        "shape": args.shape,
        "stored": args.stored,
        "ok": ok,
        "ratio": ratio,
        "limit": LIMIT,
        "stored_bytes": stored_bytes,
        "cpu": cpu(),
        "torch": t.__version__,
        **found,
    }
    print(json.dumps(told))
    return 0 if ok else 1


def make_folder(folder: Path, cfg: Config, dtype: t.dtype) -> int:
    """Write config.json, an index and shards of random weights; how many bytes the weights have."""
    fields = {**hugging_face_fields(cfg, tied=False), "model_type": "gpt2"}
    (folder / "config.json").write_text(json.dumps(fields))
    draw = t.Generator().manual_seed(0)
    places: dict[str, str] = {}
    total, shard, held = 0, {}, 0
    for part in gpt2_parts(cfg):
        x = t.empty(part.shape).normal_(std=cfg.init_range, generator=draw).to(dtype)
        shard[part.theirs] = x
        held += x.nbytes
        if held >= _SHARD:
            total += write_shard(folder, shard, places)
            shard, held = {}, 0
    total += write_shard(folder, shard, places) if shard else 0
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def write_shard(folder: Path, shard: dict[str, Tensor], places: dict[str, str]) -> int:
    """Write these tensors, and note in `places` where each lies; their bytes."""
    file = f"model-{len(set(places.values())) + 1:05}.safetensors"
    save_tensors(shard, folder / file)
    places |= dict.fromkeys(shard, file)
    return sum(x.nbytes for x in shard.values())


def measure(folder: str, dtype: str | None) -> dict[str, Any]:
    """Load the model in this process: seconds, and bytes that the process grew by at most."""
    from pvml.loading import load_hugging_face

    with sampled_growth() as grown:
        start = time.perf_counter()
        model = load_hugging_face(folder, "cpu", dtype)
        seconds = time.perf_counter() - start
    return {
        "shards": len(list(Path(folder).glob("*.safetensors"))),
        "dtype": str(model.dtype).removeprefix("torch."),
        "parameters": model.parameter_counts()["total"],
        "model_bytes": sum(x.nbytes for x in model.parameters()),
        "grown_bytes": max(grown),
        "peak_bytes": peak_bytes(),
        "seconds": seconds,
    }


@contextmanager
def sampled_growth() -> Iterator[list[int]]:
    """Within it, the list is filled: by how many bytes this process has grown, again and again."""
    before, grown, stop = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(_EVERY_S):
            grown.append(anonymous_bytes() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield grown
    finally:
        stop.set()
        watcher.join()
        grown.append(anonymous_bytes() - before)


def anonymous_bytes() -> int:
    """Memory of this process that no file backs.

    Raises: RuntimeError where the system does not tell it.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024
    except (OSError, IndexError) as error:
        raise RuntimeError("this system does not tell RssAnon in /proc/self/status") from error


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))
