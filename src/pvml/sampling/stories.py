"""Stories that a model writes from given prompts and seeds, and the figures of them all.

What each figure counts is in `quality.py`; `pvml compare` prints them.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs
from pvml.sampling.quality import ended, repeated_ngram_rate, stuck, words
from pvml.sampling.sampler import Sampler


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a model wrote after a prompt."""

    prompt: str
    seed: int
    text: str
    """Without the prompt."""
    ids: tuple[int, ...]
    """The new tokens, end-of-text not among them."""
    ended: bool
    """By itself or by a stop string, rather than cut at the most tokens allowed."""
    seconds: float

    @property
    def stuck(self) -> bool:
        """Whether it was in a repetition when it stopped, as `pvml.sampling.stuck` says."""
        return stuck(self.text)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What many stories of one model have in common."""

    stories: int
    ended: float
    """Share that ended by themselves, from 0 to 1."""
    stuck: float
    """Share that were in a repetition when they stopped, from 0 to 1."""
    repeated_4grams: float
    """Share of a story's four-word runs that occurred in it before, mean over the stories.

    Words are those of `pvml.sampling.quality.words`: a punctuation mark is one, too.
    """
    tokens: float
    """Mean length in the model's own tokens, without prompt and end-of-text."""
    n_bytes: float
    """Mean length in UTF-8 bytes, without the prompt."""
    tokens_per_second: float


def write_stories(
    sampler: Sampler, prompts: Sequence[str], args: SamplingArgs, n_seeds: int
) -> Iterator[Story]:
    """One story for each prompt and each of the seeds args.seed, args.seed + 1, ..., prompt first.

    Raises: PvmlError without a seed, for fewer than one, and as `Sampler.sample` does.
    """
    if args.seed is None:
        raise PvmlError("stories are compared seed by seed: give the first seed, such as 0")
    if n_seeds < 1:
        raise PvmlError(f"n_seeds must be a whole number of at least 1, got {n_seeds}")
    eos = sampler.tokenizer.eos_token_id
    for prompt in prompts:
        for seed in range(args.seed, args.seed + n_seeds):
            began = time.perf_counter()
            written = sampler.complete(prompt, replace(args, seed=seed))
            seconds = time.perf_counter() - began
            yield Story(
                prompt=prompt,
                seed=seed,
                text=written.text,
                ids=written.ids[: len(written.ids) - ended(written.ids, eos)],
                ended=written.end != "length",
                seconds=seconds,
            )


def figures(stories: Sequence[Story]) -> Figures:
    """The figures of one model's stories, all prompts together.

    Raises: PvmlError if there is no story.
    """
    if not stories:
        raise PvmlError("there are no stories to count: give one at least")
    drawn = sum(len(story.ids) + story.ended for story in stories)
    return Figures(
        stories=len(stories),
        ended=fmean(story.ended for story in stories),
        stuck=fmean(story.stuck for story in stories),
        repeated_4grams=fmean(repeated_ngram_rate(words(story.text), 4) for story in stories),
        tokens=fmean(len(story.ids) for story in stories),
        n_bytes=fmean(len(story.text.encode()) for story in stories),
        tokens_per_second=drawn / max(sum(story.seconds for story in stories), 1e-9),
    )
