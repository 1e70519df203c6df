"""Tokens chosen one after another, until they are a text. Training and data are elsewhere."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "SamplingArgs": "args",
        "Sampler": "sampler",
        "apply_temperature": "strategies",
        "greedy_search": "strategies",
        "keep_top_k": "strategies",
        "keep_top_p": "strategies",
        "next_token": "strategies",
        "sample_basic": "strategies",
        "sample_top_k": "strategies",
        "sample_top_p": "strategies",
    },
)
