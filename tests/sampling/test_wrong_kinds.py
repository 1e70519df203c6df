"""What a function was not made for is told in a sentence, and never read as something else."""

import subprocess
import sys

WRONG = {
    'sampler.sample(["the", "cat"])': "a text is expected, one at a time, got list ['the', 'cat']",
    "sampler.sample(None)": "a text is expected, one at a time, got NoneType None",
    'sampler.complete(b"the")': "a text is expected, one at a time, got bytes b'the'",
    'sampler.sample_batch(["the", ["cat"]])': "a text is expected, one at a time, got list ['cat']",
    'sampler.sample_batch(["the"], n=1.5)': "n must be a whole number of at least 1, got 1.5",
    'sampler.sample("the", {"seed": 0})': "args must be a SamplingArgs, got dict {'seed': 0}",
    'sampler.sample("the", BeamArgs())': "args must be a SamplingArgs, got BeamArgs",
    'beam_search(model, tokenizer, "the", SamplingArgs())': "args must be a BeamArgs, got Sampling",
    'beam_search(model, tokenizer, ["the"])': "a text is expected, one at a time, got list",
    'tokenizer.encode_batch("the")': "texts are given as a list, got one text",
    "list(sampler.continue_ids([0, 10**30], GREEDY))": f"token id {10**30} is outside the vocab",
    'list(sampler.continue_ids([0, "a"], GREEDY))': "token ids are whole numbers, got [0, 'a']",
    "list(sampler.continue_ids(t.zeros(2, 3).long(), GREEDY))": "give the ids of one text, got",
    "search(model, [0, -1], BeamArgs())": "token id -1 is outside the vocabulary",
    "keep_top_k(ROW, 1.5)": "k must be a whole number of at least 0 (0 keeps all), got 1.5",
    'keep_top_k(ROW, float("nan"))': "k must be a whole number of at least 0 (0 keeps",
    "keep_top_k(t.tensor([1, 2, 3]), 1)": "logits must be floating-point numbers in rows",
    "greedy_search(t.tensor(1.0))": "logits must be floating-point numbers in rows",
    "greedy_search([1.0, 2.0])": "logits must be a tensor, got list [1.0, 2.0]",
    'keep_top_p(ROW, "x")': "p must be a probability from 0 to 1 (both keep all), got 'x'",
    "keep_min_p(ROW, None)": "min_p must be a share from 0 to 1 (0 keeps all), got None",
    'apply_temperature(ROW, "x")': "temperature must be above 0 and finite to divide by, got 'x'",
    "ban_tokens(ROW, [1.7])": "token id 1.7 is outside the vocabulary: ids are whole numbers",
    "apply_logit_bias(ROW, {1.7: 1.0})": "token id 1.7 is outside the vocabulary",
    "apply_frequency_penalty(t.tensor([1.7]), ROW, 2.0)": "input_ids must be whole numbers, got",
    "apply_repetition_penalty(t.tensor([True]), ROW, 2.0)": "input_ids must be whole numbers, got",
    'ban_repeated_ngrams(t.tensor([0]), ROW, float("nan"))': "n must be a whole number",
    "SamplingArgs(temperature=10**400)": "temperature must be a finite number of at least 0",
    "BeamArgs(length_penalty=10**400)": "length_penalty must be a number from -10 to 10",
    "BeamArgs(num_beams=2**63 - 1)": "num_beams must be at most 512, got 9223372036854775807",
}
RIGHT = [
    "list(sampler.continue_ids(tokenizer.to_tokens('the'), GREEDY))",
    "list(sampler.continue_ids(tokenizer.to_tokens('the')[0].numpy(), GREEDY))",
    "list(sampler.continue_ids(tokenizer.encode('the', prepend_bos=True), GREEDY))",
]


def test_wrong_kinds_are_told() -> None:
    """Each is a PvmlError that names what was given; ids may come in any row."""
    # in a process of its own: the tests' shape hook would refuse a wrong type before we do
    code = f"""
import torch as t
from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beams import beam_search, search
from pvml.sampling.sampler import Sampler
from pvml.sampling.strategies import *

tokenizer = Tokenizer.train(["the cat sat on the mat"], 263)
model = Transformer(Config(d_model=8, n_heads=2, n_layers=1, n_ctx=9, d_vocab=263), seed=0)
sampler, ROW = Sampler(model, tokenizer), t.tensor([3.0, 2.0, 1.0])
GREEDY = SamplingArgs(temperature=0.0, max_new_tokens=2)
for wrong in {list(WRONG)!r}:
    try:
        print("accepted", eval(wrong))
    except PvmlError as error:
        print(error)
for right in {RIGHT!r}:
    print(eval(right))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told, ids = done.stdout.splitlines()[: len(WRONG)], done.stdout.splitlines()[len(WRONG) :]

    for (wrong, message), line in zip(WRONG.items(), told, strict=True):
        assert line.startswith(message), (wrong, line)
    assert len(ids) == len(RIGHT) and len({*ids}) == 1
