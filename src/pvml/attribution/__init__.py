"""What each part of a model, and each layer so far, says about the next token. Of any model."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "attribute": "direct",
        "Attribution": "direct",
        "Part": "direct",
        "logit_lens": "lens",
        "LogitLens": "lens",
    },
)
