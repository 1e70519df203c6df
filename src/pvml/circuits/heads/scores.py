"""Which heads have a habit of attention, each kind beside its nulls, and what they are called.

A head gets a name only if its score is beyond what the same head does where the relation is gone
and all else stays, and beyond what random heads do in its place. What is asked of it is in
`patterns.py`, the random heads are in `random_heads.py`; what a head then does to the logits is in
`paths/routes.py`. Source of previous-token and induction heads: Olsson et al. 2022,
arXiv:2209.11895, sections 3 and 4.
"""

from collections.abc import Collection, Sequence
from typing import get_args
from zlib import crc32

import torch as t
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from pvml.circuits.chance import chance_of
from pvml.circuits.heads.names import (
    USUAL,
    HeadScore,
    RandomHeads,
)
from pvml.circuits.heads.patterns import (
    Kind,
    Text,
    Texts,
    Trial,
    measure_all,
    words_of,
)
from pvml.circuits.heads.random_heads import (
    FEWEST_RANDOM,
    MOST_RANDOM,
    N_RANDOM,
    chance_of_share,
    random_shares,
)
from pvml.errors import PvmlError
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer

_FEWEST = 8
"""Tokens in a sequence, and distinct tokens in a text, below which there is nothing to ask."""


def find_heads(
    model: Transformer, tokens: Int[Tensor, "batch posn"], seed: int = 0, n_sequences: int = 64
) -> list[HeadScore]:
    """A previous-token and an induction score for every head, each with its shuffled null and p.

    Two of the scores of `head_scores`, previous-token on natural text and induction on repeated
    tokens, quickly: no random heads are asked, so whether they would do as much is not known.

    Raises: as `head_scores`.
    """
    return _head_scores(model, tokens, USUAL, seed, n_sequences, 0)


def head_scores(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    *,
    kinds: Collection[Kind] = get_args(Kind),
    texts: Collection[Text] = get_args(Text),
    seed: int = 0,
    n_sequences: int = 64,
    n_random: int = N_RANDOM,
) -> list[HeadScore]:
    """A score of each kind on each text for every head, with two nulls and their p.

    tokens: rows of natural text, each with BOS first; `n_sequences` of them are used. The repeated
    texts are BOS and distinct random tokens of that text, twice in the same order.

    Previous token: the share of position i on i - 1. Null: the same text with everything behind BOS
    shuffled, and the share on the token that had stood before, wherever it is now (if it is
    visible; rows count equally, as they do in the score). A head that is after certain tokens finds
    them there as well; one that reads the place before does not.
    Current token: the share of i on itself; first token: on position 0, where BOS stands (a head
    that parks there). No order of the tokens takes either away, so the null draws the place: the
    share on any other that is visible.
    Duplicate token: the share on all earlier places of the same token; induction: on what followed
    them. On natural text it is asked where the token was there before. Null: the same row of
    attention, and the places of the token of a later position that was there before as well. On
    repeated tokens: the repetition shuffled, and the share on the same positions: a head that
    reads so far back whatever the tokens are does as well there. A head that knows which tokens
    follow each other scores in natural text too: only repeated tokens tell it from induction.
    Natural text in which no token comes back gets no score of these two.
    The name also needs the places beside it (up to three) to get no more.

    Shuffled p: each sequence with its shuffled twin, by random flips of the sign of their
    difference, which takes that difference to be symmetric about 0 if the head does not care. Too
    few sequences cannot reach `SIGNIFICANCE`, and then no head is named.
    Random heads: `n_random` in the place of each head, with its norm of W_Q W_K^T, reading the same
    stream; 0 leaves them out. p: `random_heads.chance_of_share`, on a sample of the sequences.
    Both p are times the number of scores (Bonferroni).
    The time that random heads take grows with layers, heads and texts, and fastest with the tokens
    of a row.

    Raises: PvmlError for rows or a vocabulary in them too short to ask, for no rows, for what are
        no token ids of this model, for an unknown kind or text or none, for 1 to 99 random heads
        or too many, if nothing can be asked, or if the model's attention is not finite.
    """
    for what, given, known in (("kinds", kinds, get_args(Kind)), ("texts", texts, get_args(Text))):
        if not given or not set(given) <= set(known):
            raise PvmlError(f"{what} must be some of {', '.join(known)}; got {given!r}")
    if n_random and n_random < FEWEST_RANDOM:
        raise PvmlError(f"n_random must be 0 or at least {FEWEST_RANDOM} heads, got {n_random}")
    if n_random > MOST_RANDOM:
        raise PvmlError(f"n_random must be at most {MOST_RANDOM:,} heads, got {n_random}")
    asked = [
        (kind, text)
        for kind in get_args(Kind)
        for text in get_args(Text)
        if kind in kinds and text in texts
    ]
    return _head_scores(model, tokens, asked, seed, n_sequences, n_random)


