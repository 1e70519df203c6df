"""The training benchmark: its peers are our model, its limits judge, its processes end."""

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
TINY = Config(d_model=6, n_heads=2, n_layers=1, n_ctx=5, d_vocab=11)


@pytest.fixture
def benchmarks(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Import]:
    """Imports a module of the folder, as a script in it would."""
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("peers", "card", "train"):
            del sys.modules[name]


def test_verdicts_by_hand(benchmarks: Import) -> None:
    """Ratios and shares are medians of the rounds' own; what was not measured is not kept."""
    train, race = benchmarks("train"), benchmarks("peers.race").Race()
    race.rounds = [
        {"ours-float32": 2.0, "ours-bfloat16": 1.0, "seeds": 6.0},
        {"ours-float32": 4.0, "ours-bfloat16": 2.0, "seeds": 16.0},
        {"ours-float32": 2.0, "ours-bfloat16": 1.0, "seeds": 10.0},
    ]
    race.floors = [{"float32": 1.0, "bfloat16": 0.6}] * 3
    race.peak_bytes = {"ours-float32": 1 << 30, "ours-bfloat16": 1 << 31}
    shape = train.Shape(
        cfg=TINY,
        ratios={"ours-float32": {"seeds": 4.0}, "ours-bfloat16": {"seeds": 8.5, "nanogpt": 1.0}},
        shares={"ours-float32": 0.5, "ours-bfloat16": 0.61},
        gib=1.5,
    )
    assert [(v.measured, v.ok) for v in train.judge(shape, race)] == [
        (4.0, True),
        (0.5, True),
        (1.0, True),
        (8.0, False),
        (None, False),
        (0.6, False),
        (2.0, False),
    ]


def test_a_peer_with_another_loss_is_refused(benchmarks: Import) -> None:
    """The first loss may differ by float32's rounding, in bfloat16 and later by 0.02 nats."""
    module = benchmarks("peers.race")

    def told(name: str, loss: float) -> Any:
        return SimpleNamespace(name=name, step=lambda: {"loss": loss, "peak_bytes": 1})

    race = module.Race()
    race.step(told("ours-float32", 10.0))
    race.step(told("ours-bfloat16", 10.019))
    race.step(told("seeds", 10.00009))
    with pytest.raises(module.ContestantError, match="nanoGPT has a loss of 10.0002"):
        race.step(told("nanogpt", 10.0002))
    race.step(told("ours-float32", 9.0))
    race.step(told("seeds", 9.019))
    with pytest.raises(module.ContestantError, match="at step 2"):
        race.step(told("ours-bfloat16", 9.021))


@pytest.mark.parametrize(
    ("name", "needs", "allowed"),
    [
        ("seeds", "torch", 1e-12),
        ("nanogpt", "torch", 1e-12),
        ("native_lens", "transformer_lens", 1e-12),
        # its loss is computed in float32 whatever the weights are
        ("hugging_face", "transformers", 1e-6),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of theirs
def test_peers_are_our_model(
    benchmarks: Import, make_model: Any, tokens: Any, name: str, needs: str, allowed: float
) -> None:
    """Each peer's loss and the norm of all its gradients are ours, for weights in float64."""
    from pvml.training.losses import get_log_probs

    pytest.importorskip(needs)
    ours = gpt2_sizes(make_model)
    theirs, loss_of = benchmarks(f"peers.{name}").build(ours)
    loss = -get_log_probs(ours(tokens), tokens).mean()
    loss.backward()
    got = loss_of(tokens)
    got.backward()
    assert got.item() == pytest.approx(loss.item(), rel=allowed)
    norms = [
        sum(float(p.grad.square().sum()) for p in m.parameters() if p.requires_grad)
        for m in (ours, theirs)
    ]
    assert norms[1] == pytest.approx(norms[0], rel=10 * allowed)


def gpt2_sizes(make_model: Any) -> Any:
    """A model that every peer can hold: GPT-2 has neither a free d_head nor a bias of logits."""
    model = make_model(d_model=15, n_heads=3, d_head=5)
    model.unembed.b_U.data.zero_()
    return model


def test_floor_counts_the_products(benchmarks: Import) -> None:
    """At a rate of 1 the floor would be the step's FLOPs, half of the grid left out."""
    floor = benchmarks("peers.floor").Floor(TINY, batch=3)
    tokens, layer = 3 * 5, 2 * 6
    projections, mlp, grid = layer * 4 * 6, layer * 2 * 24, 2 * 2 * 5 * 6
    assert floor.block_flops == tokens * 3 * (projections + mlp + grid / 2)
    assert floor.vocabulary_flops == tokens * 3 * layer * 11
    for kind, flops in ((floor.blocks, projections + mlp), (floor.vocabulary, layer * 11)):
        for products in kind.values():
            assert sum(product.flops for product in products) == tokens * 3 * flops
    told = floor.measure()
    assert set(told["rates"]) >= {"float32 MKL", "bfloat16"}
    assert set(told["floors"]) == {"float32", "bfloat16", "all bfloat16"}
    assert all(seconds > 0 for seconds in told["floors"].values())


def test_the_faster_route_counts(benchmarks: Import) -> None:
    """Two products of 6 FLOPs, best at 3 and 6 FLOP/s, take 3 s: 4 FLOP/s together."""
    floor = benchmarks("peers.floor")
    products = [floor.Product(name, 6, lambda: None, 1) for name in "ab"]
    assert floor.mean_rate(products, [{"a": 3.0, "b": 1.0}, {"a": 2.0, "b": 6.0}]) == 4.0


def test_a_contestant_that_does_not_answer_is_ended(benchmarks: Import) -> None:
    """The error says so, and no process is left."""
    process = benchmarks("peers.process")
    with pytest.raises(process.ContestantError, match="seeds did not answer within 0.01 s"):
        with process.Contestant("seeds", TINY, batch=2, threads=1, timeout=0.01) as contestant:
            contestant.wait_until_ready()
    assert contestant._process.poll() is not None


def test_a_contestant_that_fails_says_why(benchmarks: Import) -> None:
    """Its last words are in the error."""
    process = benchmarks("peers.process")
    with pytest.raises(process.ContestantError, match="No module named 'peers.nobody'"):
        with process.Contestant("nobody", TINY, batch=2, threads=1, timeout=60.0) as contestant:
            contestant.wait_until_ready()


def test_the_script_races_processes(root: Path) -> None:
    """A tiny race through the command: a card, a line of JSON, losses that agree, exit code 0."""
    command = [sys.executable, "benchmarks/train.py", "--shape", "tiny", "--rounds", "2"]
    command += ["--threads", "1", "--peers", "seeds"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    *card, line = done.stdout.splitlines()
    assert card[0].startswith("One training step: d20, 2 layers, 4 heads, n_ctx 16, batch 3")
    told = json.loads(line)
    assert set(told["contestants"]) == {"ours-float32", "ours-bfloat16", "seeds"}
    for about in told["contestants"].values():
        assert about["peak_bytes"] > 1 << 27
        assert about["first_loss"] == pytest.approx(
            told["contestants"]["ours-float32"]["first_loss"], abs=0.02
        )
