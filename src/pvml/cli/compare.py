"""`pvml compare MODEL [MODEL ...]`: what models write from the same prompts and seeds.

What the figures count is in `pvml.sampling.quality`; the Markdown page is `compare_page.py`'s.
`pvml runs compare` is another command: it puts the figures of trainings side by side.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from pvml.cli.flags import parse, require_file
from pvml.config import LARGEST_SEED
from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs

if TYPE_CHECKING:
    from pvml.data.tokenizer import Tokenizer
    from pvml.loading import Loaded
    from pvml.sampling.stories import Figures, Story

PROMPTS = ("Once upon a time", "Lily went to the park and saw")
_SETTINGS = SamplingArgs(max_new_tokens=250, temperature=0.7, top_p=0.95, seed=0)
_OTHERS = (
    *("min_p", "frequency_penalty", "repetition_penalty", "no_repeat_ngram_size"),
    *("logit_bias", "banned_tokens", "stop"),
)
"""Settings that are named only where they are on."""
_EXCERPT = 60
_NARROWEST_TEXT = 38
_WIDTH_OF_A_FILE = 100
"""Columns, where the texts go to no terminal."""
_MOST_SEEDS = 100_000
"""Stories from a prompt: a day of writing, at a second for each."""
COLUMNS_EXPLAINED = (
    "Ended: by itself, before the limit. Stuck: in a repetition when it stopped, which is that of "
    "the three-word runs in its last 100 words 40% or more occurred before among these; a story of "
    "fewer than 20 words never is. Repeated 4-grams: share of a story's four-word runs that "
    "occurred in it before, mean over the stories. A word is up to 16 letters, digits and "
    "underscores in a row, or one punctuation mark; case does not matter. Tokens and bytes: mean "
    "length. The prompt is left out of all."
)


@dataclass(frozen=True, kw_only=True)
class CompareFlags:
    """Let models write from the same prompts, settings and seeds; print texts and a table.

    The table tells how many stories end by themselves or are stuck in a repetition. One model is
    fine, too.
    """

    models: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="MODEL...")]
    """Run directories or NAMEs of runs in runs, bundled models (attn-1l, attn-2l, stories), Hugging
    Face GPT-2s' folders, or gpt2, ..."""
    prompt: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A text to continue; can be given again. Unset: the two of the training post."""
    n_seeds: int = 5
    """Stories from each prompt: the seeds are --seed and those after it."""
    n_texts: int = 1
    """Stories from each prompt that are printed; all are counted."""
    text_tokens: int | None = None
    """How much of a story is printed. Unset: 60 tokens if it may outgrow the window, else all."""
    sampling: SamplingArgs = field(default_factory=lambda: _SETTINGS)
    """How tokens are chosen, and how many."""
    page: Path | None = None
    """A Markdown file that gets texts and table as well."""
    json: bool = False
    """Print each model as a line of JSON, with every story."""
    device: str | None = None
    """Where to compute: cpu, cuda, mps, ... Unset: an accelerator where there is one."""

    @property
    def prompts(self) -> tuple[str, ...]:
        """What the stories go on from, each once."""
        return tuple(dict.fromkeys(self.prompt or PROMPTS))

    def settings(self) -> str:
        """What all stories share, in words."""
        args, first = self.sampling, self.sampling.seed or 0
        told = [f"Temperature {args.temperature}"]
        told += [f"top-k {args.top_k}"] if args.top_k else []
        told += [f"top-p {args.top_p}"] if args.top_p else []
        told += [
            f"{name.replace('_', ' ')} {value}"
            for name in _OTHERS
            if (value := getattr(args, name)) != getattr(_SETTINGS, name)
        ]
        told += [] if args.prepend_bos else ["no BOS"]
        told += [f"at most {args.max_new_tokens:,} new tokens"]
        last = first + self.n_seeds - 1
        return ", ".join([*told, f"seed {first}" if last == first else f"seeds {first} to {last}"])


@dataclass(frozen=True, kw_only=True)
class Writer:
    """A model, what it wrote, and the figures of that."""

    name: str
    source: str
    n_ctx: int
    tokenizer: "Tokenizer"
    stories: "list[Story]"
    figures: "Figures"

    def told(self, prompt: str, flags: CompareFlags) -> list[tuple[str, str]]:
        """The stories from a prompt that are printed: what is said of each, and its text."""
        n = flags.text_tokens
        if n is None and self.n_ctx <= flags.sampling.max_new_tokens:
            n = _EXCERPT
        stories = [story for story in self.stories if story.prompt == prompt]
        return [(_caption(story, n), self._start(story, n)) for story in stories[: flags.n_texts]]

    def _start(self, story: "Story", n: int | None) -> str:
        # the cut may fall into a character
        shown = self.tokenizer.decode(story.ids[:n]).rstrip("\ufffd")
        return shown.strip()


COLUMNS: dict[str, Callable[[Writer], str]] = {
    "model": lambda writer: writer.name,
    "n_ctx": lambda writer: f"{writer.n_ctx:,}",
    "stories": lambda writer: f"{writer.figures.stories:,}",
    "ended": lambda writer: f"{writer.figures.ended:.0%}",
    "stuck": lambda writer: f"{writer.figures.stuck:.0%}",
    "repeated 4-grams": lambda writer: f"{writer.figures.repeated_4grams:.1%}",
    "tokens": lambda writer: f"{writer.figures.tokens:.0f}",
    "bytes": lambda writer: f"{writer.figures.n_bytes:.0f}",
}
"""Each figure's heading, and how a model's is written."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml compare` say; the exit code."""
    flags = parse(CompareFlags, "compare", arguments)
    _require_sense(flags)
    writers = write(flags)
    if flags.json:
        for writer in writers:
            _print_json(writer, flags)
    else:
        _print(writers, flags)
    if flags.page:
        from pvml.atomic import write_whole
        from pvml.cli.compare_page import page

        write_whole(flags.page, page(writers, flags, ["pvml", "compare", *arguments]))
    return 0


