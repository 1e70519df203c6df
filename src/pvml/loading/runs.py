"""Run directories: PvML's own, and the seeds' published form."""

import torch as t

from pvml.loading.report import Built, build, naming
from pvml.reference.state_dicts import same_names
from pvml.runs.format import RunDir
from pvml.runs.weights import read_processing

OURS, SEEDS = "a PvML run", "a run in the seeds' form"


def build_run(run: RunDir, device: t.device, dtype: t.dtype | None, step: int | None) -> Built:
    """The model of a run, of its last checkpoint or of that step's, and the report.

    Raises: PvmlError as `RunDir.load_model`.
    """
    weights, path = run.weights(step)
    with naming(path):
        converted = same_names(weights)
    form = SEEDS if run.is_seeds_form else OURS
    built = build(form, path, run.cfg, converted, device, dtype or t.float32)
    if not run.is_seeds_form:
        built.model.processing = read_processing(path)
    return built
