"""Tokens chosen one after another, until they are a text. Training and data are elsewhere."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Figures": "stories",
        "SamplingArgs": "args",
        "Sampler": "sampler",
        "Story": "stories",
        "Stage": "strategies",
        "apply_frequency_penalty": "penalties",
        "apply_logit_bias": "filters",
        "apply_repetition_penalty": "penalties",
        "apply_temperature": "filters",
        "ban_repeated_ngrams": "penalties",
        "ban_tokens": "filters",
        "ended": "quality",
        "figures": "stories",
        "greedy_search": "strategies",
        "keep_min_p": "filters",
        "keep_top_k": "filters",
        "keep_top_p": "filters",
        "next_token": "strategies",
        "repeated_ngram_rate": "quality",
        "sample_basic": "strategies",
        "sample_min_p": "strategies",
        "sample_top_k": "strategies",
        "sample_top_p": "strategies",
        "stages": "strategies",
        "stuck": "quality",
        "words": "quality",
        "write_stories": "stories",
    },
)