def prompt_told(prompt: str) -> str:
    """A prompt on one line; in quotes, with escapes, where its own signs would not be seen."""
    if not prompt:
        return "(no prompt)"
    return prompt if prompt.isprintable() and prompt == prompt.strip() else repr(prompt)


def write(flags: CompareFlags) -> list[Writer]:
    """What each model writes; all are loaded before the first begins, so that none fails late.

    Raises: PvmlError naming the MODEL that cannot be loaded, or cannot write.
    """
    from pvml.loading import load
    from pvml.sampling.sampler import Sampler
    from pvml.sampling.stories import figures, write_stories

    models = [load(model, device=flags.device) for model in flags.models]
    _require_different(models, flags.models)
    writers = []
    for name, loaded in zip(_names(models, flags.models), models, strict=True):
        sampler = Sampler(loaded.model, loaded.tokenizer)
        written = track(
            write_stories(sampler, flags.prompts, flags.sampling, flags.n_seeds),
            description=name,
            total=len(flags.prompts) * flags.n_seeds,
            console=(progress := Console(stderr=True)),
            transient=True,
            disable=not progress.is_terminal,
        )
        try:
            stories = list(written)
        except PvmlError as error:
            raise PvmlError(f"{name}: {error}") from error
        writers.append(
            Writer(
                name=name,
                source=loaded.source,
                n_ctx=loaded.model.cfg.n_ctx,
                tokenizer=loaded.tokenizer,
                stories=stories,
                figures=figures(stories),
            )
        )
    return writers


