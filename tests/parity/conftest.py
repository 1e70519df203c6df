"""A reader's class, written to a file and checked; random models and what they are judged by."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def attention() -> str:
    """The source of a plain attention that is right."""
    return (Path(__file__).parent / "own_attention.py").read_text()


@pytest.fixture(scope="session")
def mlp() -> str:
    """The source of a plain MLP that is right."""
    return (Path(__file__).parent / "own_mlp.py").read_text()


@pytest.fixture
def edited(attention: str) -> Callable[..., str]:
    """That source with some texts replaced; each must be in it."""

    def edit(*edits: tuple[str, str]) -> str:
        source = attention
        for old, new in edits:
            assert old in source
            source = source.replace(old, new)
        return source

    return edit


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., Any]:
    """The report about a class of this source."""
    from pvml.parity.own_code import find_class
    from pvml.parity.own_module import check_module

    def check(source: str, name: str = "Attention", **options: Any) -> Any:
        file = tmp_path / "own.py"
        file.write_text(source)
        return check_module(find_class(f"{file}:{name}"), **options)

    return check


@pytest.fixture
def draw() -> Callable[..., Any]:
    """A small random model of primes' sizes, no parameter at its default; b_U=False keeps b_U 0."""
    import torch as t

    from pvml.config import Config
    from pvml.modules.transformer import Transformer
    from pvml.parity.check import move_off_defaults

    def make(dtype: Any = t.float64, seed: int = 0, b_U: bool = True, **changes: Any) -> Any:
        sizes: dict[str, Any] = {"d_model": 21, "n_heads": 3, "n_layers": 2, "d_mlp": 37}
        cfg = Config(**{**sizes, "n_ctx": 17, "d_vocab": 53, **changes})
        model = move_off_defaults(Transformer(cfg, seed=seed), seed)
        if not b_U:
            model.unembed.b_U.data.zero_()
        return model.to(dtype)

    return make


@pytest.fixture
def by() -> Callable[..., Any]:
    """The reference of a name for a model; skips where its library is not installed."""
    from pvml.parity.references import reference_for

    def make(name: str, model: Any) -> Any:
        if name != "float64":
            pytest.importorskip("transformers", reason="needs the extra hub", exc_type=ImportError)
        return reference_for(model, name)

    return make


@pytest.fixture
def ids() -> Any:
    """Three rows of eleven ids under 53."""
    import torch as t

    return t.randint(53, (3, 11), generator=t.Generator().manual_seed(0))
