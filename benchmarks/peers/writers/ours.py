"""Our own sampler and beam search, as anybody calls them, and the reading of the weights."""

from peers.writers.task import Task, Writer
from pvml.data.tokenizer import Tokenizer
from pvml.device import pick_dtype
from pvml.modules.inference import inference
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beams import search
from pvml.sampling.reader import Reader
from pvml.sampling.sampler import Sampler


def build(model: Transformer, variant: str) -> Writer:
    """variant: float32, bfloat16, or int8 for float32 with int8 weights."""
    tokenizer = Tokenizer.gpt2()
    if variant == "int8":
        sampler = Sampler(model, tokenizer, weights="int8")
    else:
        model = model.to(pick_dtype(variant))
        sampler = Sampler(model, tokenizer)
    samplers = {"greedy": sampler}
    if variant == "float32":
        samplers["no cache"] = Sampler(model, tokenizer, use_cache=False)
        samplers["exact window"] = sampler
        samplers["blocks"] = Sampler(model, tokenizer, window="blocks")
    # every matrix but W_E and W_pos, of which a token takes a row each
    tables = ("embed.W_E", "pos_embed.W_pos")
    read = [p.detach() for n, p in model.named_parameters() if p.ndim > 1 and n not in tables]

    def write(task: Task) -> list[list[int]] | list[list[float]]:
        if task.how == "logits":
            with inference(model):
                # one after the other, as a text is written: a step of one row
                return [_logits_after(sampler, ids) for ids in task.prompts]
        if task.how == "read weights":
            for _ in range(task.n_new):
                for weight in read:
                    weight.sum()
            return []
        if task.how == "beams":
            args = BeamArgs(num_beams=task.beams, max_new_tokens=task.n_new)
            return [list(search(model, ids, args).results[0].ids) for ids in task.prompts]
        args = SamplingArgs(temperature=0.0, max_new_tokens=task.n_new)
        if len(task.prompts) == 1:
            return [list(samplers[task.how].continue_ids(task.prompts[0], args))]
        texts = [tokenizer.decode(ids[1:]) for ids in task.prompts]
        return [list(done.ids) for done in samplers[task.how].complete_batch(texts, args)]

    return write


def _logits_after(sampler: Sampler, ids: list[int]) -> list[float]:
    reader = Reader(sampler.model, True, len(ids), packed=sampler.packed)
    reader.logits_after({0: ids[:-1]})
    scores: list[float] = reader.logits_after({0: ids})[0].tolist()
    return scores