def _require_sense(flags: CompareFlags) -> None:
    """Complain before a model is loaded, not after minutes of writing."""
    if not flags.models:
        raise PvmlError("compare takes one MODEL or more, such as runs/NAME")
    twice = next((word for word in flags.models if flags.models.count(word) > 1), None)
    if twice is not None:
        raise PvmlError(f"{twice} is given twice, and would write the same twice: give it once")
    least = {"--n-seeds": (flags.n_seeds, 1), "--n-texts": (flags.n_texts, 0)}
    if flags.text_tokens is not None:
        least["--text-tokens"] = (flags.text_tokens, 1)
    for flag, (given, smallest) in least.items():
        if given < smallest:
            raise PvmlError(f"{flag} must be at least {smallest}, got {given}")
    if flags.sampling.seed is None:
        raise PvmlError("stories are compared seed by seed: give --seed a number, such as 0")
    most = min(_MOST_SEEDS, LARGEST_SEED - flags.sampling.seed + 1)
    if flags.n_seeds > most:
        raise PvmlError(
            f"--n-seeds must be at most {most:,} from --seed {flags.sampling.seed} on, got "
            f"{flags.n_seeds}"
        )
    if flags.page:
        require_file(flags.page, "the page", "--page")


def _require_different(models: "Sequence[Loaded]", given: Sequence[str]) -> None:
    first: dict[str, str] = {}
    for loaded, word in zip(models, given, strict=True):
        if loaded.source in first:
            raise PvmlError(
                f"{first[loaded.source]} and {word} are both {loaded.source}, and would write the "
                f"same twice: give it once"
            )
        first[loaded.source] = word


def _names(models: "Sequence[Loaded]", given: Sequence[str]) -> list[str]:
    """What to call the models: their own names, or the words given where two have the same."""
    names = [loaded.name for loaded in models]
    return [
        name if names.count(name) == 1 else word for name, word in zip(names, given, strict=True)
    ]


def _caption(story: "Story", n_shown: int | None) -> str:
    n = len(story.ids)
    part = f"first {n_shown} of " if n_shown is not None and n_shown < n else ""
    end = "ended by itself" if story.ended else "cut"
    return f"Seed {story.seed}: {part}{n} tokens, {end}{', stuck' if story.stuck else ''}"


def _print(writers: Sequence[Writer], flags: CompareFlags) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_OF_A_FILE)
    console.print(Text(flags.settings()))
    beside = max(1, console.width // _NARROWEST_TEXT)
    for prompt in flags.prompts if flags.n_texts else ():
        console.print(Text(f"\n{prompt_told(prompt)} ..."))
        for first in range(0, len(writers), beside):
            console.print()
            console.print(_texts(writers[first : first + beside], prompt, flags))
    table = Table(box=None, pad_edge=False)
    for heading in COLUMNS:
        left = heading == "model"
        table.add_column(
            heading, justify="left" if left else "right", overflow="fold" if left else "ellipsis"
        )
    for writer in writers:
        table.add_row(*(Text(show(writer)) for show in COLUMNS.values()))
    console.print()
    console.print(table)
    console.print()
    console.print(Text(COLUMNS_EXPLAINED))


def _texts(writers: Sequence[Writer], prompt: str, flags: CompareFlags) -> Table:
    """A column for each model, a row for each seed."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 1, 0))
    for writer in writers:
        table.add_column(Text(writer.name), ratio=1, overflow="fold")
    told = [writer.told(prompt, flags) for writer in writers]
    for row in zip(*told, strict=True):
        table.add_row(*(Text.assemble((caption, "dim"), "\n", text) for caption, text in row))
    return table


def _print_json(writer: Writer, flags: CompareFlags) -> None:
    from pvml.runs.json_object import to_json

    told: dict[str, Any] = {
        "model": writer.name,
        "source": writer.source,
        "n_ctx": writer.n_ctx,
        "tokenizer": writer.tokenizer.name,
        "prompts": flags.prompts,
        "n_seeds": flags.n_seeds,
        "settings": asdict(flags.sampling),
        **asdict(writer.figures),
        "written": [
            {
                "prompt": story.prompt,
                "seed": story.seed,
                "text": story.text,
                "tokens": len(story.ids),
                "ended": story.ended,
                "stuck": story.stuck,
            }
            for story in writer.stories
        ],
    }
    print(to_json(told))
