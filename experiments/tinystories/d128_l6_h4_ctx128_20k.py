"""Does the medium model have a ceiling of its own?

d128_l6_h4_ctx128_5k, 4 times as long.
"""

from pvml.cli.train import ModelFlags
from pvml.training.args import TrainingArgs

MODEL = ModelFlags(d_model=128, n_layers=6, n_heads=4, n_ctx=128)
ARGS = TrainingArgs(epochs=40, max_steps_per_epoch=500)
PUBLISHED = {"loss": 2.080, "accuracy": 0.517, "minutes": 67.3, "slope": -0.005}
"""What d0mzw's notes report of it, on a GPU."""

if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
