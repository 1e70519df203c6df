"""What `python -m pvml.sampling.sampler` prints: a text by a model, and by its reference."""

import torch as t

from pvml.demos.lines import REFERENCE
from pvml.demos.subject import Subject, gpt2_or_random
from pvml.parity.check import parameters_of
from pvml.reference.numpy_forward import forward
from pvml.sampling.args import SamplingArgs
from pvml.sampling.reader import window_of
from pvml.sampling.sampler import Sampler

PROMPT = "Jingle bells, jingle bells, jingle all the way"
N_NEW = 8


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=2)
    sampler = Sampler(subject.model, subject.tokenizer)
    greedy = SamplingArgs(temperature=0.0, max_new_tokens=N_NEW)
    ours, theirs = sampler.sample(PROMPT, greedy), _by_reference(subject)
    print(subject.note)
    print()
    print(f"prompt    {PROMPT!r}")
    print(f"ours      {ours!r}")
    print(f"reference {theirs!r}")
    print()
    print(f"greedy matches {REFERENCE} : {ours == theirs}")
    print()
    warm = SamplingArgs(temperature=0.7, top_p=0.95, max_new_tokens=N_NEW, seed=0)
    texts = sampler.sample_batch([PROMPT], warm, n=3)
    print("temperature 0.7, top-p 0.95, three texts side by side")
    for seed, text in enumerate(texts):
        print(f"  seed {seed}  ...{text[len(PROMPT) :]!r}")
    print(f"seed 0 alone is the first : {sampler.sample(PROMPT, warm) == texts[0]}")
    pieces = list(sampler.stream(PROMPT, warm))
    print(f"as a stream               : {pieces}")


def _by_reference(subject: Subject) -> str:
    """The greedy text, every window read whole by plain NumPy in float64."""
    model, tokenizer = subject.model, subject.tokenizer
    parameters = parameters_of(model)
    ids = tokenizer.encode(PROMPT, prepend_bos=True)
    n_given = len(ids)
    while len(ids) < n_given + N_NEW:
        window = t.tensor([window_of(ids, model.cfg.n_ctx, keep_first=True)])
        logits = forward(parameters, model.cfg, window.numpy())["unembed.logits"]
        new = int(logits[0, -1].argmax())
        if new == tokenizer.eos_token_id:
            break
        ids.append(new)
    return PROMPT + tokenizer.decode(ids[n_given:])