@t.no_grad()
def _head_scores(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    asked: Sequence[tuple[Kind, Text]],
    seed: int,
    n_sequences: int,
    n_random: int,
) -> list[HeadScore]:
    check_tokens(tokens, model.cfg)
    rng = t.Generator().manual_seed(seed)
    natural = _chosen(model, tokens, n_sequences, rng)
    if not model.cfg.n_layers:
        return []
    drawn = Texts.draw(natural, model.cfg.n_ctx, n_sequences, rng)
    every = (drawn.trial(kind, text, _rng(seed, f"{kind} {text}")) for kind, text in asked)
    trials = [trial for trial in every if len(trial.sequences)]
    if not trials:
        raise PvmlError(
            f"nothing can be asked: no token of this text comes back, where "
            f"{' and '.join(dict.fromkeys(kind for kind, _ in asked))} heads would look for it"
        )
    n_tests = len(trials) * model.cfg.n_layers * model.cfg.n_heads
    questions = [
        (
            (trial.tokens, trial.question),
            *((trial.tokens, place) for place in trial.beside),
            (trial.null_tokens, trial.null),
        )
        for trial in trials
    ]
    answers = iter(measure_all(model, [one for of_trial in questions for one in of_trial]))
    random = _random(model, trials, n_random, n_tests, seed)
    scores = []
    for trial, of_trial in zip(trials, questions, strict=True):
        found, *beside, null = (next(answers)[trial.sequences] for _ in of_trial)
        ahead = found.mean(0) >= t.stack(beside).mean(1).amax(0)
        spread = null.std(0, correction=min(1, len(null) - 1))
        chances = chance_of(
            rearrange(found - null, "batch layer head -> batch (layer head)"),
            n_tests,
            _rng(seed, f"tosses {trial.kind} {trial.text}"),
        )
        for i, chance in enumerate(chances):
            layer, head = divmod(i, model.cfg.n_heads)
            scores.append(
                HeadScore(
                    kind=trial.kind,
                    text=trial.text,
                    layer=layer,
                    head=head,
                    score=float(found[:, layer, head].mean()),
                    null_mean=float(null[:, layer, head].mean()),
                    null_spread=float(spread[layer, head]),
                    p=min(1.0, chance * n_tests),
                    ahead=bool(ahead[layer, head]),
                    random=random.get((trial.kind, trial.text, layer, head)),
                    processing=model.processing,
                )
            )
    return scores


def _random(
    model: Transformer, trials: Sequence[Trial], n_random: int, n_tests: int, seed: int
) -> dict[tuple[Kind, Text, int, int], RandomHeads]:
    """Random heads in the place of each head, for each trial; none if there are to be none."""
    found = {}
    for text in get_args(Text) if n_random else ():
        of_text = [trial for trial in trials if trial.text == text]
        if not of_text:
            continue
        real, null = random_shares(
            model,
            of_text[0].tokens,
            [trial.question for trial in of_text],
            n_random,
            _rng(seed, f"random heads {text}"),
        )
        for trial, own, others in zip(of_text, real, null, strict=True):
            for layer in range(model.cfg.n_layers):
                for head in range(model.cfg.n_heads):
                    by_chance = others[layer, head]
                    p = chance_of_share(float(own[layer, head]), by_chance) * n_tests
                    found[trial.kind, trial.text, layer, head] = RandomHeads(
                        mean=float(by_chance.mean()),
                        spread=float(by_chance.std()),
                        p=min(1.0, p),
                    )
    return found


def _rng(seed: int, purpose: str) -> t.Generator:
    """A generator of its own for each purpose: what else is asked must not change a score."""
    return t.Generator().manual_seed(crc32(f"{seed} {purpose}".encode()))


def _chosen(
    model: Transformer, tokens: Int[Tensor, "rows n_ctx"], n_sequences: int, rng: t.Generator
) -> Int[Tensor, "batch posn"]:
    length = min(tokens.shape[1], model.cfg.n_ctx)
    if len(tokens) == 0 or n_sequences < 1:
        raise PvmlError("heads are looked for in text: give at least one row of it")
    text = tokens[t.randperm(len(tokens), generator=rng)[:n_sequences], :length].cpu().long()
    for what, size in (("tokens a row", length), ("distinct tokens", len(words_of(text)))):
        if size < _FEWEST:
            raise PvmlError(
                f"heads are looked for in at least {_FEWEST} {what} (n_ctx {model.cfg.n_ctx}), "
                f"got {size}"
            )
    return text
