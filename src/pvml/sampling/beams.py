"""Beam search: several texts are carried forward together, and the likeliest of them are found.

What was considered on the way is kept in `beam_record.py`'s words and drawn by `beam_tree.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch as t
from jaxtyping import Float, Int
from torch import Tensor

from pvml.data.tokenizer import Ids, Tokenizer
from pvml.errors import PvmlError
from pvml.modules.cache import KVCache
from pvml.modules.inference import inference
from pvml.modules.packed import packed_for
from pvml.modules.transformer import Transformer
from pvml.sampling.beam_args import BeamArgs
from pvml.sampling.beam_record import Candidate, Fate, Search, score
from pvml.sampling.filters import require_usable
from pvml.sampling.penalties import ban_repeated_ngrams
from pvml.sampling.reader import known_row, routes, window_of


@dataclass(frozen=True)
class Beams:
    """Texts of one length, each with the sum of its new tokens' log-probabilities."""

    logprob_sums: Float[Tensor, " beam"]
    """In nats, float64."""
    tokens: Int[Tensor, "beam posn"]
    """The whole texts, prompt included."""
    parents: Int[Tensor, " beam"]
    """Which beam of the step before each goes on from, counted from 0."""

    @classmethod
    def start(cls, ids: Sequence[int]) -> "Beams":
        """The prompt as one beam, to which nothing has been added."""
        return cls(t.zeros(1, dtype=t.float64), t.tensor([list(ids)]), t.zeros(1, dtype=t.long))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice | Tensor) -> "Beams":
        """Some of the beams, by a slice, a mask or indices."""
        return Beams(self.logprob_sums[rows], self.tokens[rows], self.parents[rows])

    def links(self) -> list[tuple[int, int]]:
        """Parent and last token of each beam, which no other beam of its step has."""
        return list(zip(self.parents.tolist(), self.tokens[:, -1].tolist(), strict=True))

    def generate(
        self, k: int, logprobs: Float[Tensor, "beam d_vocab"], eos_token_id: int | None = None
    ) -> "Beams":
        """Each beam with each of its k likeliest next tokens: k times as many, largest sum first.

        A beam with end-of-text among its k gives one more, so that k of its go on. Tokens at -inf
        give none. Among equal sums, earlier beams and lower ids come first.
        """
        values, ids = _best(logprobs, k + 1)
        with_eos = t.zeros(len(self), dtype=t.bool)
        if eos_token_id is not None:
            with_eos = (ids[:, :k] == eos_token_id).any(-1)
        wanted = t.arange(ids.shape[-1]) < k + with_eos.long()[:, None]
        parents, place = (wanted & ~values.isneginf()).nonzero(as_tuple=True)
        sums = self.logprob_sums[parents] + values[parents, place]
        longer = t.cat([self.tokens[parents], ids[parents, place][:, None]], dim=1)
        return Beams(sums, longer, parents)[sums.argsort(descending=True, stable=True)]

    def filter(self, k: int, eos_token_id: int | None = None) -> tuple["Beams", "Beams"]:
        """The best k beams that go on, and those of the best k that have just ended.

        Expects the order of `generate`: all beams compete, whatever they go on from.
        """
        ended = t.zeros(len(self), dtype=t.bool)
        if eos_token_id is not None:
            ended = self.tokens[:, -1] == eos_token_id
        return self[~ended][:k], self[:k][ended[:k]]


@dataclass(frozen=True, kw_only=True)
class BeamText:
    """A text that a beam search found."""

    text: str
    """The prompt and what follows, without BOS and end-of-text."""
    ids: tuple[int, ...]
    """The new tokens; end-of-text the last where the text ended by itself."""
    logprob_sum: float
    """Of the new tokens, end-of-text included (nats)."""
    score: float
    """What it was ranked by: `logprob_sum / len(ids) ** length_penalty`."""
    ended: bool
    """By itself, rather than cut at max_new_tokens."""


def beam_search(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: str,
    args: BeamArgs | None = None,
    *,
    use_cache: bool = True,
) -> list[BeamText]:
    """The texts that a beam search from the prompt finds, best score first.

    use_cache: as for `search`.

    Raises: PvmlError as `search_from` does.
    """
    return texts(search_from(model, tokenizer, prompt, args, use_cache=use_cache), tokenizer)


