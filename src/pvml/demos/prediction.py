"""One prediction of the demo: which one is worth taking apart, and what is told about it."""

from dataclasses import dataclass

import torch as t
from jaxtyping import Int
from rich.console import Console
from torch import Tensor

from pvml.circuits.paths.routes import HeadTerm, Routes, decompose
from pvml.data.tokenizer import Tokenizer
from pvml.modules.transformer import Transformer

TOKENS_SHOWN = 40
"""Tokens before the prediction that are printed and drawn."""


def say(console: Console, text: str) -> None:
    """Print a line as it is: a story may hold what would be markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class Pick:
    """A prediction worth taking apart."""

    row: int
    position: int
    """Of the token that the prediction follows, counted from 0."""
    answer: int
    """The id that the model finds likeliest there."""
    truth: int
    """The id that the text goes on with."""
    rival: int
    """What else the model would choose if it saw BOS and the last token only."""
    answer_now: float
    """Its probability."""
    answer_alone: float
    rival_alone: float


def take_apart(
    console: Console, model: Transformer, tokenizer: Tokenizer, rows: Int[Tensor, "batch posn"]
) -> tuple[Routes, Int[Tensor, " prefix"], int]:
    """The decomposition of the prediction that context helped most, its tokens and its answer."""
    pick = most_helped(model, rows)
    tokens = rows[pick.row, : pick.position + 1]
    routes = decompose(model, tokens[None].to(model.device))
    texts = tokenizer.to_str_tokens(t.arange(tokenizer.d_vocab))
    answer, rival, last = texts[pick.answer], texts[pick.rival], texts[tokens[-1]]
    say(console, f"after: ...{tokenizer.decode(tokens[1:][-TOKENS_SHOWN:])!r}")
    say(
        console,
        f"it gives {answer!r} {pick.answer_now:.2f} (the text goes on with {texts[pick.truth]!r}); "
        f"seeing only {last!r} it would give that {pick.answer_alone:.2f}, and {rival!r} "
        f"{pick.rival_alone:.2f}. The logit of {answer!r} is a sum:",
    )
    console.print(routes.table(pick.answer, texts=texts))
    say(
        console,
        f"the terms add up to the model's logits, all {tokenizer.d_vocab:,} of them, to "
        f"{routes.error:.0e} of the largest; frozen: {', '.join(routes.frozen)}",
    )
    _tell_best_head(console, routes, pick, tokens, texts)
    return routes, tokens, pick.answer


def _tell_best_head(
    console: Console,
    routes: Routes,
    pick: Pick,
    tokens: Int[Tensor, " prefix"],
    texts: list[str],
) -> None:
    """Which head did most for the answer against its rival, and what it read for that."""
    terms = [term for term, value in routes.values(pick.answer, pick.rival) if value > 0]
    best = next((term for term in terms if isinstance(term, HeadTerm)), None)
    if best is None or best.layer is None or best.head is None:
        return
    sources = routes.by_source(best.layer, best.head, pick.answer, pick.rival)
    source = int(sources.argmax())
    back = pick.position - source
    where = f"{back} token{'s' if back > 1 else ''} back" if back else "the token itself"
    say(
        console,
        f"{best.name} does most to put {texts[pick.answer]!r} before {texts[pick.rival]!r}: "
        f"{float(sources.sum()):+.2f} nats between their logits, {float(sources[source]):+.2f} of "
        f"it from reading {texts[tokens[source]]!r}, {where}",
    )


@t.no_grad()
def most_helped(model: Transformer, rows: Int[Tensor, "batch posn"]) -> Pick:
    """The right prediction that gains most from what stands before its own token.

    If none is right, the prediction whose truth gains most. What follows an end-of-text comes last:
    how a document begins is a dull question.
    """
    rows = rows.to(model.device)
    here, truths = rows[:, 1:-1].contiguous(), rows[:, 2:]
    full = model(rows)[:, 1:-1].softmax(-1)
    tokens = t.tensor(sorted(set(here.flatten().tolist())), device=model.device)
    alone = model(t.stack([rows[0, :1].expand(len(tokens)), tokens], 1))[:, 1].softmax(-1)
    alone = alone[t.searchsorted(tokens, here)]
    gain = (full / alone).log().gather(-1, truths[..., None])[..., 0]
    gain = gain.where(full.argmax(-1) == truths, gain - 1e6)
    gain = gain - 2e6 * (here == rows[0, 0])  # the id of BOS, which is end-of-text's too
    row, place = divmod(int(gain.argmax()), gain.shape[1])
    answer = int(full[row, place].argmax())
    rivals = alone[row, place].index_fill(0, t.tensor(answer, device=model.device), 0.0)
    return Pick(
        row=row,
        position=place + 1,
        answer=answer,
        truth=int(truths[row, place]),
        rival=int(rivals.argmax()),
        answer_now=float(full[row, place, answer]),
        answer_alone=float(alone[row, place, answer]),
        rival_alone=float(rivals.max()),
    )
