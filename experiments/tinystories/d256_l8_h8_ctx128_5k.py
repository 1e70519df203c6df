"""Does capacity keep paying, or does it level off?

Beside d128_l6_h4_ctx128_5k: twice as wide, 8 layers instead of 6.
"""

from pvml.cli.train import ModelFlags
from pvml.training.args import TrainingArgs

MODEL = ModelFlags(d_model=256, n_layers=8, n_heads=8, n_ctx=128)
ARGS = TrainingArgs(epochs=10, max_steps_per_epoch=500)
PUBLISHED = {"loss": 2.497, "accuracy": 0.461, "minutes": 36.6, "slope": -0.064}
"""What d0mzw's notes report of it, on a GPU."""

if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
