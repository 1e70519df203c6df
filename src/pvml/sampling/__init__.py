"""Tokens chosen one after another, until they are a text. Training and data are elsewhere.

Names are looked up when first used, so that importing this package imports nothing else.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "SamplingArgs": "args",
    "Sampler": "sampler",
    "apply_temperature": "strategies",
    "greedy_search": "strategies",
    "next_token": "strategies",
    "sample_basic": "strategies",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
