"""A model that writes: the window it sees, the loop that appends, and when to stop.

How one token is chosen from its logits is in `strategies.py`.
"""

from collections.abc import Iterator

import torch as t
from jaxtyping import Float
from torch import Tensor

from pvml.data.tokenizer import Tokenizer
from pvml.errors import PvmlError
from pvml.modules.cache import KVCache
from pvml.modules.inference import inference
from pvml.modules.transformer import Transformer
from pvml.sampling.args import SamplingArgs
from pvml.sampling.strategies import next_token


class Sampler:
    """Writes on from a prompt, with a model and its tokenizer.

    use_cache: keep keys and values until the window slides; False recomputes every step. Both
    give the same tokens. A listener then hears only the new positions of each step; one whose edit
    needs to see the whole window wants False.

    Raises: PvmlError for a tokenizer with more ids than the model.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, *, use_cache: bool = True) -> None:
        if tokenizer.d_vocab > model.cfg.d_vocab:
            raise PvmlError(
                f"tokenizer {tokenizer.name} has {tokenizer.d_vocab} ids and the model's d_vocab "
                f"is {model.cfg.d_vocab}: take the tokenizer that the model was trained with"
            )
        self.model, self.tokenizer, self.use_cache = model, tokenizer, use_cache

    def sample(self, prompt: str, args: SamplingArgs | None = None) -> str:
        """The prompt and what follows, as one text, without BOS and end-of-text.

        torch's global random state is neither read nor moved, and the model's train or eval mode
        is as it was.

        Raises: PvmlError for an empty prompt without BOS, or logits that nothing can be drawn from.
        """
        args = args or SamplingArgs()
        ids = self.tokenizer.encode(prompt, prepend_bos=args.prepend_bos)
        new = list(self.continue_ids(ids, args))
        if new and new[-1] == self.tokenizer.eos_token_id:
            new.pop()
        return self.tokenizer.decode(ids[args.prepend_bos :] + new)

    def continue_ids(self, ids: list[int], args: SamplingArgs) -> Iterator[int]:
        """The new token ids, one by one: at most max_new_tokens, an end-of-text id the last.

        ids: the sequence so far; with `args.prepend_bos`, ids[0] is BOS and stays in the window.

        Raises: PvmlError for an empty sequence, or logits that nothing can be drawn from.
        """
        if not ids:
            raise PvmlError("an empty prompt leaves nothing to go on from: keep prepend_bos")
        generator = t.Generator()
        if args.seed is None:
            generator.seed()
        else:
            generator.manual_seed(args.seed)
        ids = list(ids)
        reader = _Reader(self.model, args.prepend_bos, len(ids) + args.max_new_tokens)
        for _ in range(args.max_new_tokens):
            # entered for each step, because a caller may stop asking, or train in between
            with inference(self.model):
                logits = reader.logits_after(ids, self.use_cache)[: self.tokenizer.d_vocab]
            new = int(next_token(t.tensor(ids), logits, args, generator))
            yield new
            if new == self.tokenizer.eos_token_id:
                return
            ids.append(new)


class _Reader:
    """Gives the logits after a growing sequence, with as little work as is exact."""

    def __init__(self, model: Transformer, keep_first: bool, longest: int) -> None:
        self.model, self.keep_first = model, keep_first
        self.n_ctx = model.cfg.n_ctx
        self.room = min(self.n_ctx, longest)
        self.cache: KVCache | None = None

    def logits_after(self, ids: list[int], use_cache: bool) -> Float[Tensor, " d_vocab"]:
        """Scores for the token after ids, which only ever grows from call to call."""
        window = window_of(ids, self.n_ctx, self.keep_first)
        # a slid window moves every token to another position, which voids its keys and values
        if not use_cache or len(ids) > self.n_ctx:
            self.cache = None
            return self._read(window)
        if self.cache is None:
            self.cache = KVCache(
                self.model.cfg, n_ctx=self.room, device=self.model.device, dtype=self.model.dtype
            )
        return self._read(window[self.cache.length :])

    def _read(self, ids: list[int]) -> Float[Tensor, " d_vocab"]:
        tokens = t.tensor([ids], device=self.model.device)
        stream = self.model.stream(tokens, cache=self.cache)
        # one position of the vocabulary-wide product is wanted, not all of them
        logits: Tensor = self.model.unembed(stream[:, -1:])
        return logits[0, -1]


def window_of(ids: list[int], n_ctx: int, keep_first: bool) -> list[int]:
    """The last n_ctx of ids; with keep_first, ids[0] (BOS) and the last n_ctx - 1."""
    if len(ids) <= n_ctx:
        return ids
    if keep_first:
        return [ids[0], *ids[len(ids) - (n_ctx - 1) :]]
    return ids[len(ids) - n_ctx :]
