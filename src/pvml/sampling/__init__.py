"""Tokens chosen one after another, until they are a text. Training and data are elsewhere."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Figures": "stories",
        "SamplingArgs": "args",
        "Sampler": "sampler",
        "Story": "stories",
        "apply_temperature": "strategies",
        "ended": "quality",
        "figures": "stories",
        "greedy_search": "strategies",
        "keep_top_k": "strategies",
        "keep_top_p": "strategies",
        "next_token": "strategies",
        "repeated_ngram_rate": "quality",
        "sample_basic": "strategies",
        "sample_top_k": "strategies",
        "sample_top_p": "strategies",
        "stuck": "quality",
        "words": "quality",
        "write_stories": "stories",
    },
)
