"""The search for a recipe: one change at a time, each trained once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pvml.cli.train import TrainFlags
from pvml.errors import PvmlError

TINY = (
    "--d-model 8 --n-heads 2 --n-layers 1 --n-ctx 16 --batch-size 4 --tokenizer bpe:270 "
    "--precision float32"
)


def kept_rows(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()]


@pytest.fixture
def recipes() -> Any:
    import recipes as module

    return module


@pytest.fixture
def args(recipes: Any, tmp_path: Path) -> Any:
    return recipes.Args(
        data="storybook:60",
        held_out="storybook:7",
        tokens=64 * 8,
        run_dir=tmp_path / "runs",
        results=tmp_path / "results.jsonl",
        threads=1,
    )


def test_each_recipe_changes_its_axis_and_no_other(recipes: Any, args: Any) -> None:
    """Beside name and steps, only the fields of the changed flags differ from the base's."""

    def settings(flags: TrainFlags) -> dict[str, Any]:
        training = flags.training.to_dict()
        for counted in ("epochs", "max_steps_per_epoch", "warmup_steps"):
            del training[counted]
        return {**flags.model.to_dict(), **training, "tokenizer": flags.tokenizer}

    plain, *others = [
        settings(recipes.flags_of(recipe, args, seed=3)) for recipe in recipes.recipes()
    ]

    assert plain["seed"] == 3 and len(others) >= 10
    for recipe, other in zip(list(recipes.recipes())[1:], others, strict=True):
        changed = {name for name in plain if plain[name] != other[name]}
        said = {word[2:].replace("-", "_") for word in recipe.change.split() if word[:2] == "--"}
        assert changed - {"d_head", "d_mlp"} <= said, recipe.name


def test_recipes_are_trained_once_and_told_best_first(
    recipes: Any, args: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each reads the asked tokens, its figures are one line, and a second call trains nothing."""
    changes = {"base": {"": TINY}, "rate": {"none": f"{TINY} --lr 1e-9"}}
    monkeypatch.setattr(recipes, "RECIPES", changes)

    assert recipes.main(args) == 0
    kept = args.results.read_text()
    told = capsys.readouterr().out.splitlines()[-2:]
    assert recipes.main(args) == 0

    assert args.results.read_text() == kept
    assert [row["tokens"] for row in kept_rows(args.results)] == [512, 512]
    assert told[0].startswith("base ") and told[1].startswith("rate-none ")
    assert capsys.readouterr().out.splitlines()[-2:] == told


def test_an_unknown_recipe_is_refused_by_name(recipes: Any) -> None:
    """The message names it, and those there are."""
    with pytest.raises(PvmlError, match=r"no recipe is called shape-d9: .*shape-d128-l6"):
        recipes.recipes(["shape-d9"])


def test_recipes_come_in_the_order_given(recipes: Any) -> None:
    """Each once."""
    names = ["rate-half", "base", "rate-half"]

    assert [recipe.name for recipe in recipes.recipes(names)] == ["rate-half", "base"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokens": 0}, "--tokens must be at least 1, got 0"),
        ({"tokens": -5}, "--tokens must be at least 1, got -5"),
        ({"seeds": ()}, "--seeds names no seed"),
        ({"seeds": (1, 1)}, "--seeds names 1 twice"),
        ({"threads": 0}, "--threads must be 1 to 1,024"),
    ],
)
def test_bad_use_is_told(recipes: Any, args: Any, changes: dict[str, Any], told: str) -> None:
    """Before anything is read or trained."""
    with pytest.raises(PvmlError, match=told):
        recipes.main(replace(args, list=True, **changes))


def test_a_missing_corpus_is_told_with_what_to_give(
    recipes: Any, args: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the stories do not lie beside the project: --data and --held-out."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        PvmlError, match=r"there is no \.\./shared/.*Give --data FILE and --held-out"
    ):
        recipes.main(replace(args, data=recipes.Args().data, only=("base",)))


def test_figures_of_a_changed_text_are_not_taken(
    recipes: Any, args: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a kept row nor the run passes as one of another text; a text that is gone is none."""
    monkeypatch.setattr(recipes, "RECIPES", {"base": {"": TINY}})
    held_out, texts = (
        tmp_path / "held-out.jsonl",
        ["A cat sat on a mat. " * 9, "It rained all day."],
    )
    held_out.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    args = replace(args, held_out=str(held_out))
    assert recipes.main(args) == 0
    kept = args.results.read_text()
    assert recipes.main(args) == 0

    held_out.write_text(held_out.read_text().replace("cat", "dog"))
    with pytest.raises(PvmlError, match=r"kept figures of `pvml train .* are of other text"):
        recipes.main(args)
    with pytest.raises(PvmlError, match=r"held-out\.jsonl as it was then"):
        recipes.main(replace(args, results=tmp_path / "others.jsonl"))
    held_out.unlink()
    assert recipes.main(args) == 0
    assert args.results.read_text() == kept and not (tmp_path / "others.jsonl").exists()
