"""`pvml trace MODEL TEXT`: every named tensor of a pass, as it passes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from pvml.cli.flags import parse


@dataclass(frozen=True, kw_only=True)
class TraceFlags:
    """Run a model once over a text. Prints each named tensor's shape and meaning as it passes."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run directory or the NAME of one in runs, a bundled model (attn-1l, attn-2l, stories), a
    Hugging Face GPT-2's folder, or gpt2, ..."""
    text: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TEXT")]
    """The text to read. BOS is put in front of it."""
    only: str = "*"
    """Which tensors: a name or a pattern, such as "blocks.0.attn.*" or "*.hook_z"."""
    weights: bool = False
    """Show the parameters behind each tensor, too."""
    device: str | None = None
    """Where to compute: cpu, cuda, mps, ... Unset: an accelerator where there is one."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml trace` say; the exit code."""
    flags = parse(TraceFlags, "trace", arguments)

    import torch as t

    from pvml.loading import load
    from pvml.processing.changes import described
    from pvml.trace.printer import printing

    loaded = load(flags.model, device=flags.device)
    tokens = loaded.tokenizer.to_tokens(flags.text).to(loaded.model.device)
    with printing(loaded.model, flags.only, weights=flags.weights), t.no_grad():
        print(f"{loaded.name}: {loaded.source}")
        if loaded.model.processing:
            print(described(loaded.model.processing))
        print(f"text   {flags.text!r}")
        print(f"tokens {loaded.tokenizer.to_str_tokens(tokens)} {tuple(tokens.shape)}")
        print()
        loaded.model(tokens)
    return 0
