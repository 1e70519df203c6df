"""`pvml sample MODEL [PROMPT]`: a model continues a text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from pvml.cli.flags import parse
from pvml.sampling.args import SamplingArgs


@dataclass(frozen=True, kw_only=True)
class SampleFlags:
    """Let a model continue a text. Prints the text and its continuation."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run directory, a folder with a Hugging Face GPT-2, or a name such as gpt2."""
    prompt: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[PROMPT]")] = ""
    """The text to continue. Unset: the model begins by itself."""
    sampling: SamplingArgs = field(default_factory=SamplingArgs)
    """How tokens are chosen, and how many."""
    device: str | None = None
    """Where to compute: cpu, cuda, mps, ... Unset: an accelerator where there is one."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml sample` say; the exit code."""
    flags = parse(SampleFlags, "sample", arguments)

    from pvml.loading import load
    from pvml.sampling.sampler import Sampler

    model, tokenizer = load(flags.model, device=flags.device)
    print(Sampler(model, tokenizer).sample(flags.prompt, flags.sampling))
    return 0
