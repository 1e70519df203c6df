"""The five stories that a bundled model is shown by."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pvml.bundled
from pvml.bundled import bundled_models
from pvml.cli.main import main


@pytest.fixture(scope="module")
def stories(root: Path) -> ModuleType:
    path = root / "experiments" / "stories.py"
    spec = importlib.util.spec_from_file_location("stories", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stories"] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tiny(tiny_models: Path, monkeypatch: pytest.MonkeyPatch, stories: ModuleType) -> str:
    """A bundled model's name; its stories are short."""
    monkeypatch.setattr(pvml.bundled, "FOLDER", tiny_models)
    monkeypatch.setattr(stories, "MOST_TOKENS", 12)
    return "tiny"


def commands(page: str) -> list[str]:
    return re.findall(r"^--- (pvml sample .*)$", page, re.MULTILINE)


def test_each_command_tells_its_story(
    stories: ModuleType, tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seeds 0 to 4 stand in order, and each command prints the words that stand below it."""
    page = stories.page(tiny)

    assert [shlex.split(line)[5] for line in commands(page)] == ["0", "1", "2", "3", "4"]
    for line in commands(page):
        assert main([*shlex.split(line)[1:], "--device", "cpu"]) == 0
        below = page.partition(f"{line}\n")[2].partition("\n\n")[2].partition("\n\n--- ")[0]
        assert capsys.readouterr().out.split() == below.split()


def test_the_file_is_the_page(stories: ModuleType, tiny: str, tmp_path: Path) -> None:
    """What is written is the page, and the same each time."""
    stories.main(stories.Args(model=tiny, out=tmp_path / "a.txt"))

    assert (tmp_path / "a.txt").read_text() == stories.page(tiny)


def test_lines_stay_lines(stories: ModuleType) -> None:
    """A story's own line ends and empty lines are kept; a long line is broken at a space."""
    told = stories._filled("One.\n\n" + "word " * 21 + "end.\nLast.\n")

    assert told == "One.\n\n" + ("word " * 20).rstrip() + "\nword end.\nLast."


def test_the_committed_stories_are_what_is_written(root: Path, stories: ModuleType) -> None:
    """docs/stories.txt has five of them, and the first is told again, word by word.

    Only the first, for the time it takes; in float64, so that it does not depend on the machine.
    """
    if "stories" not in bundled_models():
        pytest.skip("the model stories is not in the package yet")
    page = (root / "docs" / "stories.txt").read_text()

    assert page.startswith(f"{stories.heading('stories')}\n\n---")
    assert commands(page) == [stories.command("stories", seed) for seed in range(5)]
    assert f"\n\n{next(stories.told('stories'))}\n\n" in page
