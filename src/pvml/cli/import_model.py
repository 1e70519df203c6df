"""`pvml import SOURCE NAME`: any model that PvML can read becomes a run directory."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pvml.cli.flags import parse
from pvml.errors import PvmlError
from pvml.program import pvml
from pvml.runs.naming import RUNS, require_name


@dataclass(frozen=True, kw_only=True)
class ImportFlags:
    """Make a run directory of a model from elsewhere: every command then takes its NAME.

    Prints where each tensor came from and what was done to it. A tensor that is missing, unexpected
    or of another shape is an error that lists all of them, and nothing is written then. Nothing in
    a file is executed.
    """

    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")]
    """gpt2, ... or owner/name from the hub (hf://owner/name/folder for a folder in it); the folder
    of a Hugging Face GPT-2; a nanoGPT ckpt.pt; a state dict in TransformerLens's names; a run, the
    seeds' too."""
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]
    """What the run is called."""
    run_dir: Path = RUNS
    """Where runs lie."""
    tokenizer: Path | None = None
    """The model's tokenizer.json. Unset: the one beside the weights, else GPT-2's."""
    dtype: str | None = None
    """float32, bfloat16, float16 or float64. Unset: as the source has it."""
    json: bool = False
    """Print the report as one JSON object, with every tensor."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml import` say; the exit code."""
    flags = parse(ImportFlags, "import", arguments)
    require_name(flags.name, "NAME")
    path = flags.run_dir / flags.name
    if path.exists() or path.is_symlink():
        raise PvmlError(f"{path} exists already, and is left alone: give another NAME")

    from pvml.loading import import_model, load
    from pvml.runs.json_object import to_json

    loaded = load(flags.source, device="cpu", dtype=flags.dtype, tokenizer=flags.tokenizer)
    run = import_model(loaded, path)
    if flags.json:
        print(to_json({"run": str(run.path), **loaded.report.to_dict()}))
        return 0
    print(loaded.report)
    told = f"./{path}" if str(path).startswith("-") else str(path)  # else it is read as a flag
    print(f"the run is in {path}; try: {pvml()} sample {shlex.quote(told)} 'Once upon a time'")
    return 0
