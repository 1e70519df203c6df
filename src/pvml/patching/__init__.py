"""Activations moved from one prompt's pass into another's, and what that does to the prediction."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "patch_activations": "sweep",
        "LogitDifference": "metric",
        "Metric": "metric",
        "Patched": "result",
        "Cell": "result",
    },
)
