"""Size and hash of a checkpoint's files, kept beside them, so that damage is recognised."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pvml.atomic import HashedFile
from pvml.errors import RunDirError
from pvml.runs.json_object import read_json, to_json
from pvml.runs.layout import CHECKSUMS, TRAINING, WEIGHTS, checkpoint_steps, step_folder

FileSum = dict[str, Any]
"""`bytes`, the size, and `sha256`, in hexadecimal digits."""


def hash_file(path: Path) -> FileSum:
    """Size and hash of a file that is on the disk.

    Raises: OSError if it cannot be read.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def sum_of(file: HashedFile) -> FileSum:
    """Size and hash of what was written into a file."""
    return {"bytes": file.size, "sha256": file.sha256}


def write_checksums(folder: Path, sums: Mapping[str, FileSum]) -> None:
    """Put the sums of a folder's files, by name, into the folder.

    Raises: OSError if the disk refuses.
    """
    text = to_json({"files": sums}, indent=2) + "\n"
    (folder / CHECKSUMS).write_text(text, encoding="utf-8")


def find_fault(folder: Path, names: Sequence[str], *, hashes: bool = True) -> str | None:
    """What is wrong with these files of a folder, as a phrase; None if they are what was written.

    hashes: read the files, too; without, only what is missing or has the wrong size is seen. A
    folder without checksums, as an older version wrote it, is only asked for what is missing.
    """
    if not folder.is_dir():
        return "the folder is missing"
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        return f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing"
    if not (folder / CHECKSUMS).exists():
        return None
    try:
        sums = read_json(folder / CHECKSUMS)["files"]
        return next(
            (
                fault
                for name in names
                if (fault := _file_fault(folder / name, sums[name], hashes=hashes))
            ),
            None,
        )
    except (RunDirError, KeyError, TypeError):
        return f"{CHECKSUMS} is damaged"


def last_fault(run: Path) -> str | None:
    """What a glance (no hashes) finds wrong with a run's last checkpoint, as a phrase."""
    steps = checkpoint_steps(run)
    if not steps:
        return None
    return find_fault(step_folder(run, steps[-1]), (WEIGHTS, TRAINING), hashes=False)


def _file_fault(path: Path, expected: FileSum, *, hashes: bool) -> str | None:
    try:
        size = path.stat().st_size
        if size != expected["bytes"]:
            return f"{path.name} has {size:,} bytes instead of {expected['bytes']:,}"
        if hashes and hash_file(path)["sha256"] != expected["sha256"]:
            return f"{path.name} has another checksum than when it was written"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    return None
