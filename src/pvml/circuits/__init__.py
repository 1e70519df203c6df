"""What a model computes, read off its weights and patterns. Drawing it is `pvml.plots`' part.

Names are looked up when first used, so that importing this package imports nothing else and
`python -m pvml.circuits.two_routes` runs a module that is not loaded yet.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Routes": "routes",
    "Term": "routes",
    "decompose": "routes",
    "HeadScore": "heads",
    "best_heads": "heads",
    "describe_heads": "heads",
    "find_heads": "heads",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
