"""What a model computes, read off its weights and patterns. Drawing it is `pvml.plots`' part."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "Routes": "routes",
        "Term": "routes",
        "decompose": "routes",
        "HeadScore": "heads",
        "best_heads": "heads",
        "describe_heads": "heads",
        "find_heads": "heads",
    },
)
