"""Shards whose making is killed, at any moment: never taken for whole, and built again the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLED = """
import hashlib, os, shutil, signal, sys
from pathlib import Path
from pvml.data import encoding, shards, tokenised
from pvml.data.tokenised import FOLDER, Recipe, tokenise

root = Path(sys.argv[2])
recipe = Recipe(data=sys.argv[1], tokenizer="bpe:277", n_held_out=7)

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def after(calls, whole):
    left = [calls]
    def wrapped(*args, **names):
        left[0] -= 1
        if left[0] < 0:
            die()
        return whole(*args, **names)
    return wrapped

def patch(module, name, calls):
    setattr(module, name, after(calls, getattr(module, name)))

MOMENTS = {
    "first block": lambda: patch(shards, "_write_documents", 0),
    "later block": lambda: patch(shards, "_write_documents", 9),
    "second shard": lambda: patch(shards, "_new_shard", 1),
    "index": lambda: patch(shards, "_checksum_of_index", 0),
    "rename": lambda: patch(os, "rename", 0),
    "opening": lambda: patch(tokenised, "open_shards", 0),
}

def in_a_child(work):
    if os.fork() == 0:
        work()
        os._exit(0)
    return os.wait()[1]

def small_parts():
    whole = tokenised.write_shards
    tokenised.write_shards = lambda *args, **names: whole(*args, **names, shard_tokens=700)
    groups = encoding._groups
    encoding._groups = lambda documents, block: groups(documents, 10)

def build():
    small_parts()
    made = tokenise(recipe, root, say=print)
    files = sorted((root / FOLDER / made.key).iterdir())
    data = b"".join(file.name.encode() + file.read_bytes() for file in files)
    print("built", hashlib.sha256(data).hexdigest(), made.stream.digest, flush=True)

def killed(moment):
    small_parts()
    MOMENTS[moment]()
    tokenise(recipe, root)

for moment in MOMENTS:
    signal_sent = in_a_child(lambda: killed(moment))
    left = sorted(path.name for path in (root / FOLDER).iterdir() if path.is_dir())
    kinds = ["half" if name.startswith(".") else "whole" for name in left]
    print(moment, signal_sent == signal.SIGKILL, *kinds, flush=True)
    in_a_child(build)
    kept = [path for path in (root / FOLDER).iterdir() if path.is_dir()]
    print("folders", len(kept), flush=True)
    for path in kept:
        shutil.rmtree(path)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process here cannot fork")
def test_a_killed_build_leaves_nothing_that_is_taken_for_whole(tmp_path: Path) -> None:
    """Killed at six moments, the last after the rename, and built again: the same bytes."""
    data = tmp_path / "birds.jsonl"
    texts = [f"The {n}th bird sat on tree {n * n}." for n in range(211)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(data), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    killed, built, kept = lines[::3], lines[1::3], lines[2::3]

    moments = ("first block", "later block", "second shard", "index", "rename")
    assert killed == [*(f"{moment} True half" for moment in moments), "opening True whole"]
    assert all(line.startswith("built") for line in built) and len(set(built)) == 1
    assert set(kept) == {"folders 1"}
