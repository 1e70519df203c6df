"""The benchmark of writing: its peers write our tokens, its limits judge, its processes end."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pvml.config import Config

Import = Callable[[str], Any]
PEERS = {"native_lens", "hugging_face", "ctranslate2"}


@pytest.fixture
def benchmarks(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Imports a module of the folder, as a script in it would."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("peers", "card", "generate"):
            del sys.modules[name]


def test_verdicts_by_hand(benchmarks: Import) -> None:
    """Ratios are medians of the rounds' own; what was not measured is not kept."""
    generate = benchmarks("generate")
    ours, peer, floor = (
        ("batch 1", "ours-float32"),
        ("batch 1", "native_lens"),
        ("floor", "ours-float32"),
    )
    race = generate.Race()
    race.rounds = [
        {ours: 10.0, peer: 2.0, floor: 12.5},
        {ours: 20.0, peer: 2.5, floor: 40.0},
        {ours: 30.0, peer: 5.0, floor: 60.0},
    ]
    shape = generate.Shape(
        cfg=Config(),
        events=[],
        ratios={(*ours, "native_lens"): 6.0, (*ours, "ctranslate2-int8"): 1.0},
        share=0.6,
    )
    told = [(v.measured, v.ok) for v in generate.judge(shape, race)]
    assert told == [(6.0, True), (None, False), (0.5, False)]


def test_a_peer_with_other_tokens_is_refused(benchmarks: Import) -> None:
    """In float32 tokens are ours; rounded weights may write others, but as many."""
    generate = benchmarks("generate")
    event = generate.Event("batch 1", "greedy", 1, 2, ())

    def told(name: str, *ids: int) -> Any:
        answer = {"ids": [list(ids)], "seconds": 4.0, "peak_bytes": 1}
        return SimpleNamespace(name=name, ask=lambda line: answer)

    race = generate.Race()
    assert race.take(event, [[0]], told("ours-float32", 1, 2)) == 0.5
    race.take(event, [[0]], told("ctranslate2-int8", 1, 3))
    with pytest.raises(generate.ContestantError, match="Hugging Face wrote .* not the same model"):
        race.take(event, [[0]], told("hugging_face-float32", 1, 3))
    with pytest.raises(generate.ContestantError, match=r"wrote \[1\] tokens, and not 2"):
        race.take(event, [[0]], told("ours-int8", 1))


def test_prompts_are_read_back_as_they_are(benchmarks: Import) -> None:
    """64 prompts of BOS and a word, all different; longer ones are filled up."""
    from pvml.data.tokenizer import Tokenizer

    generate = benchmarks("generate")
    prompts = generate.prompts_of(generate.Event("", "greedy", 64, 1, ()))
    assert len({tuple(ids) for ids in prompts}) == 64
    tokenizer = Tokenizer.gpt2()
    for ids in prompts:
        assert tokenizer.encode(tokenizer.decode(ids[1:]), prepend_bos=True) == ids
    long = generate.Event("", "greedy", 1, 1, (), length=9)
    assert len(generate.prompts_of(long)[0]) == 9


def test_the_script_races_processes(root: Path) -> None:
    """A tiny race of ours alone through the command: a card, a line of JSON, exit code 0."""
    command = [sys.executable, "benchmarks/generate.py", "--shape", "tiny", "--rounds", "1"]
    command += ["--threads", "1", "--peers"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *card, line = done.stdout.splitlines()
    assert card[0].startswith("Writing: d20, 2 layers, 4 heads, n_ctx 32, 50,257 tokens")
    told = json.loads(line)
    assert set(told["rates"]["batch 64"]) == {"ours-float32", "ours-bfloat16"}
    assert {name.partition("-")[0] for name in told["skipped"]} == PEERS
    assert all(
        of["tokens_per_second"] > 0 for event in told["rates"].values() for of in event.values()
    )


@pytest.mark.parametrize("name", ["hugging_face-float32", "native_lens", "ctranslate2-float32"])
@pytest.mark.filterwarnings("ignore")  # of theirs
def test_peers_write_our_tokens(benchmarks: Import, name: str) -> None:
    """Greedily from two prompts at once, and Hugging Face with beams: the ids are ours."""
    kind, _, variant = name.partition("-")
    for package in ("transformers", "transformer_lens", "ctranslate2"):
        pytest.importorskip(package)
    task = benchmarks("peers.writers.task").Task
    cfg = Config(d_model=12, n_heads=3, n_layers=2, n_ctx=16)
    model = benchmarks("peers.worker").off_defaults(cfg).eval()
    ours = benchmarks("peers.writers.ours").build(model, "float32")
    theirs = benchmarks(f"peers.writers.{kind}").build(model, variant)
    tasks = [task("greedy", [[50256, 1000], [50256, 1001]], 6)]
    if kind == "hugging_face":
        tasks.append(task("beams", [[50256, 1000]], 6, beams=3))
    for each in tasks:
        assert theirs(each) == ours(each)
