"""TransformerLens 4's `generate` on its native model."""

import torch as t

from peers import native_lens
from peers.writers.task import Task, Writer
from pvml.modules.transformer import Transformer


def build(model: Transformer, variant: str) -> Writer:
    theirs = native_lens.build(model)[0].eval()

    def write(task: Task) -> list[list[int]]:
        tokens = t.tensor(task.prompts)
        with t.inference_mode():
            done = theirs.generate(
                tokens,
                max_new_tokens=task.n_new,
                stop_at_eos=False,
                do_sample=False,
                return_type="tokens",
                verbose=False,
            )
        return done[:, tokens.shape[1] :].tolist()

    return write
