"""Is the small model limited by its size, or by its training?

d32_l4_h16_ctx128_5k, 4 times as long.
"""

from pvml.cli.train import ModelFlags
from pvml.training.args import TrainingArgs

MODEL = ModelFlags(d_model=32, n_layers=4, n_heads=16, n_ctx=128)
ARGS = TrainingArgs(epochs=40, max_steps_per_epoch=500)
PUBLISHED = {"loss": 2.782, "accuracy": 0.421, "minutes": 34.6, "slope": 0.006}
"""What d0mzw's notes report of it, on a GPU."""

if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
