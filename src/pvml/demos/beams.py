"""What `python -m pvml.sampling.beams` prints: the shapes of a beam search, its texts, its tree."""

from rich.console import Console
from torch import Tensor

from pvml.demos.subject import Subject, gpt2_or_random
from pvml.modules.inference import inference
from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beam_tree import draw_steps, draw_texts
from pvml.sampling.beams import Beams, BeamText, beam_search, search_from, texts

PROMPT = "When I was"
_WIDTH = 80
"""Columns of the drawings."""


def main(subject: Subject | None = None) -> None:
    """Print the demonstration, of GPT-2 or its random twin unless another subject is given."""
    subject = subject or gpt2_or_random(n_layers=2)
    print(subject.note)
    print()
    print(f"prompt {PROMPT!r}")
    print()
    print_shapes(subject, 3)
    model, tokenizer = subject.model, subject.tokenizer
    search = search_from(model, tokenizer, PROMPT, BeamArgs(max_new_tokens=12))
    best = texts(search, tokenizer)
    print()
    print("num_beams=3")
    print_texts(best)
    print()
    print("no_repeat_ngram_size=3, 25 tokens")
    once = BeamArgs(max_new_tokens=25, num_return_sequences=1, no_repeat_ngram_size=3)
    print_texts(beam_search(model, tokenizer, PROMPT, once))
    print()
    print("num_beams  best score  completion")
    greedy = beam_search(model, tokenizer, PROMPT, BeamArgs(max_new_tokens=12, num_beams=1))
    for num_beams, found in ((1, greedy), (3, best)):
        print(f"{num_beams:>9}  {found[0].score:10.3f}  {found[0].text!r}")
    console = Console(width=_WIDTH, highlight=False)
    print()
    print("what num_beams=3 found: what the texts share stands once; dim: beams given up")
    console.print(draw_texts(search, tokenizer.decode))
    print()
    print("its first two steps: sum, log-probability of the last token, fate")
    console.print(draw_steps(search, tokenizer.decode, first=2))


def print_shapes(subject: Subject, k: int) -> None:
    """Two rounds of the search by hand, as shapes."""
    eos = subject.tokenizer.eos_token_id

    def generate(beams: Beams) -> Beams:
        with inference(subject.model):
            logprobs = subject.model(beams.tokens)[:, -1].double().log_softmax(-1)
        return beams.generate(k, logprobs, eos)

    def show(what: str, **shapes: Tensor) -> None:
        columns = (f"{name} {tuple(x.shape)}" for name, x in shapes.items())
        print(f"{what:<13}" + "".join(f"{column:<21}" for column in columns).rstrip())

    beams = Beams.start(subject.tokenizer.encode(PROMPT, prepend_bos=True))
    show("start", logprob_sums=beams.logprob_sums, tokens=beams.tokens)
    beams = generate(beams)
    show(f"generate({k})", logprob_sums=beams.logprob_sums, tokens=beams.tokens)
    beams, ended = beams.filter(k, eos)
    show(f"filter({k})", keep=beams.tokens, terminated=ended.tokens)
    beams = generate(beams)
    show(f"generate({k})", logprob_sums=beams.logprob_sums, tokens=beams.tokens)


def print_texts(found: list[BeamText]) -> None:
    """A line for each text: its sum of log-probabilities (nats), and the text."""
    for one in found:
        print(f"{one.logprob_sum:10.3f}  {one.text!r}")
