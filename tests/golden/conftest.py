"""The golden figures, and a hub's cache that is filled from a local folder.

pvml is imported late: the shape hook must see it first.
"""

import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FIGURES = Path(__file__).with_name("figures.toml")
HubCache = Callable[[str, Path], AbstractContextManager[None]]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One golden figure, as `figures.toml` explains its fields."""

    what: str
    source: str
    value: Any
    within: Any = 0
    at_most: Any = None
    why: str = ""

    def disagreements(self, found: Any, part: str | None = None) -> list[str]:
        """Where what was found is too far from the value, or from its part of that name."""
        value = self.value if part is None else self.value[part]
        if self.at_most is not None:
            return differences(found, dict.fromkeys(value, 0), self.at_most)
        return differences(found, value, self.within)


def differences(found: Any, wanted: Any, within: Any, at: str = "") -> list[str]:
    """Each place where two nested values differ, numbers by more than `within`."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict) or found.keys() != wanted.keys():
            return [f"{at or 'value'} is {found!r}, expected the parts {[*wanted]}"]
        pairs = [(key, found[key], wanted[key]) for key in wanted]
    elif isinstance(wanted, list):
        if not isinstance(found, list) or len(found) != len(wanted):
            return [f"{at or 'value'} is {found!r}, expected {len(wanted)} of {wanted!r}"]
        pairs = [(i, *pair) for i, pair in enumerate(zip(found, wanted, strict=True))]
    else:
        numbers = all(isinstance(x, int | float) for x in (found, wanted))
        # written so that a NaN differs
        agree = abs(found - wanted) <= within if numbers else found == wanted
        return [] if agree else [f"{at or 'value'} is {found!r}, expected {wanted!r} ({within=})"]
    return [
        line
        for key, one, other in pairs
        for line in differences(
            one, other, within[key] if isinstance(within, dict) else within, f"{at}[{key!r}]"
        )
    ]


@pytest.fixture(scope="session")
def figures() -> dict[str, Figure]:
    """All golden figures by name."""
    return {name: Figure(**fields) for name, fields in tomllib.loads(FIGURES.read_text()).items()}


@pytest.fixture
def agree(request: pytest.FixtureRequest, figures: dict[str, Figure]) -> Callable[..., None]:
    """Fail unless what was found agrees with the figure that the test is called after."""
    figure = figures[request.node.originalname.removeprefix("test_")]

    def compare(found: Any, part: str | None = None) -> None:
        lines = figure.disagreements(found, part)
        assert not lines, f"{figure.what} ({figure.source}): {'; '.join(lines)}"

    return compare


@pytest.fixture(scope="session")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> HubCache:
    """Within `hub_cache(repo, folder)`, the folder is all that the hub's cache has, as that repo.

    Nothing else can be had within it: the network is forbidden.
    """
    import huggingface_hub.constants as constants
    import huggingface_hub.file_download as download

    commit = "0123456789" * 4

    @contextmanager
    def cached(repo: str, folder: Path) -> Iterator[None]:
        cache = tmp_path_factory.mktemp("hub")
        place = cache / f"models--{repo.replace('/', '--')}"
        shutil.copytree(folder, place / "snapshots" / commit)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(commit)
        with pytest.MonkeyPatch.context() as patch:
            for module in (constants, download):
                patch.setattr(module, "HF_HUB_CACHE", str(cache), raising=False)
            patch.setattr(constants, "HF_HUB_OFFLINE", True)
            patch.setenv("HF_HUB_OFFLINE", "1")
            yield

    return cached
