"""The package as others get it: built, installed beside its dependencies alone, and used."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pvml.bundled import FOLDER, bundled_models

MOST_BYTES = 14_000_000
"""12 MB of models, and everything else."""
NO_NETWORK = """\
import socket


def refuse(*_: object, **__: object) -> None:
    raise OSError("this test has no network")


socket.socket.connect = socket.getaddrinfo = refuse
"""


def build(root: Path, to: Path, *kinds: str) -> Path:
    """The folder `to`, with the package of the tree at `root` in it."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(to)]
    subprocess.run([*command, *kinds], cwd=root, check=True, capture_output=True)
    return to


def dependencies() -> set[str]:
    """What `pip install pvml` brings along, without extras."""
    found: set[str] = set()
    todo = [Requirement("pvml")]
    while todo:
        requirement = todo.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found and not requirement.extras:
            continue
        found.add(name)
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            wanted = [{"extra": extra} for extra in ("", *requirement.extras)]
            if needed.marker is None or any(map(needed.marker.evaluate, wanted)):
                todo.append(needed)
    return found - {"pvml"}


@pytest.fixture(scope="module")
def installed(root: Path, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment's bin: the package, with `tiny` added to its models, and its dependencies.

    The dependencies are links to those of the environment that runs the tests; nothing else of it
    is there. Sockets refuse to connect.
    """
    place = tmp_path_factory.mktemp("wheel")
    tree = place / "tree"
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "src", tree / "src", ignore=left_out)
    shutil.copytree(tiny_models, tree / "src" / "pvml" / "models", dirs_exist_ok=True)
    for file in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(root / file, tree)
    (wheel,) = build(tree, place / "dist", "--target", "wheel").iterdir()

    python = place / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "env"], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = place.glob("env/lib/*/site-packages")
    links = place / "dependencies"
    links.mkdir()
    for name in dependencies():
        package = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (links / top).exists():
                (links / top).symlink_to(str(package.locate_file(top)))
    (site / "dependencies.pth").write_text(f"{links}\n")
    (site / "sitecustomize.py").write_text(NO_NETWORK)
    return python.parent


def ran(installed: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of the environment, in a folder, with next to nothing in its surroundings."""
    surroundings = {"HOME": str(folder), "PATH": os.defpath, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [installed / command[0], *command[1:]],
        cwd=folder,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_packages_are_whole_and_small(root: Path, tmp_path: Path) -> None:
    """The wheel has every file of the models and other data; wheel and sdist are within 14 MB."""
    files = sorted(build(root, tmp_path / "dist").iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]
    assert all(file.stat().st_size <= MOST_BYTES for file in files)

    with zipfile.ZipFile(files[0]) as wheel:
        names = set(wheel.namelist())
        assert {"pvml/py.typed", "pvml/data/storybook/plots/bus.txt"} <= names
        for file in (f for name in bundled_models() for f in (FOLDER / name).iterdir()):
            kept = f"pvml/{file.relative_to(FOLDER.parent).as_posix()}"
            assert wheel.read(kept) == file.read_bytes()


def test_only_the_package_and_its_dependencies_are_there(installed: Path, tmp_path: Path) -> None:
    """pvml comes from the wheel; the extras are absent, and there is no network."""
    code = "import pvml; print(pvml.__file__)"
    assert ran(installed, tmp_path, "python", "-c", code).stdout.startswith(str(installed.parent))
    for extra in ("transformers", "datasets", "transformer_lens", "pytest"):
        done = ran(installed, tmp_path, "python", "-c", f"import {extra}")
        assert f"No module named '{extra}'" in done.stderr
    code = "import urllib.request as u; u.urlopen('http://127.0.0.1:9')"
    assert "this test has no network" in ran(installed, tmp_path, "python", "-c", code).stderr


@pytest.mark.parametrize(
    ("wanted", "command", "printed"),
    [
        ("stories", "models", "\n{} "),
        ("stories", "sample {} The --max-new-tokens 3", "The"),
        ("attn-2l", "trace {} The --only *.attn_pattern", "{0}: the bundled model {0}\n"),
        ("attn-1l", "evaluate {} --data storybook:2", "bits"),
    ],
    ids=["models", "sample", "trace", "evaluate"],
)
def test_bundled_models_work_in_an_empty_folder(
    installed: Path, tmp_path: Path, wanted: str, command: str, printed: str
) -> None:
    """Each command knows the model by its name, and leaves nothing behind.

    While a real one is not there yet, its place is taken by `tiny`.
    """
    name = wanted if wanted in bundled_models() else "tiny"
    done = ran(installed, tmp_path, "pvml", *command.format(name).split())

    assert (done.returncode, done.stderr) == (0, "")
    assert printed.format(name) in done.stdout
    assert list(tmp_path.iterdir()) == []
