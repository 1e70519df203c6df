"""`pvml models`: the trained models that come with the package."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pvml.bundled import bundled_folder, bundled_models
from pvml.cli.flags import parse
from pvml.program import pvml
from pvml.runs.json_object import read_json, to_json
from pvml.runs.layout import SUMMARY, read_config

_WIDTH_OF_A_FILE = 120
"""Columns, where the table goes to no terminal."""


@dataclass(frozen=True, kw_only=True)
class ModelsFlags:
    """List the models that come with the package: their names are a MODEL for every command."""

    json: bool = False
    """Print each model as a line of JSON."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml models` say; the exit code."""
    flags = parse(ModelsFlags, "models", arguments)
    models = [facts(name) for name in bundled_models()]
    if flags.json:
        for model in models:
            print(to_json(model))
        return 0
    if not models:
        print("this version of PvML comes without models: `pvml train` makes one")
        return 0
    table = Table(box=None, pad_edge=False)
    for column, justify in _COLUMNS.items():
        table.add_column(column, justify=justify)
    for model in models:
        table.add_row(
            model["name"],
            model["shape"],
            f"{model['parameters']:,}",
            str(model["n_ctx"]),
            model["tokenizer"],
            f"{model['bits_per_byte']:.3f}",
            f"{model['bytes'] / 1e6:.1f} MB",
        )
    width = None if sys.stdout.isatty() else _WIDTH_OF_A_FILE
    Console(highlight=False, width=width).print(table)
    command = f"{pvml()} sample {models[-1]['name']}"
    print(f"try: {command}; --json tells where each lies, with its README")
    return 0


_COLUMNS: dict[str, Any] = {
    "model": "left",
    "shape": "left",
    "parameters": "right",
    "n_ctx": "right",
    "tokenizer": "right",
    "bits/byte": "right",
    "size": "right",
}


def facts(name: str) -> dict[str, Any]:
    """A bundled model at a glance: shape, parameters, grade (bits per byte), size (bytes), place.

    Raises: RunDirError naming a file that is damaged.
    """
    folder = bundled_folder(name)
    config, summary = read_config(folder), read_json(folder / SUMMARY)
    shape, grades = config["model"], summary["bundle"]
    return {
        "name": name,
        "shape": f"{shape['n_layers']} layer{'s' * (shape['n_layers'] != 1)}, "
        f"{shape['n_heads']} heads, d{shape['d_model']}"
        + (", attention only" if shape["attn_only"] else ""),
        "parameters": summary["parameters"]["total"],
        "n_ctx": shape["n_ctx"],
        "tokenizer": config["tokenizer"],
        "bits_per_byte": grades["bits_per_byte"][grades["dtype"]],
        "graded_on": grades["text"],
        "dtype": grades["dtype"],
        "bytes": size_of(folder),
        "path": str(folder),
    }


def size_of(folder: Path) -> int:
    """Bytes in the folder's files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