def search_from(
    model: Transformer,
    tokenizer: Tokenizer,
    prompt: str,
    args: BeamArgs | None = None,
    *,
    use_cache: bool = True,
) -> Search:
    """The whole beam search from a prompt, for `texts`, `draw_texts` and `draw_steps`.

    use_cache: as for `search`.

    Raises: PvmlError for a tokenizer with more ids than the model, and as `search` does.
    """
    if tokenizer.d_vocab > model.cfg.d_vocab:
        raise PvmlError(
            f"tokenizer {tokenizer.name} has {tokenizer.d_vocab} ids and the model's d_vocab "
            f"is {model.cfg.d_vocab}: take the tokenizer that the model was trained with"
        )
    args = args or BeamArgs()
    _require_beam_args(args)
    ids = tokenizer.encode(prompt, prepend_bos=args.prepend_bos)
    return search(
        model,
        ids,
        args,
        eos_token_id=tokenizer.eos_token_id,
        d_vocab=tokenizer.d_vocab,
        use_cache=use_cache,
    )


def texts(search: Search, tokenizer: Tokenizer) -> list[BeamText]:
    """What a search found, as texts, best score first."""
    found = []
    for result in search.results:
        ended = result.fate == "ended"
        ids = result.ids
        written = [*search.prompt[search.args.prepend_bos :], *ids[: len(ids) - ended]]
        found.append(
            BeamText(
                text=tokenizer.decode(written),
                ids=ids,
                logprob_sum=result.logprob_sum,
                score=search.score(result),
                ended=ended,
            )
        )
    return found


def search(
    model: Transformer,
    ids: Ids,
    args: BeamArgs,
    *,
    eos_token_id: int | None = None,
    d_vocab: int | None = None,
    use_cache: bool = True,
) -> Search:
    """A beam search from token ids: num_beams texts are carried forward until none can be better.

    Complete are those of a step's best num_beams that end in end-of-text and, at max_new_tokens,
    its best num_beams; the num_beams with the best scores are kept. Tokens and scores are those of
    Hugging Face's `generate`. The model's train or eval mode is as it was.

    ids: with `args.prepend_bos`, ids[0] is BOS and stays in the window. eos_token_id: unset, no
    text ends by itself. d_vocab: how many ids may be chosen; unset, all of the model's. use_cache:
    False reads every text whole at each step, for an edit that needs to see it whole; the texts are
    the same.

    Raises: PvmlError for an empty sequence, an id that is none of the model's, logits with NaN, or
    a ban that leaves no text possible.
    """
    _require_beam_args(args)
    ids = known_row(ids, model.cfg.d_vocab)
    k = args.num_beams
    longest = len(ids) + args.max_new_tokens
    reader = _Reader(model, args.prepend_bos, longest, d_vocab, use_cache)
    beams = Beams.start(ids)
    running: list[Candidate | None] = [None]
    steps: list[tuple[Candidate, ...]] = []
    complete: list[Candidate] = []
    with inference(model):
        for length in range(1, args.max_new_tokens + 1):
            logprobs = reader.logprobs(beams)
            logprobs = ban_repeated_ngrams(beams.tokens, logprobs, args.no_repeat_ngram_size)
            candidates = beams.generate(k, logprobs, eos_token_id)
            beams, done = candidates.filter(k, eos_token_id)
            if length == args.max_new_tokens:
                beams, done = candidates[:0], candidates[:k]
            step = _record(candidates, beams, done, running, length, eos_token_id)
            steps.append(tuple(step.values()))
            running = [step[link] for link in beams.links()]
            complete += [step[link] for link in done.links()]
            complete = sorted(complete, key=lambda text: _score(text, args), reverse=True)[:k]
            if not len(beams) or _settled(float(beams.logprob_sums[0]), length, complete, args):
                break
    if not complete:
        raise PvmlError(
            f"after {len(steps)} new tokens no token is possible any more: no_repeat_ngram_size "
            f"{args.no_repeat_ngram_size} bans all; choose a larger one, or 0"
        )
    return Search(prompt=tuple(ids), args=args, steps=tuple(steps), complete=tuple(complete))


def _require_beam_args(args: object) -> None:
    if not isinstance(args, BeamArgs):
        raise PvmlError(f"args must be a BeamArgs, got {type(args).__name__} {args!r:.80}")


