"""What a model writes after a prompt, as `pvml sample` prints it."""

from collections.abc import Iterator

from rich.console import Console, RenderableType

from pvml.sampling.args import SamplingArgs
from pvml.sampling.beam_tree import draw_texts
from pvml.sampling.beams import search_from, texts
from pvml.sampling.explain import Explanation
from pvml.sampling.explain_table import explanation_table
from pvml.sampling.sampler import Sampler
from pvml.sampling.settings import Settings

_WIDTH_OF_A_FILE = 100
"""Columns, where tables and trees go to no terminal."""
_NARROWEST = 60
"""Columns: in fewer a table's cells would be cut off, and its lines had better go on below."""


def write(sampler: Sampler, prompt: str, settings: Settings) -> Iterator[str]:
    """The prompt and what follows, in pieces as they come, then what is to be explained.

    Raises: PvmlError for what `Sampler` or `search_from` refuse.
    """
    if settings.beams:
        yield from _search(sampler, prompt, settings)
        return
    args = settings.sampling
    if settings.explain:
        yield from _explained(sampler, prompt, args)
        return
    pieces = sampler.stream(prompt, args)
    # what is refused is told before the prompt is printed, not behind it
    first = next(pieces, "")
    yield prompt
    yield first
    yield from pieces
    yield "\n"


def _explained(sampler: Sampler, prompt: str, args: SamplingArgs) -> Iterator[str]:
    """The text as it comes, then the table; after Ctrl-C that of the tokens that had come."""
    told: list[Explanation] = []
    stopped: KeyboardInterrupt | None = None
    try:
        for piece, explanation in sampler.explained(prompt, args):
            yield piece if told else prompt + piece
            told.append(explanation)
    except KeyboardInterrupt as asked:
        stopped = asked
    if told:
        yield "\n\n"
        yield _drawn(explanation_table(told, sampler.tokenizer.decode))
    if stopped:
        raise stopped


def _search(sampler: Sampler, prompt: str, settings: Settings) -> Iterator[str]:
    tokenizer = sampler.tokenizer
    found = search_from(sampler.model, tokenizer, prompt, settings.beam_args())
    best = texts(found, tokenizer)
    if settings.n_best == 1:
        yield f"{best[0].text}\n"
    else:
        yield "".join(f"{one.score:10.3f}  {one.text!r}\n" for one in best)
    if settings.explain:
        yield "\n"
        yield _drawn(draw_texts(found, tokenizer.decode))


def _drawn(what: RenderableType) -> str:
    console = Console(highlight=False)
    width = max(_NARROWEST, console.width) if console.is_terminal else _WIDTH_OF_A_FILE
    console = Console(highlight=False, width=width)
    with console.capture() as captured:
        console.print(what)
    return captured.get()
