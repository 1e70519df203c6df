"""Five stories by a bundled model, not chosen: seeds 0 to 4, the first that come.

    python experiments/stories.py

writes docs/stories.txt. They begin with PROMPT: rows that are cut from a stream of text mostly
begin in the middle of a story, so a model that learnt from them has no reason to begin with one's
first word. It computes in float64, so that no rounding decides between two words and
another machine writes the same file; `pvml sample`, in float32, all but always gives the same text.
"""

import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro

from ending import ended
from pvml.atomic import write_whole
from pvml.loading import load
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler
from pvml.sampling.stories import write_stories

PROMPT = "Once upon a time"
N_STORIES = 5
TEMPERATURE, TOP_P, MOST_TOKENS = 0.7, 0.95, 400
_WIDTH = 100


@dataclass(frozen=True, kw_only=True)
class Args:
    """Write five stories by a model, seeds 0 to 4, into a file."""

    model: str = "stories"
    """A MODEL, as for `pvml sample`."""
    out: Path = Path(__file__).resolve().parent.parent / "docs" / "stories.txt"
    """The file."""


def page(model: str) -> str:
    """The stories with their settings, as one text.

    Raises: PvmlError for a MODEL that is none.
    """
    return "\n\n".join([heading(model), *told(model)]) + "\n"


def heading(model: str) -> str:
    """The page's first line: how the stories were chosen, and what was done to them."""
    return (
        f"Stories by {model}, seeds 0 to {N_STORIES - 1}: none left out, no word changed; lines of "
        f"more than {_WIDTH} columns are broken at spaces. "
        f"python experiments/stories.py writes them."
    )


def told(model: str) -> Iterator[str]:
    """Each story under the command that tells it and how it ended, one after the other.

    Raises: PvmlError for a MODEL that is none.
    """
    args = SamplingArgs(temperature=TEMPERATURE, top_p=TOP_P, max_new_tokens=MOST_TOKENS, seed=0)
    sampler = Sampler(*load(model, device="cpu", dtype="float64"))
    for story in write_stories(sampler, [PROMPT], args, N_STORIES):
        end = "the story ended by itself" if story.ended else "cut off there"
        head = f"--- {command(model, story.seed)}\n--- {len(story.ids)} new tokens, {end}"
        yield f"{head}\n\n{_filled(story.prompt + story.text)}"


def command(model: str, seed: int) -> str:
    """The command that tells one of the stories."""
    settings = {
        "seed": seed,
        "temperature": TEMPERATURE,
        "top-p": TOP_P,
        "max-new-tokens": MOST_TOKENS,
    }
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    return shlex.join(["pvml", "sample", model, PROMPT, *flags])


def _filled(story: str) -> str:
    """The story's own lines, each broken at spaces to a page's width."""
    lines = (
        textwrap.fill(line, _WIDTH, break_long_words=False, break_on_hyphens=False)
        for line in story.strip("\n").splitlines()
    )
    return "\n".join(line.rstrip() for line in lines)


def main(args: Args) -> int:
    """Write the file.

    Raises: PvmlError for a MODEL that is none; RunDirError if the disk refuses.
    """
    write_whole(args.out, page(args.model))
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(ended("stories", lambda: main(tyro.cli(Args))))
