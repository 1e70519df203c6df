"""The golden figures of the six runs published with d0mzw's notes, and of small runs like them.

The notes give the repository, not what is in it: a run is looked for under its name, at the top and
in runs/. Where it is not, the test is skipped with what PvML says of the place.
"""

import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch as t

from pvml.config import Config
from pvml.data.rows import Rows, pack
from pvml.data.sources import open_corpus
from pvml.data.tokenizer import Tokenizer
from pvml.errors import HubUnavailable
from pvml.hub import endpoint
from pvml.loading import Loaded, load
from pvml.loading.hub import hub_folder
from pvml.modules.transformer import Transformer
from pvml.parity.check import move_off_defaults, parameters_of
from pvml.reference.numpy_forward import forward
from pvml.runs.format import RunDir
from pvml.runs.layout import METRICS, SUMMARY
from pvml.sampling.args import SamplingArgs
from pvml.sampling.sampler import Sampler
from pvml.training.evaluation import grade_held_out

Agree = Callable[..., None]
HubCache = Callable[[str, Path], AbstractContextManager[None]]
REPO = "d0mzw/pvml-tinystories"
FIGURES = tomllib.loads(Path(__file__).with_name("figures.toml").read_text())
LONG = "d128-l6-h4-ctx512-40k"
PROMPT = "Once upon a time"
GRADED = 127_000
"""Tokens, as many as in the 1,000 rows of 128 of the notes."""
END = 500
"""Steps at the end of a run that its loss is the mean of."""


def address(run: str) -> str:
    """Where the run is on the hub.

    Raises: HubUnavailable where it is not found.
    """
    at_the_top, in_runs = (f"hf://{REPO}/{folder}tinystories-{run}" for folder in ("", "runs/"))
    try:
        hub_folder(at_the_top)
    except HubUnavailable:
        hub_folder(in_runs)
        return in_runs
    return at_the_top


def loaded_run(run: str) -> Loaded:
    return load(address(run), device="cpu")


def log_of(run: str) -> Path:
    """The run's folder, its log and its summary in it.

    Raises: HubUnavailable if the run is not found, EntryNotFoundError if it has no log.
    """
    from huggingface_hub import hf_hub_download

    at = address(run)
    folder = hub_folder(at)
    inside = at.removeprefix(f"hf://{REPO}/")
    for name in (METRICS, SUMMARY):
        commit = folder.parents[inside.count("/")].name
        hf_hub_download(REPO, f"{inside}/{name}", revision=commit, endpoint=endpoint())
    return folder


@pytest.fixture
def published(hub: None, request: pytest.FixtureRequest) -> Loaded:
    """One of the six, or the reason why not."""
    try:
        return loaded_run(request.param)
    except HubUnavailable as reason:
        pytest.skip(str(reason))


def each_run(figure: str) -> Any:
    runs = FIGURES[figure]["value"]
    return pytest.mark.parametrize(
        ("published", "run"), [(run, run) for run in runs], indirect=["published"], ids=[*runs]
    )


def run_parameters(model: Transformer) -> int:
    return model.parameter_counts()["total"]


@pytest.mark.network
@each_run("run_parameters")
def test_run_parameters(published: Loaded, run: str, agree: Agree) -> None:
    """14 million, and 49,152 more for the long window."""
    agree(run_parameters(published.model), run)


def run_greedy_text(model: Transformer, tokenizer: Tokenizer) -> str:
    args = SamplingArgs(temperature=0.0, max_new_tokens=50)
    return " ".join(Sampler(model, tokenizer).sample(PROMPT, args).split())


@pytest.mark.network
@pytest.mark.parametrize("published", [LONG], indirect=True)
def test_run_greedy_text(published: Loaded, agree: Agree) -> None:
    """A little girl named Lily climbs a tree."""
    agree(run_greedy_text(published.model, published.tokenizer))


def run_grades(
    model: Transformer, tokenizer: Tokenizer, texts: list[str], n_tokens: int = GRADED
) -> dict[str, float]:
    """On the first rows that the texts are cut into, of so many tokens in all, or fewer."""
    n_ctx = model.cfg.n_ctx
    ids = pack(tokenizer, texts, n_ctx).stream.ids()[:n_tokens]
    found = grade_held_out(model, Rows(ids, n_ctx, tokenizer.bos_token_id))
    return {"loss": found.loss, "accuracy": found.accuracy}


@pytest.mark.network
@each_run("run_grades")
def test_run_grades(published: Loaded, run: str, agree: Agree) -> None:
    """Every run is as good as the notes say: some minutes on a CPU for the largest."""
    texts = [*open_corpus("tinystories:validation", limit=1000)]
    agree(run_grades(published.model, published.tokenizer, texts), run)


def run_log(folder: Path) -> dict[str, float]:
    run = RunDir.open(folder)
    losses = [row["loss"] for row in run.rows("loss")]
    return {
        "loss": fmean(losses[-END:]),
        "slope": fmean(losses[-END:]) - fmean(losses[-2 * END : -END]),
        "accuracy": [row["accuracy"] for row in run.rows("accuracy")][-1],
        "minutes": run.summary()["seconds"] / 60,
    }


