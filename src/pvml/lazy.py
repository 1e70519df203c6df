"""Names of a package that are looked up when first used, so that importing it costs nothing.

It also lets `python -m pvml.training.losses` run a module that its package has not loaded yet.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def files_of(package: str) -> Callable[[str], Any]:
    """`__getattr__` (PEP 562) by which a package's files are attributes before they are imported.

    It raises AttributeError for a name that no file has, and whatever importing the file raises.
    """

    def look_up(name: str) -> Any:
        full = f"{package}.{name}"
        try:
            # Python asks for names with underscores; __main__ would run
            if name.isidentifier() and not name.startswith("_"):
                return import_module(full)
        except ModuleNotFoundError as error:
            if error.name != full:
                raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return look_up


def lazy(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` (PEP 562) for a package whose names live in `homes`.

    homes: from each public name to the module that defines it, as an import relative to the package
    without its first dot: "maps" is a file of the package, ".claims.search" of the one above. Its
    files are attributes, too.
    """

    def look_up(name: str) -> Any:
        if name not in homes:
            return files_of(package)(name)
        return getattr(import_module(f".{homes[name]}", package), name)

    return look_up, lambda: sorted(homes), list(homes)