def _record(
    candidates: Beams,
    kept: Beams,
    done: Beams,
    running: Sequence[Candidate | None],
    length: int,
    eos_token_id: int | None,
) -> dict[tuple[int, int], Candidate]:
    """What a step considered, in its order, by `Beams.links`."""
    fates: dict[tuple[int, int], Fate] = dict.fromkeys(kept.links(), "kept")
    for link in done.links():
        fates[link] = "ended" if link[1] == eos_token_id else "cut"
    return {
        link: Candidate(
            token=link[1],
            logprob_sum=logprob_sum,
            length=length,
            fate=fates.get(link, "dropped"),
            parent=running[link[0]],
        )
        for link, logprob_sum in zip(
            candidates.links(), candidates.logprob_sums.tolist(), strict=True
        )
    }


def _score(text: Candidate, args: BeamArgs) -> float:
    return score(text.logprob_sum, text.length, args.length_penalty)


def _settled(best_sum: float, length: int, complete: Sequence[Candidate], args: BeamArgs) -> bool:
    """Whether no text that still runs is taken to end better than the worst complete one.

    best_sum: of those that run, which have `length` new tokens.
    """
    if len(complete) < args.num_beams:
        return False
    # one beam has nothing to weigh its end against: it is greedy search
    if args.early_stopping is True or args.num_beams == 1:
        return True
    # sums only fall, so that a score can only rise by the length it is divided by
    if args.early_stopping == "never" and args.length_penalty > 0:
        length = args.max_new_tokens
    return score(best_sum, length, args.length_penalty) <= _score(complete[-1], args)


def _best(
    logprobs: Float[Tensor, "beam d_vocab"], n: int
) -> tuple[Float[Tensor, "beam n"], Int[Tensor, "beam n"]]:
    """Each row's n largest and their ids: largest first, among equals the lowest id first."""
    n = min(n, logprobs.shape[-1])
    least = logprobs.topk(n).values[:, -1:]
    found = []
    for row, reached in zip(logprobs, logprobs >= least, strict=True):
        ids = reached.nonzero()[:, 0]
        found.append(ids[row[ids].argsort(descending=True, stable=True)[:n]])
    best = t.stack(found)
    return logprobs.gather(-1, best), best


class _Reader:
    """Gives the log-probabilities after each beam, with as little work as is exact."""

    def __init__(
        self,
        model: Transformer,
        keep_first: bool,
        longest: int,
        d_vocab: int | None,
        use_cache: bool,
    ) -> None:
        self.model, self.keep_first, self.d_vocab = model, keep_first, d_vocab
        self.use_cache = use_cache
        self.packed = packed_for(model, "float32")
        if self.packed is not None:
            self.packed.refresh()
        self.n_ctx = model.cfg.n_ctx
        self.room = min(self.n_ctx, longest)
        self.cache: KVCache | None = None
        self.cached: Int[Tensor, "beam posn"] = t.empty(0, 0, dtype=t.long)
        """The tokens that the cache holds."""

    def logprobs(self, beams: Beams) -> Float[Tensor, "beam d_vocab"]:
        """For the token after each beam, in float64 on the CPU; beams only grow from call to call.

        Raises: PvmlError for logits that are no distribution.
        """
        new = beams.tokens
        # a slid window moves every token to another position, which voids its keys and values
        if not self.use_cache or new.shape[1] > self.n_ctx:
            self.cache = None
            rows = [window_of(row, self.n_ctx, self.keep_first) for row in new.tolist()]
            new = t.tensor(rows)
        elif self.cache is None:
            self.cache = KVCache(
                self.model.cfg,
                batch=len(beams),
                n_ctx=self.room,
                device=self.model.device,
                dtype=self.model.dtype,
            )
        else:
            self._follow(beams.parents)
            new = new[:, self.cache.length :]
        self.cached = beams.tokens
        new = new.to(self.model.device)
        # one position of the vocabulary-wide product is wanted, not all of them
        with routes(self.model, self.packed, new):
            stream = self.model.stream(new, cache=self.cache)
            logits: Tensor = self.model.unembed(stream[:, -1:])[:, 0, : self.d_vocab]
        # on the CPU, so that every device gives the same order (and MPS has no float64)
        logprobs = logits.cpu().double().log_softmax(-1)
        if logprobs.isnan().any():
            require_usable(logits, f" of the beams after {beams.tokens.shape[1]} tokens")
        return logprobs

    def _follow(self, parents: Int[Tensor, " beam"]) -> None:
        """Let the cache hold, for each beam, what its parent had."""
        assert self.cache is not None
        differs = (self.cached != self.cached[0]).any(0).nonzero()
        n_shared = int(differs[0]) if len(differs) else self.cached.shape[1]
        self.cache.select(parents.to(self.model.device), n_shared)


if __name__ == "__main__":
    from pvml.demos.beams import main

    main()
