"""A model's loss, its training, and its grading on text that it was not trained on.

Names are looked up when first used, so that importing this package imports nothing else and
`python -m pvml.training.losses` runs a module that is not loaded yet.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "TrainingArgs": "args",
    "get_log_probs": "losses",
    "bits_per_byte": "evaluation",
    "held_out_loss_and_accuracy": "evaluation",
    "Trainer": "trainer",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
