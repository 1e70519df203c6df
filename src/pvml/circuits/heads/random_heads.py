"""What random heads would look at in the place of a model's own, reading the very same stream.

A stream has structure (positions, a first token unlike all others) that any head follows to some
degree, so a score says something only beside those of heads that were never trained. W_Q and W_K
are drawn from the normal distribution and scaled so that W_Q W_K^T has the real head's Frobenius
norm. The product's, because a pattern depends on nothing else of the two: W_Q times 2 and W_K over
2 are the same head, whose own norms say nothing. Training aligns the two, so the product of real
matrices is larger than that of random ones of their norms, which would attend too evenly.
b_Q is drawn as well, so that b_Q W_K^T, by which a head prefers some keys whoever asks, has its
real norm. b_K adds the same to all scores of a query, which changes no pattern, and is left out.
"""

from collections.abc import Sequence

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.circuits.chance import chance_above
from pvml.circuits.heads.patterns import Question
from pvml.circuits.held import block_of, wide
from pvml.modules.attention import Attention
from pvml.modules.transformer import Transformer
from pvml.trace.tap import listen

N_RANDOM = 200
"""Random heads that are drawn for each layer, and scaled to the norm of each of its heads."""
FEWEST_RANDOM, MOST_RANDOM = 100, 100_000

_SEQUENCES = 8
_READERS = 16
"""Of each question in each sequence."""
_NUMBERS = 1 << 22
"""In the largest tensor that random heads need together."""


@t.no_grad()
def random_shares(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    questions: Sequence[Question],
    n: int,
    rng: t.Generator,
) -> tuple[
    Float[Tensor, "questions n_layers n_heads"], Float[Tensor, "questions n_layers n_heads n"]
]:
    """The answers of every head, and of n random heads in its place, on a sample of the readers.

    Some readers of some sequences, the same for all heads: what the choice of them does to a score
    is in both. Memory: the streams that the layers read there, and a few times 16 MiB.
    """
    sequences = _some_sequences(questions, rng)
    readers, wanted = _sample(questions, sequences, tokens.shape[1], rng)
    streams, patterns = _watch(model, tokens[sequences], readers)
    wanted, readers = (x.to(model.device) for x in (wanted, readers))
    real = t.stack([_shares(pattern.transpose(0, 1), wanted) for pattern in patterns])
    null = t.stack(
        [
            _random_layer(block_of(model, layer).attn, stream, readers, wanted, n, rng)
            for layer, stream in enumerate(streams)
        ]
    )
    return real.permute(2, 0, 1).cpu().double(), null.permute(3, 0, 1, 2).cpu().double()


