"""The layering: a folder imports only from rows above it."""

import ast
from pathlib import Path

import pytest

LAYERS = [
    {"errors", "axes", "finite", "lazy", "plain"},
    {"atomic", "bundled", "config", "device", "hub", "program"},
    {"trace"},
    {"modules"},
    {"reference", "data"},
    {"parity"},
    {"runs"},
    {"processing"},
    {"loading"},
    {"export"},
    {"circuits"},
    {"attribution"},
    {"patching"},
    {"sampling"},
    {"plots"},
    {"training"},
    {"demos"},
    {"cli"},
    {"__init__", "__main__"},
]
"""Top-level names under pvml, lowest first. A row may import from itself and from rows above."""


def layer_of(part: str) -> int:
    return next(i for i, row in enumerate(LAYERS) if part in row)


def sources(root: Path) -> list[Path]:
    return sorted((root / "src" / "pvml").rglob("*.py"))


def top_level_part(path: Path, root: Path) -> str:
    return path.relative_to(root / "src" / "pvml").parts[0].removesuffix(".py")


def is_main_block(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def imported_parts(tree: ast.AST) -> set[str]:
    """The top-level names under pvml that a file imports, its `__main__` block left out."""
    found: set[str] = set()
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if is_main_block(node):
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "pvml":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pvml."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("pvml.")}
        nodes += ast.iter_child_nodes(node)
    return found


def test_every_file_has_a_layer(root):
    """Each folder and file under pvml stands in the table, and the table holds nothing else."""
    there = {top_level_part(path, root) for path in sources(root)}

    assert there == set().union(*LAYERS)


def test_no_import_points_upward(root):
    """A module's own code imports only from its row or the rows above it."""
    wrong = [
        f"{path.relative_to(root)} imports pvml.{part}"
        for path in sources(root)
        for part in imported_parts(ast.parse(path.read_text()))
        if layer_of(part) > layer_of(top_level_part(path, root))
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from pvml.cli.main import main", {"cli"}),
        ("import pvml.demos.demo", {"demos"}),
        ("def f():\n    from pvml.training import Trainer", {"training"}),
        ("if __name__ == '__main__':\n    from pvml.cli import main", set()),
    ],
)
def test_the_walk_sees_imports_where_they_are(text, expected):
    """Imports inside functions count; those of a `__main__` block do not."""
    assert imported_parts(ast.parse(text)) == expected
