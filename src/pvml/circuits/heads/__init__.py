"""What heads look at, each score beside its nulls, and the claims that can be made of them."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "EXCESS": "names",
        "HeadScore": "names",
        "NAMING": "names",
        "RandomHeads": "names",
        "best_heads": "names",
        "describe_heads": "names",
        "head_table": "names",
        "Kind": "patterns",
        "Question": "patterns",
        "Text": "patterns",
        "measure": "patterns",
        "find_heads": "scores",
        "head_scores": "scores",
        "composition": ".claims.search",
        "copying": ".claims.search",
        "induction": ".claims.search",
        "previous_token": ".claims.search",
    },
)
