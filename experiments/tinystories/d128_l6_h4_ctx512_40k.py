"""Was it the window that made the stories wander?

d128_l6_h4_ctx128_20k with 4 times the window, in which nearly every story fits whole. Its epochs
are 1,000 steps long: it is graded half as often.
"""

from pvml.cli.train import ModelFlags
from pvml.training.args import TrainingArgs

MODEL = ModelFlags(d_model=128, n_layers=6, n_heads=4, n_ctx=512)
ARGS = TrainingArgs(epochs=40, max_steps_per_epoch=1000)
PUBLISHED = {"loss": 1.732, "accuracy": 0.573, "minutes": 641.3, "slope": -0.002}
"""What d0mzw's notes report of it, on a GPU."""

if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
