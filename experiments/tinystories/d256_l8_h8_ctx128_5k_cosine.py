"""Is it the learning rate that holds the large model back?

d256_l8_h8_ctx128_5k with a warm-up over the first tenth of the steps, and half a cosine after it.
"""

from pvml.cli.train import ModelFlags
from pvml.training.args import TrainingArgs

MODEL = ModelFlags(d_model=256, n_layers=8, n_heads=8, n_ctx=128)
ARGS = TrainingArgs(epochs=10, max_steps_per_epoch=500, schedule="cosine", warmup_steps=500)

if __name__ == "__main__":
    from door import run_this

    run_this(__file__)
