"""A model's loss, its training, and its grading on text that it was not trained on."""

from pvml.lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "TrainingArgs": "args",
        "get_log_probs": "losses",
        "next_token_losses": "losses",
        "NextTokenLoss": "losses",
        "bits_per_byte": "evaluation",
        "grade_held_out": "evaluation",
        "Trainer": "trainer",
    },
)
