"""PvML: a transformer that its user can read, trust, train, sample and take apart.

Names are looked up when first used: importing the package imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pvml import (
        attribution,
        circuits,
        data,
        loading,
        patching,
        plots,
        processing,
        sampling,
        trace,
        training,
    )
    from pvml.config import Config
    from pvml.loading import load
    from pvml.modules.transformer import Transformer
    from pvml.sampling.args import SamplingArgs
    from pvml.sampling.sampler import Sampler
    from pvml.trace.tap import listen
    from pvml.training.args import TrainingArgs
    from pvml.training.trainer import Trainer

    __version__: str

__all__ = [
    "Config",
    "Sampler",
    "SamplingArgs",
    "Trainer",
    "TrainingArgs",
    "Transformer",
    "__version__",
    "attribution",
    "circuits",
    "data",
    "listen",
    "load",
    "loading",
    "patching",
    "plots",
    "processing",
    "sampling",
    "trace",
    "training",
]

_HOMES = {
    "Config": "pvml.config",
    "Sampler": "pvml.sampling.sampler",
    "SamplingArgs": "pvml.sampling.args",
    "Trainer": "pvml.training.trainer",
    "TrainingArgs": "pvml.training.args",
    "Transformer": "pvml.modules.transformer",
    "listen": "pvml.trace.tap",
    "load": "pvml.loading",
}


if not TYPE_CHECKING:  # a type checker that saw this would find no misspelt name wrong

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        if name == "__version__":
            from importlib.metadata import version

            return version("pvml")
        from pvml.lazy import files_of

        return files_of(__name__)(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
