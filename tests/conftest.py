"""Fixtures that several folders share. pvml is imported late: the shape hook must see it first."""

import os
from collections.abc import Iterator
from pathlib import Path
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
        require_hub("the network tests")
    except PvmlError as reason:
        pytest.skip(str(reason))
