"""Does the large model overtake the medium one in the end?

d256_l8_h8_ctx128_5k, 4 times as long: beside d128_l6_h4_ctx128_20k.
"""

from pvml.cli.train import ModelFlags
from pvml.training.args import TrainingArgs

MODEL = ModelFlags(d_model=256, n_layers=8, n_heads=8, n_ctx=128)
ARGS = TrainingArgs(epochs=40, max_steps_per_epoch=500)

if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
