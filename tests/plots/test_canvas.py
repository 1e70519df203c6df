"""What figures share: labels that can be drawn, files that are whole."""

from pathlib import Path

import pytest

from pvml.errors import PvmlError, RunDirError
from pvml.plots.canvas import around, figure, labels, legend, line_label, save, sheet


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


def test_the_same_figure_makes_the_same_svg(tmp_path: Path) -> None:
    """No date and no random names: two SVGs of one figure are the same bytes."""
    contents = []
    for name in ("a.svg", "b.svg"):
        made, (axes,) = figure(3.0, 2.0)
        axes.plot([0.0, 1.0], [1.0, 0.0], "o-")
        contents.append(save(made, tmp_path / name).read_bytes())

    assert contents[0] == contents[1]
    assert b"<svg" in contents[0] and b"dc:date" not in contents[0]


def test_another_format_is_refused(tmp_path: Path) -> None:
    """An ending that is neither PNG nor SVG is an error, and no file is left."""
    with pytest.raises(PvmlError, match="png or svg files, got 'plot.pdf'"):
        save(figure(3.0, 2.0)[0], tmp_path / "plot.pdf")

    assert list(tmp_path.iterdir()) == []


def test_a_long_legend_stands_outside(tmp_path: Path) -> None:
    """Seven lines are explained beside the axes, six inside; no text is taken for a formula."""
    for n_lines, outside in ((6, False), (7, True)):
        made, (axes,) = figure(8.0, 5.0)
        for i in range(n_lines):
            axes.plot([0, 1], [0, i], label=f"run $x^{i}$")
        legend(axes)
        save(made, tmp_path / "plot.png")
        box, frame = axes.get_legend(), axes.get_window_extent()

        assert box is not None
        assert (box.get_window_extent().x0 >= frame.x1) == outside
        assert not any(text.get_parse_math() for text in box.get_texts())


def test_a_run_name_as_a_label() -> None:
    """It keeps spaces, loses its middle if it is long, and is not hidden by an underscore."""
    assert line_label("a run") == "a run"
    assert line_label("_private") == " _private"
    assert line_label("x" * 30 + "y" * 30) == "x" * 24 + "..." + "y" * 24
    assert line_label("two\nlines") == "two\\nlines"


def test_a_long_label_is_cut_between_signs() -> None:
    """What is too long ends in an ellipsis, with no escape cut in two; what just fits is whole."""
    assert labels(["abcdef", "abcde", "a\nb\ncd", "\U0001f642\U0001f642"], 5) == [
        "abcd…",
        "abcde",
        "a\\nb…",
        "…",
    ]


def test_a_sheet_measures_in_inches(tmp_path: Path) -> None:
    """A point at (1, 2) lies an inch from the left and two from below: 150 dots to each."""
    made, axes = sheet(4.0, 3.0)
    made.set_dpi(150)

    assert axes.transData.transform((1, 2)) == pytest.approx([150, 300])


def test_title_and_caption_stand_around_a_figure(tmp_path: Path) -> None:
    """The title above and the caption below, broken into lines, with every word and no formula."""
    made, _ = sheet(4.0, 3.0)
    around(made, "costs $5 and $6", "a caption of many words " * 8)
    title, caption = made.texts

    assert title.get_text() == "costs $5 and $6" and not title.get_parse_math()
    assert title.get_position()[1] > 1 and caption.get_position()[1] < 0
    assert caption.get_text().count("\n") >= 2
    assert caption.get_text().split() == ("a caption of many words " * 8).split()
    save(made, tmp_path / "around.png")
