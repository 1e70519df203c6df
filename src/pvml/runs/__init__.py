"""What a run leaves on disk. Only `format.py` knows the files' names; the rest knows one kind each.

Names are looked up when first used, so that importing this package imports nothing else.
"""

from importlib import import_module
from typing import Any

_HOMES = {"RunDir": "format", "Checkpoint": "format"}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
