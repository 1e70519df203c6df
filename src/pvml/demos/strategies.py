"""What `python -m pvml.sampling.strategies` prints: five logits, and what each strategy does."""

from collections.abc import Callable

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.sampling.args import SamplingArgs
from pvml.sampling.filters import apply_temperature, keep_min_p, keep_top_k, keep_top_p
from pvml.sampling.penalties import (
    apply_frequency_penalty,
    apply_repetition_penalty,
    ban_repeated_ngrams,
)
from pvml.sampling.strategies import (
    greedy_search,
    sample_basic,
    sample_min_p,
    sample_top_k,
    sample_top_p,
    stages,
)

LOGITS = t.tensor([3.0, 2.0, 1.0, 0.0, -1.0])
HISTORY = t.tensor([0, 2, 0, 1, 0])
N_DRAWS = 10_000
Draw = Callable[[Float[Tensor, "row d_vocab"], t.Generator], Int[Tensor, " row"]]


def main() -> None:
    """Print the demonstration. It needs no model, and is the same every time."""
    probs = LOGITS.softmax(-1)
    print(f"logits  {LOGITS.tolist()}")
    print(f"probs   {_thousandths(probs)}")
    print(f"cumulative {_thousandths(probs.cumsum(-1))}")
    print()
    print(f"greedy_search              -> {greedy_search(LOGITS)}   # the largest; of equals, id 0")
    for temperature in (0.5, 2.0):
        divided = apply_temperature(LOGITS, temperature).tolist()
        print(f"apply_temperature({temperature})     -> {divided}")
    _print_draws()
    print()
    print(f"what looks back, after {HISTORY.tolist()}")
    print(f"apply_frequency_penalty(1.0)  -> {_row(apply_frequency_penalty(HISTORY, LOGITS, 1.0))}")
    print(
        f"apply_repetition_penalty(2.0) -> {_row(apply_repetition_penalty(HISTORY, LOGITS, 2.0))}"
    )
    print(f"ban_repeated_ngrams(2)        -> {_row(ban_repeated_ngrams(HISTORY, LOGITS, 2))}")
    print()
    args = SamplingArgs(frequency_penalty=1.0, no_repeat_ngram_size=2, temperature=0.5, top_k=2)
    print("next_token: frequency penalty, n-gram ban, temperature 0.5, top-k 2, as distributions")
    for name, logits in stages(HISTORY, LOGITS, args):
        print(f"{name:<18}{_thousandths(logits.softmax(-1))}")


def _print_draws() -> None:
    """How often each token comes in 10,000 draws, beside what the filter says is exact."""
    rows, generator = LOGITS.expand(N_DRAWS, -1), t.Generator().manual_seed(0)
    draws: dict[str, tuple[Draw, Tensor]] = {
        "sample_basic": (sample_basic, LOGITS),
        "sample_top_k(2)": (lambda x, g: sample_top_k(x, 2, g), keep_top_k(LOGITS, 2)),
        "sample_top_p(0.7)": (lambda x, g: sample_top_p(x, 0.7, g), keep_top_p(LOGITS, 0.7)),
        "sample_min_p(0.1)": (lambda x, g: sample_min_p(x, 0.1, g), keep_min_p(LOGITS, 0.1)),
    }
    for name, (draw, filtered) in draws.items():
        found = draw(rows, generator).bincount(minlength=len(LOGITS)).double() / N_DRAWS
        print()
        print(f"{name} over {N_DRAWS:,} draws")
        print(f"  {_thousandths(found)}")
        print(f"  {_thousandths(filtered.softmax(-1))}   # exact")


def _thousandths(x: Tensor) -> list[str]:
    return [f"{value:.3f}" for value in x.tolist()]


def _row(x: Tensor) -> list[float]:
    return [round(value, 3) for value in x.tolist()]
