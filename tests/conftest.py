"""Fixtures that several folders share. pvml is imported late: the shape hook must see it first."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# two workers share the machine: one thread each is faster than two that wait for one another
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _private_randomness() -> Iterator[None]:
    """Whatever a test does to torch's generator, the next one starts from the same place."""
    import torch as t

    with t.random.fork_rng(devices=[]):
        t.manual_seed(0)
        yield


@pytest.fixture
def everything_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices are packed for writing, however small."""
    from pvml.modules import packed

    monkeypatch.setattr(packed, "SMALLEST", 1)
    monkeypatch.setattr(packed, "SMALLEST_FOR_A_ROW", 1)


@pytest.fixture
def make_model() -> Any:
    """A small random model in float64 with every parameter off its default. Sizes are primes."""
    import torch as t

    from pvml.config import Config
    from pvml.modules.transformer import Transformer

    def make(**changes: Any) -> Transformer:
        sizes: dict[str, Any] = {
            "d_model": 13,
            "n_heads": 3,
            "d_head": 5,
            "d_mlp": 17,
            "n_layers": 2,
            "n_ctx": 11,
            "d_vocab": 29,
        }
        model = Transformer(Config(**{**sizes, **changes}), seed=7).double()
        generator = t.Generator().manual_seed(11)
        with t.no_grad():
            for parameter in model.parameters():
                noise = t.randn(parameter.shape, generator=generator, dtype=t.float64)
                parameter.add_(0.3 * noise)
        return model

    return make


@pytest.fixture
def tokens() -> Any:
    """A batch of two sequences of seven ids under 29."""
    import torch as t

    return t.randint(0, 29, (2, 7), generator=t.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def bundle(root: Path) -> ModuleType:
    """experiments/bundle.py."""
    path = root / "experiments" / "bundle.py"
    spec = importlib.util.spec_from_file_location("bundle", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bundle"] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps and two epochs, attention-only, by `pvml train`."""
    from pvml.cli.main import main

    runs = tmp_path_factory.mktemp("finished") / "runs"
    sizes = ["--d-model", "6", "--n-heads", "2", "--d-head", "5", "--n-layers", "2", "--attn-only"]
    recipe = ["--n-ctx", "13", "--batch-size", "3", "--epochs", "2", "--max-steps-per-epoch", "2"]
    corpus = ["--data", "storybook:50", "--tokenizer", "bpe:280", "--n-held-out", "3"]
    place = ["--run-dir", str(runs), "--name", "tiny", "--device", "cpu"]
    assert main(["train", *corpus, *sizes, *recipe, *place, "--lr", "3e-2"]) == 0
    return runs / "tiny"


@pytest.fixture(scope="session")
def tiny_models(
    bundle: ModuleType, finished_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder of bundled models with one in it, `tiny`, made as the real ones are."""
    folder = tmp_path_factory.mktemp("bundled")
    args = bundle.Args(run=finished_run, name="tiny", text="storybook:5", to=folder)
    assert bundle.main(args) == folder / "tiny"
    return folder


@pytest.fixture(scope="session")
def tinystories(root: Path) -> Path:
    """The folder of genuine stories, which is not part of the project."""
    folder = root.parent / "shared" / "data" / "tinystories"
    if not folder.is_dir():
        pytest.skip("the TinyStories sample is not beside the project (../shared/data/tinystories)")
    return folder


@pytest.fixture(scope="session")
def hub() -> None:
    """Skips, with the reason, where the Hugging Face hub cannot be reached."""
    from pvml.errors import PvmlError
    from pvml.hub import require_hub

    try:
        require_hub("What the network tests read")
    except PvmlError as reason:
        pytest.skip(str(reason))
