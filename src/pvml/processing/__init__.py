"""A model's weights rewritten so that circuits are easier to read, and its predictions kept."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "process": "rewrite",
        "fold_layer_norm": "rewrite",
        "centre_writing_weights": "rewrite",
        "centre_unembedding": "rewrite",
        "fold_value_biases": "rewrite",
        "Processed": "rewrite",
        "Step": "rewrite",
    },
)
