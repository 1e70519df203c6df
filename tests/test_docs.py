"""The README and the docs are true: every block runs and prints what the page says."""

import importlib.util
import re
import sys

import pytest


@pytest.fixture(scope="session")
def documents(root):
    """tests/documents.py, which `make docs` uses too."""
    spec = importlib.util.spec_from_file_location("documents", root / "tests" / "documents.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["documents"] = module
    spec.loader.exec_module(module)
    return module


def pages(root):
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def pytest_generate_tests(metafunc):
    if "page" in metafunc.fixturenames:
        from pathlib import Path

        root = Path(__file__).resolve().parent.parent
        found = pages(root)
        metafunc.parametrize("page", found, ids=[str(p.relative_to(root)) for p in found])


def test_every_block_prints_what_the_page_says(page, documents, tmp_path):
    """A page's blocks run in order, and each prints what stands below it."""
    names = {"__name__": "__page__"}
    for step in documents.steps_of(page.read_text()):
        printed = documents.run(step, tmp_path, names)
        assert documents.agrees(step, printed), (
            f"{step.code}\n--- the page says\n{step.expected}\n--- it prints\n{printed}"
        )


def test_links_are_made_only_where_there_are_none(page):
    """A page runs twice in one folder, and in the clone: no `symlink_to` stands without an if."""
    assert not re.search(r"^\S.*\.symlink_to\(", page.read_text(), re.M)


def test_every_path_and_link_is_there(page, root):
    """A page's relative links, and the paths under src, tests and docs that it names, exist."""
    text = page.read_text()
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    named = re.findall(r"`((?:src|tests|docs|benchmarks|experiments)/[\w./-]+)`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in named if not (root / path).exists()]

    assert missing == []


@pytest.mark.parametrize(
    ("body", "printed", "agreeing"),
    [
        ("```python\nprint(2)\n```\n```text\n2\n```\n", "2\n", True),
        ("```python\nprint(2)\n```\n```text\n3\n```\n", "2\n", False),
        ("```python\nprint(2)\n```\n```text numbers vary\n3.5e-07\n```\n", "2\n", True),
        ("```python\nprint(2.5)\n```\n```text decimals vary\n3.1\n```\n", "2.5\n", True),
        (
            "```python\nprint('(2, 3)')\n```\n```text decimals vary\n(2, 4)\n```\n",
            "(2, 3)\n",
            False,
        ),
        ("```python\nprint('a')\n```\n```text numbers vary\n3\n```\n", "a\n", False),
        ("```console\n$ echo a b\na ...\n```\n", "a b\n", True),
        ("```console\n$ echo c\na ...\n```\n", "c\n", False),
    ],
)
def test_the_comparison_can_fail(documents, tmp_path, body, printed, agreeing):
    """A block whose output differs from the page is found out."""
    (step,) = documents.steps_of(body)

    assert documents.run(step, tmp_path, {}) == printed
    assert documents.agrees(step, printed) is agreeing


def test_the_readme_shows_the_demo_that_there_is(documents, root):
    """The README's demo has every heading, and it differs from a demo that lacks one."""
    page = (root / "README.md").read_text()
    block = next(b for _, o, b in documents.FENCE.findall(page) if o.strip() == "from make demo")

    assert [line[:2] for line in documents.lines_of_a_demo(block)][:6] == [
        f"{n}." for n in range(1, 7)
    ]
    documents.require_same_demo(page, block)
    with pytest.raises(AssertionError, match="the demo printed"):
        documents.require_same_demo(page, block.replace("3. It writes", "It writes"))


def test_a_failing_command_is_found_out(documents, tmp_path):
    """A command that exits with an error fails its page."""
    (step,) = documents.steps_of("```console\n$ exit 3\n```\n")

    with pytest.raises(AssertionError, match="exit code 3"):
        documents.run(step, tmp_path, {})
