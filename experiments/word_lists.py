"""A text in which tokens come again: stories, and after each a list of words told over and over.

    python experiments/word_lists.py --out runs/framework/tinystories-and-lists.jsonl

In a few million tokens of natural text two layers of attention learn no induction: most of what
comes again there can be guessed without (LOG.md). In a list of random words nothing can, but that
it goes on as it went the last time. The words are the stories' own, the most common ones.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from ending import ended
from options import TRAIN, require_stories
from pvml.atomic import replacing
from pvml.data.sources import open_corpus
from pvml.errors import PvmlError

N_WORDS = 800
"""Words that lists are made of: the most common, small letters only."""
SHORTEST, LONGEST = 6, 24
"""Words in a list before it begins again."""
LEAST, MOST = 60, 160
"""Words in a document of one list."""


@dataclass(frozen=True, kw_only=True)
class Args:
    """Write the documents of a corpus, each with a list of words behind it, as .jsonl."""

    out: Path
    """The file."""
    data: str = TRAIN
    """The corpus, as for `pvml train`."""
    limit: int | None = None
    """Read at most so many documents."""
    seed: int = 0
    """Chooses the words."""


def documents(stories: Sequence[str], seed: int) -> Iterator[str]:
    """Each story, and after it a list of words that goes round and round.

    Raises: PvmlError if the stories hold too few words.
    """
    counts = Counter(word for story in stories for word in story.split())
    common = [word for word, _ in counts.most_common() if word.isalpha() and word.islower()]
    words = common[:N_WORDS]
    if len(words) < LONGEST:
        raise PvmlError(
            f"the lists need {LONGEST} different words in small letters, and this text has "
            f"{len(words)}"
        )
    rng = random.Random(seed)
    for story in stories:
        yield story
        period = rng.sample(words, rng.randint(SHORTEST, LONGEST))
        length = rng.randint(LEAST, MOST)
        yield " ".join((period * (length // len(period) + 1))[:length])


def main(args: Args) -> int:
    """Write the file, whole or not at all."""
    require_stories(
        (args.data,),
        "Give --data FILE, any text or .jsonl of stories, or tinystories, from the hub",
    )
    stories = list(open_corpus(args.data, args.limit))
    with replacing(args.out) as partial:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            for text in documents(stories, args.seed):
                file.write(json.dumps({"text": text}) + "\n")
    print(f"{args.out}: {len(stories):,} stories, and a list of words behind each")
    return 0


if __name__ == "__main__":
    sys.exit(ended("word_lists", lambda: main(tyro.cli(Args))))
