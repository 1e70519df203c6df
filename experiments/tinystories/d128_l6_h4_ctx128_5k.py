"""Does more capacity help at the same steps?

Beside d32_l4_h16_ctx128_5k: 4 times as wide, 6 layers instead of 4.
"""

from pvml.cli.train import ModelFlags
from pvml.training.args import TrainingArgs

MODEL = ModelFlags(d_model=128, n_layers=6, n_heads=4, n_ctx=128)
ARGS = TrainingArgs(epochs=10, max_steps_per_epoch=500)
PUBLISHED = {"loss": 2.369, "accuracy": 0.476, "minutes": 17.0, "slope": -0.036}
"""What d0mzw's notes report of it, on a GPU."""

if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
