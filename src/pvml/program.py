"""What to type to run PvML's command here: its name where the shell finds it, else its path."""

import shlex
import shutil
import sys
from pathlib import Path


def pvml() -> str:
    """`pvml`, or as `.venv/bin/pvml` where the environment of this Python is not on the PATH."""
    return _typed("pvml") or f"{python()} -m pvml"


def python() -> str:
    """`python`, or as `.venv/bin/python`: the Python that runs this."""
    return _typed("python") or _from_here(Path(sys.executable))


def _typed(name: str) -> str | None:
    folder = Path(sys.executable).parent
    own, found = shutil.which(name, path=str(folder)), shutil.which(name)
    if own is None:
        return None
    # another one of that name may stand first, of another environment
    return name if found is not None and Path(found).parent == folder else _from_here(Path(own))


def _from_here(path: Path) -> str:
    here = Path.cwd()
    # beside us it would be a mere name, which a shell does not look for here
    near = path.is_relative_to(here) and path.parent != here
    return shlex.quote(str(path.relative_to(here) if near else path))