def chance_of_share(share: float, null: Float[Tensor, " n"]) -> float:
    """The probability that a random head's share reaches this one, given those of some.

    By log-odds, which have no edge at 0 and 1: for given keys they are about as normally
    distributed as scores are. Their upper half, mirrored at the median, is the null: below it, a
    few heads that never look there would widen it without end.
    """
    odds = _log_odds(null).sort().values
    above = odds[len(odds) // 2 :] - odds[len(odds) // 2]
    # a hair less: a share that all heads have must not be beyond them by rounding
    own = _log_odds(t.tensor(share - 1e-6, dtype=null.dtype)) - odds[len(odds) // 2]
    return chance_above(float(own), t.cat([above, -above]))


def _log_odds(share: Tensor) -> Tensor:
    # float32 knows shares near 0, but not near 1
    return share.clamp(min=1e-30).log() - (1 - share).clamp(min=1e-7).log()


def _some_sequences(questions: Sequence[Question], rng: t.Generator) -> Int[Tensor, " sequences"]:
    """At random, those first in which every question has readers."""
    asked = t.stack([(question.weights > 0).sum(1) for question in questions])
    order = asked.amin(0).clamp(max=_READERS) + t.rand(asked.shape[1], generator=rng)
    return order.topk(min(_SEQUENCES, len(order))).indices


def _sample(
    questions: Sequence[Question],
    sequences: Int[Tensor, " sequences"],
    posn: int,
    rng: t.Generator,
) -> tuple[Int[Tensor, "sequences readers"], Float[Tensor, "questions sequences readers posn"]]:
    """Some readers, and each question as the weight of every place that they see."""
    which = t.arange(len(sequences))[:, None]
    asked = t.zeros(len(questions), len(sequences), posn, posn)
    for grid, question in zip(asked, questions, strict=True):
        places = (which, question.readers[sequences], question.read[sequences])
        grid.index_put_(places, question.weights[sequences].float(), accumulate=True)
    serves = asked.amax(-1)
    # one key for all questions, so that they share readers where they can
    keys = t.rand(len(sequences), posn, generator=rng).where(serves > 0, -1.0)
    best = keys.topk(min(_READERS, posn)).indices
    chosen = t.zeros_like(serves, dtype=t.bool).scatter(2, best, value=True) & (serves > 0)
    anyone = chosen.any(0)
    readers = anyone.int().topk(int(anyone.sum(1).max())).indices
    wanted = asked[:, which, readers]
    return readers, wanted / wanted.amax(-1).sum((1, 2))[:, None, None, None]


def _watch(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    readers: Int[Tensor, "batch readers"],
) -> tuple[
    list[Float[Tensor, "batch posn d_model"]], list[Float[Tensor, "batch n_heads readers posn"]]
]:
    """What the heads of each layer make queries and keys of, and what they do."""
    reads = "qk_input" if model.cfg.positions == "shortformer" else "normalized_resid_pre"
    streams: list[list[Tensor]] = [[] for _ in range(model.cfg.n_layers)]
    patterns: list[list[Tensor]] = [[] for _ in range(model.cfg.n_layers)]
    for row, asked in zip(tokens, readers, strict=True):

        def keep(name: str, x: Tensor, asked: Tensor = asked) -> None:
            layer = int(name.split(".")[1])
            if name.endswith(reads):
                streams[layer].append(wide(x[0]))
            else:
                patterns[layer].append(wide(x[0, :, asked.to(x.device)]))

        with listen(model, [f"blocks.*.attn.{reads}", "blocks.*.attn.attn_pattern"], keep):
            model.stream(row[None].to(model.device))
    return [t.stack(of_layer) for of_layer in streams], [t.stack(of_layer) for of_layer in patterns]


def _random_layer(
    attn: Attention,
    stream: Float[Tensor, "batch posn d_model"],
    readers: Int[Tensor, "batch readers"],
    wanted: Float[Tensor, "questions batch readers posn"],
    n: int,
    rng: t.Generator,
) -> Float[Tensor, "n_heads n questions"]:
    """The answers of n random heads, scaled to the norms of each of a layer's."""
    norms = _norms(*(wide(x) for x in (attn.W_Q, attn.W_K, attn.b_Q)))
    n_heads, d_model, d_head = attn.W_Q.shape
    asking = stream.gather(1, readers[..., None].expand(-1, -1, d_model))
    hidden = t.arange(stream.shape[1], device=stream.device) > readers[..., None]
    at_once = _NUMBERS // (stream.shape[0] * stream.shape[1] * max(readers.shape[1], d_head))
    null = stream.new_empty(n_heads, n, len(wanted))
    for part in t.split(t.arange(n), max(1, at_once)):
        W_Q, W_K, b_Q = (
            t.randn(len(part), *shape, generator=rng).to(stream)
            for shape in ((d_model, d_head), (d_model, d_head), (d_head,))
        )
        product, leaning = _norms(W_Q, W_K, b_Q)
        queries = t.einsum("brd,nde->nbre", asking, W_Q)
        keys = t.einsum("bpd,nde->nbpe", stream, W_K)
        scores = queries @ keys.mT / product[:, None, None, None]
        leans = (keys @ b_Q[:, None, :, None]).mT / leaning[:, None, None, None]
        for head, (real_product, real_leaning) in enumerate(zip(*norms, strict=True)):
            own = (real_product * scores + real_leaning * leans) / d_head**0.5
            null[head, part] = _shares(own.masked_fill(hidden, -t.inf).softmax(-1), wanted)
    return null


def _norms(
    W_Q: Float[Tensor, "heads d_model d_head"],
    W_K: Float[Tensor, "heads d_model d_head"],
    b_Q: Float[Tensor, "heads d_head"],
) -> tuple[Float[Tensor, " heads"], Float[Tensor, " heads"]]:
    """|W_Q W_K^T|, from d_head x d_head products, and |b_Q W_K^T|."""
    product = ((W_Q.mT @ W_Q) * (W_K.mT @ W_K)).sum((1, 2)).sqrt()
    return product, (W_K @ b_Q[:, :, None]).norm(dim=(1, 2))


def _shares(
    pattern: Float[Tensor, "heads batch readers posn"],
    wanted: Float[Tensor, "questions batch readers posn"],
) -> Float[Tensor, "heads questions"]:
    return pattern.flatten(1) @ wanted.to(pattern).flatten(1).T
