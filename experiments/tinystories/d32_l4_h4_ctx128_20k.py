"""Is the small model held back by its narrow heads?

d32_l4_h16_ctx128_20k with 4 heads of 8 numbers each, not 16 of 2.
"""

from pvml.cli.train import ModelFlags
from pvml.training.args import TrainingArgs

MODEL = ModelFlags(d_model=32, n_layers=4, n_heads=4, n_ctx=128)
ARGS = TrainingArgs(epochs=40, max_steps_per_epoch=500)

if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
