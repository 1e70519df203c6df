"""Any model as a run directory of PvML's own, which every command reads."""

import os
from pathlib import Path

from pvml.atomic import new_folder
from pvml.errors import RunDirError
from pvml.loading.meaning import Loaded
from pvml.runs.format import RunDir, new_config
from pvml.runs.json_object import to_json
from pvml.runs.layout import CONFIG, SUMMARY, TOKENIZER, WEIGHTS
from pvml.runs.weights import parameter_totals, save_weights


def import_model(loaded: Loaded, path: str | os.PathLike[str]) -> RunDir:
    """A new run directory with a model's weights and tokenizer: finished, and trained elsewhere.

    Its summary holds the loading report under `imported`. Written whole or not at all; the weights
    keep the model's dtype.

    Raises: RunDirError if something is there already, or if the disk refuses.
    """
    path = Path(path)
    if path.exists() or path.is_symlink():
        raise RunDirError(f"{path} exists already, and is left alone: give the model another NAME")
    model, tokenizer = loaded
    config = new_config(cfg=model.cfg, tokenizer=tokenizer, args={}, data={})
    imported = {"name": loaded.name, "source": loaded.source, **loaded.report.to_dict()}
    summary = {"parameters": parameter_totals(model), "imported": imported}
    with new_folder(path) as partial:
        for file, content in ((CONFIG, config), (SUMMARY, summary)):
            (partial / file).write_text(to_json(content, indent=2) + "\n", encoding="utf-8")
        tokenizer.save(partial / TOKENIZER)
        save_weights(model, partial / WEIGHTS)
    return RunDir.open(path)
