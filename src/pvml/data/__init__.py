"""Text in, rows of token ids out. Models, losses and training are elsewhere.

Names are looked up when first used, so that importing this package imports nothing else and
`python -m pvml.data.tinystories` runs a module that is not loaded yet.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Tokenizer": "tokenizer",
    "Corpus": "sources",
    "open_corpus": "sources",
    "split_documents": "sources",
    "Rows": "rows",
    "pack": "rows",
    "Batches": "rows",
    "corpus_statistics": "statistics",
    "tinystories_loaders": "tinystories",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
