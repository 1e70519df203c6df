"""The package's face: what `import pvml` gives, and what it costs."""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pvml

NAMES = ["Config", "Sampler", "SamplingArgs", "Trainer", "TrainingArgs", "Transformer", "listen"]
NAMES += ["load"]
SUBPACKAGES = ["attribution", "circuits", "data", "loading", "patching", "plots", "processing"]
SUBPACKAGES += ["sampling", "trace", "training"]


def printed(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    """Each promised name is a class or function of that name."""
    assert getattr(pvml, name).__name__ == name


@pytest.mark.parametrize("name", SUBPACKAGES)
def test_every_subpackage_is_there(name: str) -> None:
    """Each promised subpackage is an attribute, without an import of its own."""
    assert isinstance(getattr(pvml, name), ModuleType)
    assert printed(f"import pvml; print(pvml.{name}.__name__)") == f"pvml.{name}"


@pytest.mark.parametrize("name", sorted({*SUBPACKAGES, "runs"} - {"loading", "plots", "trace"}))
def test_no_name_is_hidden_by_a_file(name: str, root: Path) -> None:
    """No subpackage gives a name that a file in it has: once imported, the file would win."""
    package = importlib.import_module(f"pvml.{name}")
    files = {file.stem for file in (root / "src" / "pvml" / name).glob("*.py")}

    assert package.__all__ and not files & set(package.__all__)


def test_the_list_of_names_is_complete() -> None:
    """`from pvml import *` and dir() give what is promised, and nothing else."""
    assert sorted(pvml.__all__) == sorted([*NAMES, *SUBPACKAGES, "__version__"])
    assert set(pvml.__all__) <= set(dir(pvml))
    given: dict[str, object] = {}
    exec("from pvml import *", given)
    assert given.keys() - {"__builtins__"} == set(pvml.__all__)


def test_importing_costs_nothing() -> None:
    """Neither torch nor any other heavy library is loaded, nor is a submodule."""
    code = "import sys, pvml; print(*sorted(m for m in sys.modules if m.startswith('pvml')))"
    heavy = ["torch", "numpy", "matplotlib", "transformers", "tokenizers", "rich", "tyro"]

    assert printed(code) == "pvml"
    assert printed(f"import sys, pvml; print(set({heavy}) & set(sys.modules))") == "set()"


@pytest.mark.parametrize("name", ["Config", "SamplingArgs", "TrainingArgs"])
def test_describing_costs_no_torch(name: str) -> None:
    """What a model is, how it is trained and sampled can be said without torch."""
    assert printed(f"import sys, pvml; pvml.{name}(); print('torch' in sys.modules)") == "False"


def test_the_version_is_the_installed_one() -> None:
    """__version__ is what pip says."""
    assert pvml.__version__ == importlib.metadata.version("pvml")


RESOLVED = """
import sys
import pvml
for name in sys.argv[1:]:
    for module in [each for each in sys.modules if each.partition(".")[0] == "pvml"]:
        del sys.modules[module]
    import pvml
    found = pvml
    try:
        for part in name.split(".")[1:]:
            found = getattr(found, part)
    except AttributeError as error:
        print(name, error)
"""
"""Each name looked up as if nothing of pvml but `import pvml` had run before."""


def test_every_name_that_is_written_is_there(root: Path) -> None:
    """`pvml.x.y`, as pages, messages and docstrings write it, needs no import but `import pvml`."""
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    written = [page.read_text() for page in pages]
    for file in (root / "src").rglob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text()))
        texts = (node.value for node in nodes if isinstance(node, ast.Constant))
        written += [text for text in texts if isinstance(text, str)]
    name = r"(?<![\w./-])pvml(?:\.[A-Za-z_]\w*)+(?![\w*/{-]|\.\w)"
    names = {found for text in written for found in re.findall(name, text)}
    names -= {"pvml.modules.NAME"}

    assert {"pvml.loading.load_alone", "pvml.trace.hooks.HookPoint", "pvml.data.rows"} <= names
    done = subprocess.run(
        [sys.executable, "-c", RESOLVED, *sorted(names)], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def test_a_misspelt_name_is_an_attribute_error() -> None:
    """An unknown name is the error that Python gives for any module."""
    with pytest.raises(AttributeError, match="module 'pvml' has no attribute 'Sampel'"):
        pvml.Sampel  # noqa: B018
    assert not hasattr(pvml, "..cli") and not hasattr(pvml, "circuits.weights")
    with pytest.raises(AttributeError, match=r"module 'pvml.trace' has no attribute 'hoks'"):
        pvml.trace.hoks  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Sampel'"):
        from pvml import Sampel  # noqa: F401
