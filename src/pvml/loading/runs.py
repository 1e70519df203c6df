"""Run directories: PvML's own, and the seeds' published form."""

import torch as t

from pvml.loading.report import Built, build, naming, widest
from pvml.reference.state_dicts import same_names
from pvml.runs.format import RunDir
from pvml.runs.weights import read_processing

OURS, SEEDS = "a PvML run", "a run in the seeds' form"


def build_run(run: RunDir, device: t.device, dtype: t.dtype | None, step: int | None) -> Built:
    """The model of a run, of its last checkpoint or of that step's, and the report.

    dtype: unset, float32, or float64 where the file has that.

    Raises: PvmlError as `RunDir.load_model`.
    """
    weights, path = run.weights(step)
    with naming(path):
        converted = same_names(weights)
    form = SEEDS if run.is_seeds_form else OURS
    # a wider file loses nothing; a narrower one is computed in what training computes in
    kind = dtype or t.promote_types(widest(converted.weights), t.float32)
    built = build(form, path, run.cfg, converted, device, kind)
    if not run.is_seeds_form:
        built.model.processing = read_processing(path)
    return built


def stored_dtype(run: RunDir, step: int | None) -> t.dtype:
    """What the numbers of a run's last checkpoint, or of that step's, are stored in.

    Raises: RunDirError if there are none yet, or they are damaged.
    """
    return widest(run.weights(step)[0])
