"""A model that writes: the loop that asks for logits, chooses tokens and appends them.

How one token is chosen from its logits is in `strategies.py`, what the model sees in `reader.py`,
when a text ends in `writing.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch as t
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pvml.data.tokenizer import Ids, Tokenizer
from pvml.errors import PvmlError
from pvml.modules.inference import inference
from pvml.modules.packed import Kind, packed_for
from pvml.modules.transformer import Transformer
from pvml.plain import is_whole, plain
from pvml.sampling.args import SamplingArgs
from pvml.sampling.explain import Explanation, explain_token
from pvml.sampling.reader import Reader, Window, block_of, known_row, window_of
from pvml.sampling.strategies import next_token
from pvml.sampling.writing import End, Writing


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a model wrote after a prompt."""

    prompt: str
    text: str
    """What follows the prompt, without end-of-text and without a stop string."""
    ids: tuple[int, ...]
    """Every new token: also end-of-text, and those that a stop string came with."""
    end: End
    """Why the text ends."""
    explanations: tuple[Explanation, ...] = ()
    """One for each new token, where they were asked for."""


class Sampler:
    """Writes on from prompts, with a model and its tokenizer.

    use_cache: keep keys and values until the window slides; False recomputes every step. Both
    give the same tokens. A listener then hears only the new positions of each step; one whose edit
    needs to see the whole window wants False. Of several sequences it hears a batch: shorter ones
    are padded on the left, and those that have ended are no longer in it.

    window: what is seen of a text that no longer fits into n_ctx. "exact": BOS and the last
    n_ctx - 1 tokens, at every step; a token then costs as much as reading n_ctx of them. "blocks":
    when n_ctx is full a quarter of it is dropped at once, and the cache is used until it is full
    again; a token then sees between three quarters of n_ctx and all of it, so that other text
    comes, much faster.

    weights: "float32", or "int8" for matrices rounded to 8-bit numbers, which is another, nearly
    equal model. It is faster for one text, and slower for many.

    torch's global random state is neither read nor moved, and the model's train or eval mode is as
    it was.

    Raises: PvmlError for a tokenizer with more ids than the model, for an unknown window, or for
        int8 weights of a model that is not in float32 on a CPU.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        *,
        use_cache: bool = True,
        window: Window = "exact",
        weights: Kind = "float32",
    ) -> None:
        if tokenizer.d_vocab > model.cfg.d_vocab:
            raise PvmlError(
                f"tokenizer {tokenizer.name} has {tokenizer.d_vocab} ids and the model's d_vocab "
                f"is {model.cfg.d_vocab}: take the tokenizer that the model was trained with"
            )
        self.model, self.tokenizer, self.use_cache = model, tokenizer, use_cache
        self.window: Window = window
        block_of(window, model.cfg.n_ctx)
        self.packed = packed_for(model, weights)

    def sample(self, prompt: str, args: SamplingArgs | None = None) -> str:
        """The prompt and what follows, as one text, without BOS and end-of-text.

        Raises: PvmlError for an empty prompt without BOS, or logits that nothing can be drawn from.
        """
        return prompt + self.complete(prompt, args).text

    def sample_batch(
        self, prompts: Sequence[str], args: SamplingArgs | None = None, n: int = 1
    ) -> list[str]:
        """What `sample` gives for many prompts, of whatever lengths, computed side by side.

        n: texts for each prompt; those of a prompt stand together. Each text depends on its own
        prompt and seed alone: text i is the one that `sample` gives with the seed args.seed + i
        (counting past 2**63 - 1 goes on at 0). Half and single precision round a batch otherwise
        than a row, which can tip a draw; in float64 that is as good as impossible.

        Raises: PvmlError as `sample` does, naming the text's place, counted from 0, among all that
            were asked for; for an n below 1.
        """
        return [one.prompt + one.text for one in self.complete_batch(prompts, args, n)]

    def stream(self, prompt: str, args: SamplingArgs | None = None) -> Iterator[str]:
        """What follows the prompt, in pieces as it comes; joined, they are what `sample` adds.

        A piece holds whole characters, and nothing that may turn out to belong to a stop string.

        Raises: PvmlError as `sample` does, when the first piece is asked for.
        """
        args = _known(args)
        writing = self._begin(prompt, args)
        for _ in self._steps([writing], args):
            if text := writing.text():
                yield text

    def explained(
        self, prompt: str, args: SamplingArgs | None = None
    ) -> Iterator[tuple[str, Explanation]]:
        """What `stream` gives, a token at a time, with the token's explanation.

        The piece is empty where a token ends no character, or may belong to a stop string.

        Raises: PvmlError as `sample` does, when the first is asked for.
        """
        args = _known(args)
        writing = self._begin(prompt, args)
        for told in self._steps([writing], args, explain=True):
            yield writing.text(), told[0]

    def complete(
        self, prompt: str, args: SamplingArgs | None = None, *, explain: bool = False
    ) -> Completion:
        """What follows a prompt, and why it ends.

        explain: say of each token where it stood in every distribution on the way, and, for an
        attention-only model, what brought its logit about. That takes another pass a token.

        Raises: PvmlError as `sample` does.
        """
        return self.complete_batch([prompt], args, explain=explain)[0]

    def complete_batch(
        self,
        prompts: Sequence[str],
        args: SamplingArgs | None = None,
        n: int = 1,
        *,
        explain: bool = False,
    ) -> list[Completion]:
        """What `complete` gives, for prompts and n as in `sample_batch`.

        Raises: PvmlError as `sample_batch` does.
        """
        args = _known(args)
        if isinstance(prompts, str):
            raise PvmlError("prompts are given as a list of texts, got one text: [prompt] makes it")
        if not is_whole(n := plain(n), 1):
            raise PvmlError(f"n must be a whole number of at least 1, got {n!r}")
        each = [prompt for prompt in prompts for _ in range(n)]
        writings = [self._begin(prompt, args, i, len(each)) for i, prompt in enumerate(each)]
        told: list[list[Explanation]] = [[] for _ in writings]
        for step in self._steps(writings, args, explain):
            for index, explanation in step.items():
                told[index].append(explanation)
        completions = []
        for prompt, writing, explanations in zip(each, writings, told, strict=True):
            assert writing.end is not None
            completions.append(
                Completion(
                    prompt=prompt,
                    text=writing.text(),
                    ids=writing.new_ids,
                    end=writing.end,
                    explanations=tuple(explanations),
                )
            )
        return completions

    def continue_ids(self, ids: Ids, args: SamplingArgs) -> Iterator[int]:
        """The new token ids, one by one: at most max_new_tokens, an end-of-text id the last.

        ids: the sequence so far; with `args.prepend_bos`, ids[0] is BOS and stays in the window.
        A stop string ends them too: the last id is the one that completes it.

        Raises: PvmlError for an empty sequence, an id that is none of the model's, or logits that
            nothing can be drawn from.
        """
        writing = Writing(self.tokenizer, known_row(ids, self.model.cfg.d_vocab), _known(args))
        for _ in self._steps([writing], args):
            yield writing.ids[-1]

    def _begin(self, prompt: str, args: SamplingArgs, index: int = 0, n_texts: int = 1) -> Writing:
        ids = self.tokenizer.encode(prompt, prepend_bos=args.prepend_bos)
        if not ids:
            which = f"text {index} of {n_texts}: " if n_texts > 1 else ""
            raise PvmlError(
                f"{which}an empty prompt leaves nothing to go on from: keep prepend_bos"
            )
        return Writing(self.tokenizer, ids, args, index)

    def _steps(
        self, writings: Sequence[Writing], args: SamplingArgs, explain: bool = False
    ) -> Iterator[Mapping[int, Explanation]]:
        """Give every sequence that has not ended one more token, until all have.

        Yields the explanations after each step, by the sequence's place; empty unless asked for.
        """
        longest = max((len(writing.ids) for writing in writings), default=0) + args.max_new_tokens
        if self.packed is not None:
            self.packed.refresh()
        reader = Reader(
            self.model, args.prepend_bos, longest, self.use_cache, self.window, self.packed
        )
        history = _padded([writing.ids for writing in writings])
        parts = list(self.model.modules())
        while going := {i: writing for i, writing in enumerate(writings) if writing.end is None}:
            # entered for each step, because a caller may stop asking, or train in between
            with inference(self.model, parts):
                logits = reader.logits_after({i: writing.ids for i, writing in going.items()})
            logits = logits[:, : self.tokenizer.d_vocab]
            n_seen = max(len(writing.ids) for writing in going.values())
            if n_seen == history.shape[1]:
                history = F.pad(history, (0, n_seen), value=-1)
            seen = history[list(going), :n_seen]
            generators = [writing.generator for writing in going.values()]
            try:
                tokens = next_token(seen, logits, args, generators).tolist()
            except PvmlError as error:
                raise _of_its_own(error, list(going), len(writings), seen, logits, args) from error
            told = {}
            for row, (i, token) in enumerate(zip(going, tokens, strict=True)):
                if explain:
                    told[i] = self._explain(going[i].ids, logits[row], token, args)
                history[i, len(going[i].ids)] = token
                going[i].take(token)
            yield told

    def _explain(
        self, ids: Sequence[int], logits: Float[Tensor, " d_vocab"], token: int, args: SamplingArgs
    ) -> Explanation:
        n_ctx = self.model.cfg.n_ctx
        window = window_of(ids, n_ctx, args.prepend_bos, block_of(self.window, n_ctx))
        with inference(self.model):
            return explain_token(token, ids, logits, args, self.model, window)


def _known(args: SamplingArgs | None) -> SamplingArgs:
    """The arguments given, or the defaults.

    Raises: PvmlError for another kind, such as a dictionary or a BeamArgs.
    """
    if not isinstance(args, SamplingArgs | None):
        raise PvmlError(f"args must be a SamplingArgs, got {type(args).__name__} {args!r:.80}")
    return args or SamplingArgs()


def _of_its_own(
    error: PvmlError,
    numbers: Sequence[int],
    n_texts: int,
    seen: Int[Tensor, "row posn"],
    logits: Float[Tensor, "row d_vocab"],
    args: SamplingArgs,
) -> PvmlError:
    """The error of the first row that has one, named by its place among all texts of the call."""
    if n_texts == 1:
        return error
    for number, ids, row in zip(numbers, seen, logits, strict=True):
        try:
            next_token(ids, row, args, t.Generator())
        except PvmlError as own:
            return PvmlError(f"text {number} of {n_texts}: {own}")
    return error


def _padded(rows: Sequence[Sequence[int]]) -> Int[Tensor, "row posn"]:
    """The rows as a tensor, shorter ones filled up with -1."""
    padded = t.full((len(rows), max(map(len, rows), default=0)), -1)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = t.tensor(ids)
    return padded


if __name__ == "__main__":
    from pvml.demos.sampler import main

    main()
