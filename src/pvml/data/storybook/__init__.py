"""The embedded corpus: short stories in TinyStories' manner, made from a seed.

All plots and words are this project's own. What makes the stories worth learning is planted: names,
things, places, refrains and lists are drawn anew for every story from pools far too large to
remember, and then come back word for word, paragraphs later. Plots live in `plots/`, their language
in `template`, the drawing in `cast`, the words in `words`.
"""

import random as python_random
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from importlib.resources import files

from pvml.data.storybook.cast import ROLES, Random, Word, pick
from pvml.data.storybook.template import Plot, expand, parse_plot
from pvml.errors import PvmlError

PHRASES = {
    "once": (
        "[Once upon a time|Once|Long ago], there [was|lived] a "
        "[little|small|young|kind|shy|clever|quiet|gentle|merry] "
        "{hero.kind} [named|called] {hero}."
    ),
    "oneday": "One [fine|bright|warm|windy|cloudy|sunny|cold] [morning|afternoon|day|evening]",
    "cheered": (
        "[smiled|laughed|grinned|beamed|jumped for joy|danced in a circle|clapped with joy]"
    ),
    "proud": "[{hero} was very proud.|{hero} had never been so proud.|What a clever {hero.kind}!]",
}


@cache
def plots() -> tuple[Plot, ...]:
    """Every plot, in alphabetical order of its name."""
    folder = files("pvml.data.storybook") / "plots"
    texts = sorted((entry.name, entry.read_text("utf-8")) for entry in folder.iterdir())
    read = tuple(parse_plot(name.removesuffix(".txt"), text, PHRASES) for name, text in texts)
    for plot in read:
        for role, asks in plot.roles:
            if isinstance(asks, str) and asks not in ROLES:
                raise PvmlError(
                    f"plot {plot.name}: {role} asks for {asks!r}, expected one of {sorted(ROLES)}"
                )
    return read


def story(seed: int, index: int) -> str:
    """Story number `index` of the book that `seed` names, whatever else is asked for.

    Raises: PvmlError for a negative seed or index, or an index of 2**64 or more.
    """
    if seed < 0 or not 0 <= index < 2**64:
        raise PvmlError(
            f"seed and index must be at least 0, index below 2**64; got seed {seed}, index {index}"
        )
    random = python_random.Random(seed << 64 | index).random
    plot = pick(plots(), random)
    cast = _cast(plot, random)
    out: list[str] = []
    expand(plot.parts, random, out)
    return "".join(out).format_map(cast)


def stories(seed: int = 0, n: int = 20_000) -> Iterator[str]:
    """The first `n` stories of the book that `seed` names, one at a time.

    Raises: PvmlError for a negative n, and as `story` does.
    """
    if n < 0:
        raise PvmlError(f"n must be at least 0 stories, got {n}")
    return (story(seed, index) for index in range(n))


@cache
def version() -> str:
    """16 hex digits that change when the stories may: a hash of this package's files."""
    digest = blake2b(digest_size=8)
    package = files("pvml.data.storybook")
    for folder in (package, package / "plots"):
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.is_file():
                digest.update(f"{entry.name}\n".encode() + entry.read_bytes())
    return digest.hexdigest()


def _cast(plot: Plot, random: Random) -> dict[str, Word]:
    cast: dict[str, Word] = {}
    taken: set[str] = set()
    for role, asks in plot.roles:
        if isinstance(asks, tuple):
            cast[role] = Word(pick(asks, random))
            continue
        draw = ROLES[asks]
        word = draw(random)
        while word.key in taken:
            word = draw(random)
        taken.add(word.key)
        cast[role] = word
    return cast
