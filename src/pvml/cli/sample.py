"""`pvml sample MODEL [PROMPT]`: a model continues a text, or as many as are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from pvml.cli.flags import parse
from pvml.cli.repl import converse, lines_may_come
from pvml.errors import PvmlError
from pvml.sampling.args import SamplingArgs
from pvml.sampling.repl import START
from pvml.sampling.settings import Settings, number

_UNSET = "\0"
"""No command line can hold it; None would be a prompt of that name."""


@dataclass(frozen=True, kw_only=True)
class SampleFlags:
    """Let a model continue a text. Prints the text and its continuation, as it comes.

    Without PROMPT it asks for prompts and settings, line by line: at a terminal, or from a pipe or
    file on standard input. There it begins with temperature 0.7 and top-p 0.95, unless told
    otherwise. If nobody can answer (input from /dev/null, output to a file), the model begins by
    itself, as it does for an empty PROMPT ("").
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run directory or the NAME of one in runs, a bundled model (attn-1l, attn-2l, stories), a
    Hugging Face GPT-2's folder, or gpt2, ..."""
    prompt: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="[PROMPT]", help_behavior_hint="")
    ] = _UNSET
    """The text to continue. "": the model begins by itself. Unset: see above."""
    settings: Settings = field(default_factory=Settings)
    """How it is continued."""
    device: str | None = None
    """Where to compute: cpu, cuda, mps, ... Unset: an accelerator where there is one."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml sample` say; the exit code."""
    flags = parse(SampleFlags, "sample", arguments)
    idle = flags.settings.idle_in_a_search()
    if flags.settings.beams and idle:
        words = " and ".join(f"--{name.replace('_', '-')}" for name in idle)
        raise PvmlError(f"--beams searches and draws nothing, so it has no use for {words}")
    if flags.prompt == _UNSET and lines_may_come():
        converse(flags.model, _of_a_repl(arguments, flags.settings.sampling), flags.device)
        return 0

    from pvml.cli.writing import write
    from pvml.loading import load
    from pvml.sampling.sampler import Sampler

    sampler = Sampler(*load(flags.model, device=flags.device))
    prompt = "" if flags.prompt == _UNSET else flags.prompt
    for piece in write(sampler, prompt, flags.settings):
        print(piece, end="", flush=True)
    return 0


def _of_a_repl(arguments: Sequence[str], given: SamplingArgs) -> Settings:
    """What the flags say, and where they say nothing, what a REPL begins with."""
    own = START.sampling
    first = ["--temperature", number(own.temperature)]
    if not (given.top_k or given.min_p):
        first += ["--top-p", number(own.top_p)]
    return parse(SampleFlags, "sample", [*first, *arguments]).settings
