"""How far does the smallest model get?

16 heads of 2 numbers each. A quarter of the steps of d32_l4_h16_ctx128_20k.
"""

from pvml.cli.train import ModelFlags
from pvml.training.args import TrainingArgs

MODEL = ModelFlags(d_model=32, n_layers=4, n_heads=16, n_ctx=128)
ARGS = TrainingArgs(epochs=10, max_steps_per_epoch=500)
PUBLISHED = {"loss": 2.996, "accuracy": 0.395, "minutes": 8.4, "slope": -0.024}
"""What d0mzw's notes report of it, on a GPU."""

if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
