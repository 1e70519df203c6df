"""Figures that are kept in `results/`, a row for each command: read, checked, added to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checking import TEXT, Kind, require
from pvml.cli.train import TrainFlags
from pvml.data.sources import open_corpus
from pvml.errors import PvmlError, RunDirError
from pvml.runs.jsonlines import JsonLines

Row = dict[str, Any]


def keep(results: Path, row: Mapping[str, Any]) -> None:
    """Add a row to the figures, on the disk when this returns.

    Raises: RunDirError if the disk refuses, or the figures are damaged.
    """
    try:
        results.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirError(f"{results.parent} cannot be made a folder: {error}") from error
    rows = JsonLines(results)
    rows.append(row)
    rows.sync()


def read(results: Path, kinds: Mapping[str, Kind]) -> dict[str, Row]:
    """The figures kept so far, by their command. A last line that a stop cut short is left out.

    kinds: what a row has beside its command.

    Raises: RunDirError naming file and line for other damage, a row that lacks one of its figures
    or has something else in its place, or a command that comes twice.
    """
    rows: dict[str, Row] = {}
    for number, row in enumerate(JsonLines(results), start=1):
        where = f"{results}, line {number}: the row"
        try:
            require(row, {"command": TEXT, **kinds}, where)
        except RunDirError as error:
            raise RunDirError(
                f"{error}. Remove the line, and what it was of is measured again"
            ) from error
        if row["command"] in rows:
            raise RunDirError(f"{where} is of the command of an earlier line: remove one of them")
        rows[row["command"]] = row
    return rows


def is_kept(rows: Mapping[str, Row], command: str, flags: TrainFlags) -> bool:
    """Whether there is a row of this command. Older rows do not say which texts they are of.

    Raises: PvmlError if it says so, and the texts are others now.
    """
    if command not in rows:
        return False
    try:
        now = texts_of(flags) if "texts" in rows[command] else None
    except PvmlError:  # a text that is gone says nothing against what was measured on it
        return True
    if now is not None and rows[command]["texts"] != now:
        raise PvmlError(
            f"the kept figures of `{command}` are of other text than {flags.data} or what is held "
            f"out holds now: put the text back as it was, or give another --results and --run-dir"
        )
    return True


def texts_of(flags: TrainFlags) -> list[str | None]:
    """Fingerprints of the corpus and of the held-out corpus, as they are now; None for none.

    Raises: PvmlError for a corpus that cannot be read.
    """
    held_out = None if flags.held_out is None else open_corpus(flags.held_out).fingerprint
    return [open_corpus(flags.data, flags.limit).fingerprint, held_out]
