"""Hugging Face's `generate`, with its own cache."""

import torch as t

from peers import hugging_face
from peers.writers.task import Task, Writer
from pvml.device import pick_dtype
from pvml.modules.transformer import Transformer


def build(model: Transformer, variant: str) -> Writer:
    """variant: float32 or bfloat16."""
    theirs = hugging_face.build(model)[0].eval().to(pick_dtype(variant))
    theirs.config.use_cache = True
    theirs.generation_config.eos_token_id = None
    theirs.generation_config.pad_token_id = 0

    def write(task: Task) -> list[list[int]]:
        tokens = t.tensor(task.prompts)
        with t.inference_mode():
            done = theirs.generate(
                tokens,
                attention_mask=t.ones_like(tokens),
                max_new_tokens=task.n_new,
                do_sample=False,
                num_beams=task.beams,
                length_penalty=0.0 if task.beams > 1 else None,
                use_cache=True,
            )
        return done[:, tokens.shape[1] :].tolist()

    return write
