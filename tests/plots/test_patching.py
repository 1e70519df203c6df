"""Heat maps of activation patching: what stands in which cell, and what the caption owns up to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pvml.errors import PvmlError
from pvml.patching.result import Patched
from pvml.plots.patching import patch_map, patch_text

HEADS = Patched(
    over="z",
    direction="denoising",
    metric="logit of ' rain' minus logit of ' cake' at the last position (nats)",
    axes=("layer", "head"),
    shape=(2, 3),
    numbers=(-1.0, -1.0, 0.0, 3.0, -2.0, 1.0),
    clean=3.0,
    corrupted=-1.0,
    clean_tokens=("<|endoftext|>", " rain", " ball"),
    corrupted_tokens=("<|endoftext|>", " $", " ball"),
    n_prompts=1,
)
POSITIONS = replace(HEADS, over="resid_pre", axes=("layer", "position"))
BOTH = replace(HEADS, axes=("layer", "head", "position"), shape=(1, 2, 3))


def test_every_patch_is_in_its_cell(tmp_path: Path, saved: Any) -> None:
    """Layer 0 on top, heads beside each other, white where nothing changes: 0 if denoising."""
    patch_map(HEADS, tmp_path / "map.png")
    (image,) = saved[-1].axes[0].images

    assert image.get_array().tolist() == [[0, 0, 0.25], [1, -0.25, 0.5]]
    assert image.get_clim() == (-1.0, 1.0)
    texts = saved.texts
    assert {"+0.25", "-0.25", "+1.00", "layer", "head", "2"} <= set(texts)
    assert texts["+1.00"].get_position()[1] < texts["+0.25"].get_position()[1]
    assert texts["+1.00"].get_color() == "white" and texts["+0.25"].get_color() == "black"


def test_noising_is_white_at_one(tmp_path: Path, saved: Any) -> None:
    """The colours go as far as the largest change, on both sides of what no patch gives."""
    patch_map(replace(HEADS, direction="noising"), tmp_path / "map.svg")

    assert saved[-1].axes[0].images[0].get_clim() == (1 - 1.25, 1 + 1.25)
    assert any(
        "leaves 1, one that destroys the answer makes it 0" in " ".join(x.split())
        for x in saved.texts
    )


def test_positions_are_named_by_both_prompts(tmp_path: Path, saved: Any) -> None:
    """A column's label is its token, or both tokens where they differ; heads have rows then."""
    patch_map(POSITIONS, tmp_path / "map.png")
    assert {"·ball", "·rain/$", "position"} <= set(saved.texts)
    patch_map(BOTH, tmp_path / "both.png")
    assert saved[-1].axes[0].images[0].get_array().shape == (2, 3)
    assert {"0.0", "0.1", "·rain/$"} <= set(saved.texts)
    patch_map(replace(POSITIONS, n_prompts=4), tmp_path / "many.png")
    assert "·ball" not in saved.texts and any("4 pairs of prompts" in x for x in saved.texts)


def test_the_caption_says_what_was_measured(tmp_path: Path, saved: Any) -> None:
    """The metric, both prompts' values, and how the weights were processed, if they were."""
    patch_map(replace(HEADS, processing=("fold_layer_norm",)), tmp_path / "map.png")
    told = " ".join(" ".join(saved.texts).split())

    assert "Patching z from the clean prompt into the corrupted one" in told
    assert "' rain' minus logit of ' cake' at the last position (nats); clean +3.000" in told
    assert "Weights processed: fold_layer_norm." in told
    patch_map(HEADS, tmp_path / "map.png")
    assert "processed" not in " ".join(saved.texts)


def test_large_maps_have_no_numbers_and_too_large_ones_are_refused(
    tmp_path: Path, saved: Any
) -> None:
    """Beyond 16 heads only colours are left, beyond 144 nothing."""
    many = replace(HEADS, shape=(1, 145), numbers=(0.0,) * 145)
    patch_map(replace(HEADS, shape=(1, 17), numbers=(0.0,) * 17), tmp_path / "map.png")

    assert "+0.00" not in saved.texts and "16" in saved.texts
    with pytest.raises(PvmlError, match="1 rows of 145 columns are too many"):
        patch_map(many, tmp_path / "map.png")
    with pytest.raises(PvmlError, match="png or svg"):
        patch_map(HEADS, tmp_path / "map.gif")


def test_a_terminal_shows_the_same() -> None:
    """Numbers with a shade for what they change, and the same words."""
    assert patch_text(HEADS).splitlines() == [
        "Patching z from the clean prompt into the corrupted one",
        "rows: layer, columns: head",
        "0: as corrupted, 1: as clean",
        "",
        "       0       1       2",
        "0  +0.00   +0.00   +0.25░",
        "1  +1.00█  -0.25░  +0.50▒",
        "",
        "Metric: logit of ' rain' minus logit of ' cake' at the last position (nats);",
        "clean +3.000, corrupted -1.000. A patch that changes nothing leaves 0, one that",
        "restores the answer makes it 1.",
    ]
    wide = replace(POSITIONS, shape=(1, 3), numbers=(-1.0, 3.0, -1.0))
    assert "·rain…" in patch_text(wide)
    many = replace(HEADS, shape=(1, 20), numbers=(0.0,) * 20)
    lines = patch_text(many).splitlines()
    assert max(map(len, lines)) <= 80 and sum(line.startswith("0  +0.25") for line in lines) == 3
    with pytest.raises(PvmlError, match="at least 60"):
        patch_text(HEADS, width=59)
