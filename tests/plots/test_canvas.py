"""What figures share: labels that can be drawn, files that are whole."""

from pathlib import Path

import pytest

from pvml.errors import RunDirError
from pvml.plots.canvas import figure, labels, save


def test_labels_stay_on_one_line_and_can_be_drawn() -> None:
    """Spaces show as dots; newlines and signs that the font lacks as escapes; nothing as quotes."""
    texts = [" cat", "\n", "é", "\U0001f642", "中", "\x00", "", "\\"]

    assert labels(texts) == ["·cat", "\\n", "é", "\\U0001f642", "\\u4e2d", "\\x00", "''", "\\"]


def test_a_figure_is_saved_whole_in_a_new_folder(tmp_path: Path) -> None:
    """The PNG's signature and end are there; the folder is made; nothing else is left."""
    made, axes = figure(3.0, 2.0, n_axes=2)
    path = save(made, tmp_path / "new" / "two.png")

    content = path.read_bytes()
    assert len(axes) == 2
    assert content.startswith(b"\x89PNG") and content.endswith(b"IEND\xaeB`\x82")
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file in the folder's place is a RunDirError that names the path."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunDirError, match="taken"):
        save(figure(3.0, 2.0)[0], tmp_path / "taken" / "plot.png")