@pytest.mark.network
@pytest.mark.parametrize("run", FIGURES["run_log"]["value"])
def test_run_log(hub: None, run: str, agree: Agree) -> None:
    """The table of results follows from the logs, where they are published, too."""
    from huggingface_hub.errors import EntryNotFoundError

    try:
        folder = log_of(run)
    except (HubUnavailable, EntryNotFoundError) as reason:
        pytest.skip(str(reason))
    agree(run_log(folder), run)


def first_epoch(folder: Path) -> float:
    return fmean([row["loss"] for row in RunDir.open(folder).rows("loss")][:END])


@pytest.mark.network
@pytest.mark.parametrize("run", FIGURES["first_epoch"]["value"])
def test_first_epoch(hub: None, run: str, agree: Agree) -> None:
    """The larger model begins more slowly, by the logs, where they are published, too."""
    from huggingface_hub.errors import EntryNotFoundError

    try:
        folder = log_of(run)
    except (HubUnavailable, EntryNotFoundError) as reason:
        pytest.skip(str(reason))
    agree(first_epoch(folder), run)


@pytest.fixture(scope="module")
def small() -> Transformer:
    """Its window is shorter than what it is asked to write."""
    cfg = Config(d_model=6, n_heads=2, n_layers=1, n_ctx=23)
    model = move_off_defaults(Transformer(cfg, seed=2), 2)
    with t.no_grad():
        model.unembed.b_U.zero_()
    return model


@pytest.fixture
def served(hub_cache: HubCache, small: Transformer, tmp_path: Path) -> Iterator[None]:
    """The repository with one run of 1,700 steps in the seeds' form, while the test lasts."""
    folder = tmp_path / "runs" / f"tinystories-{LONG}"
    folder.mkdir(parents=True)
    t.save({**small.state_dict(), "blocks.0.attn.IGNORE": t.tensor(-t.inf)}, folder / "model.pt")
    model = {**small.cfg.to_dict(), "debug": False}
    (folder / "config.json").write_text(json.dumps({"args": {"lr": 1e-3}, "model": model}))
    rows: list[dict[str, Any]] = [
        {"step": step, "loss": 9.0 - (step > 700) - 4 * (step > 1200), "epoch": 0}
        for step in range(1, 1701)
    ]
    rows += [{"step": 1700, "accuracy": 0.25, "epoch": 0}]
    (folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / SUMMARY).write_text(json.dumps({"device": "cuda", "steps": 1700, "seconds": 90.0}))
    with hub_cache(REPO, tmp_path):
        yield


def test_run_parameters_offline(served: None, small: Transformer) -> None:
    """They are all the numbers that were written."""
    model = loaded_run(LONG).model

    assert run_parameters(model) == sum(x.size for x in parameters_of(small).values())


def test_run_greedy_text_offline(served: None, small: Transformer) -> None:
    """The text is what NumPy's reading of each window likes best, BOS kept in front."""
    model, tokenizer = loaded_run(LONG)
    ids = [50256, 7454, 2402, 257, 640]
    while len(ids) < 55:
        window = [*ids[:1], *ids[1:][-22:]]
        logits = forward(parameters_of(small), small.cfg, np.array([window]))["unembed.logits"]
        ids.append(int(logits[0, -1].argmax()))

    assert 50256 not in ids[1:]
    assert run_greedy_text(model, tokenizer) == " ".join(tokenizer.decode(ids[1:]).split())


def test_run_grades_offline(served: None, small: Transformer) -> None:
    """Loss and accuracy are those of NumPy's logits, on as many whole rows as are graded."""
    model, tokenizer = loaded_run(LONG)
    texts = ["Once upon a time the cat sat on the mat."] * 20
    stream = [i for text in texts for i in (*tokenizer.encode(text), 50256)]
    rows = np.array([[50256, *stream[start : start + 22]] for start in (0, 22, 44)])
    logits = forward(parameters_of(small), small.cfg, rows)["unembed.logits"][:, :-1]
    odds = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    given = np.take_along_axis(odds, rows[:, 1:, None], -1)

    found = run_grades(model, tokenizer, texts, 70)
    assert found["loss"] == pytest.approx(-np.log(given).mean(), rel=1e-5)
    assert found["accuracy"] == (logits.argmax(-1) == rows[:, 1:]).mean()


def test_run_log_offline(served: None) -> None:
    """The last 500 steps have a loss of 4 nats, the 500 before of 8."""
    assert run_log(log_of(LONG)) == {"loss": 4.0, "slope": -4.0, "accuracy": 0.25, "minutes": 1.5}


def test_first_epoch_offline(served: None) -> None:
    """The loss falls behind step 700: up to 500 it is 9 nats."""
    assert first_epoch(log_of(LONG)) == 9.0


def test_a_run_is_looked_for(hub_cache: HubCache, tmp_path: Path, served: None) -> None:
    """Under its name, in runs/ or at the top; of one that is in neither, the place is told."""
    assert address(LONG) == f"hf://{REPO}/runs/tinystories-{LONG}"
    with pytest.raises(HubUnavailable, match=f"hf://{REPO}/runs/tinystories-another"):
        address("another")
    with hub_cache(REPO, tmp_path / "runs"):
        assert address(LONG) == f"hf://{REPO}/tinystories-{LONG}"
