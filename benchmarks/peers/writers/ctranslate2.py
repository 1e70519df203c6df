"""CTranslate2's generator, its model written by its own converter for transformers' GPT-2."""

import tempfile

import ctranslate2
import torch as t
from ctranslate2.converters.transformers import GPT2Loader

from peers import hugging_face
from peers.writers.task import Task, Writer
from pvml.modules.transformer import Transformer


def build(model: Transformer, variant: str) -> Writer:
    """variant: float32 or int8."""
    spec = GPT2Loader().get_model_spec(hugging_face.build(model)[0])
    names = [str(i) for i in range(model.cfg.d_vocab)]
    spec.register_vocabulary(names)
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = names[-1]
    with tempfile.TemporaryDirectory() as folder:
        spec.validate()
        spec.optimize(quantization=None if variant == "float32" else variant)
        spec.save(folder)
        generator = ctranslate2.Generator(
            folder, device="cpu", compute_type=variant, intra_threads=t.get_num_threads()
        )

    def write(task: Task) -> list[list[int]]:
        done = generator.generate_batch(
            [[names[i] for i in ids] for ids in task.prompts],
            max_length=task.n_new,
            min_length=task.n_new,
            beam_size=task.beams,
            include_prompt_in_result=False,
        )
        return [each.sequences_ids[0] for each in done]

    return write
