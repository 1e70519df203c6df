"""`pvml sample MODEL [PROMPT]`: a model continues a text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from pvml.cli.flags import parse
from pvml.sampling.args import SamplingArgs

_WIDTH_OF_A_FILE = 100
"""Columns, where the table goes to no terminal."""


@dataclass(frozen=True, kw_only=True)
class SampleFlags:
    """Let a model continue a text. Prints the text and its continuation, as it comes."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run directory, a folder with a Hugging Face GPT-2, or a name such as gpt2."""
    prompt: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[PROMPT]")] = ""
    """The text to continue. Unset: the model begins by itself."""
    sampling: SamplingArgs = field(default_factory=SamplingArgs)
    """How tokens are chosen, and how many."""
    explain: bool = False
    """Print a table, too, that says of each token how it came to be chosen."""
    device: str | None = None
    """Where to compute: cpu, cuda, mps, ... Unset: an accelerator where there is one."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml sample` say; the exit code."""
    flags = parse(SampleFlags, "sample", arguments)

    from pvml.loading import load
    from pvml.sampling.sampler import Sampler

    model, tokenizer = load(flags.model, device=flags.device)
    sampler = Sampler(model, tokenizer)
    if flags.explain:
        from rich.console import Console

        from pvml.sampling.explain_table import explanation_table

        completion = sampler.complete(flags.prompt, flags.sampling, explain=True)
        console = Console(highlight=False)
        if not console.is_terminal:
            console = Console(highlight=False, width=_WIDTH_OF_A_FILE)
        print(completion.prompt + completion.text, end="\n\n", flush=True)
        console.print(explanation_table(completion.explanations, tokenizer.decode))
        return 0
    print(flags.prompt, end="", flush=True)
    for piece in sampler.stream(flags.prompt, flags.sampling):
        print(piece, end="", flush=True)
    print()
    return 0
