"""`pvml circuits MODEL [COMMAND ...]`: what a model's heads do, read off its weights and patterns.

What each command takes and prints is in the file that `COMMANDS` names; none of them imports torch
before its flags are read.
"""

import difflib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from pvml.cli.circuits_overview import OverviewFlags, overview
from pvml.cli.flags import parse
from pvml.errors import PvmlError

COMMANDS = {
    "heads": ("circuits_heads", "where each head looks, beside its nulls"),
    "copying": ("circuits_heads", "which heads copy what they read"),
    "compose": ("circuits_heads", "which heads read what lower heads wrote"),
    "paths": ("circuits_text", "a prediction as the sum of all paths"),
    "scores": ("circuits_text", "an attention score as the sum of pairs of paths"),
    "attention": ("circuits_text", "attention patterns with their tokens"),
    "ov": ("circuits_tables", "what reading a token does to the logits, over the vocabulary"),
    "qk": ("circuits_tables", "which token looks for which, over the vocabulary"),
    "bigram": ("circuits_tables", "what a token alone says about the next"),
    "skips": ("circuits_skips", "skip-trigrams, what a text says to them, and their bugs"),
    "induction": ("circuits_claims", "the induction circuit and what it is worth"),
    "report": ("circuits_claims", "all claims about the model, as JSON and as a page"),
    "check": ("circuits_claims", "measure the claims of a report again"),
    "survey": ("circuits_tables", "scan every head's circuits, and keep what is largest"),
    "training": ("circuits_training", "induction over a run's checkpoints"),
}
"""Each command's file, which has its flags and a function of its name, and its line of help."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml circuits` say; the exit code."""
    first, word, *rest = [*arguments, "", ""][: max(2, len(arguments))]
    if first in COMMANDS and ({"-h", "--help"} & {word, *rest}):
        first, word, rest = "MODEL", first, ["--help"]
    if word in COMMANDS and not first.startswith("-"):
        module, _ = COMMANDS[word]
        file = import_module(f"pvml.cli.{module}")
        flags = parse(getattr(file, f"{word.capitalize()}Flags"), f"circuits MODEL {word}", rest)
        return int(getattr(file, word)(first, flags))
    if first in COMMANDS and not Path(first).is_dir():
        raise PvmlError(f"MODEL comes first: pvml circuits MODEL {first} ...")
    if word and not first.startswith("-") and not word.startswith("-"):
        close = difflib.get_close_matches(word, COMMANDS, n=1)
        meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        raise PvmlError(f"circuits has no command {word!r}: {meant}")
    flags = parse(OverviewFlags, "circuits", arguments)
    code = overview(flags)
    if not flags.json:
        print("\nmore: pvml circuits MODEL COMMAND")
        for name, (_, about) in COMMANDS.items():
            print(f"  {name:<11}{about}")
    return code
