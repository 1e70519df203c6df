"""A model written in another library's form: refused, or proved and kept whole."""

import os
from pathlib import Path

from pvml.atomic import new_folder
from pvml.errors import CheckFailed, PvmlError
from pvml.export.about import About
from pvml.export.certificate import Certificate, certify
from pvml.export.form import Source, form_of
from pvml.export.model_card import model_card
from pvml.finite import all_finite
from pvml.loading import Loaded
from pvml.runs.json_object import to_json

CERTIFICATE = "certificate.json"
CARD = "README.md"
_PAD_TO = 64
_NAMED = 5
"""Tensors that a message names."""


def export_model(
    loaded: Loaded,
    to: str,
    folder: str | os.PathLike[str],
    *,
    pad_vocab: bool = False,
    about: About | None = None,
) -> Certificate:
    """Write a model into a new folder, in the form `to`, and let that library read it back.

    to: hf, transformer_lens or nanogpt. pad_vocab: for nanogpt, fill its vocabulary up with zeros
    to a multiple of 64, as its training does for speed. about: where the model is from, for the
    README.md in the folder; certificate.json is there too.

    Raises: PvmlError, before anything is written, with every reason why the form cannot hold the
        model, if its numbers are not finite, if the library is missing, or if the folder holds
        anything; CheckFailed with the
        certificate, and no folder is left, if the library does not compute what PvML does;
        RunDirError if the disk refuses.
    """
    form = form_of(to)
    if pad_vocab and to != "nanogpt":
        raise PvmlError(f"only nanogpt's vocabulary is ever padded, not that of {to}")
    source = _source(loaded, pad_vocab)
    reasons = form.reasons(source.cfg, source.weights)
    if reasons:
        raise PvmlError(f"{form.title} cannot hold {loaded.name}: {'; '.join(reasons)}")
    broken = [name for name, x in source.weights.items() if not all_finite(x)]
    if broken:
        raise PvmlError(
            f"{loaded.name} holds NaN or Inf in {', '.join(broken[:_NAMED])}: what it computes "
            f"means nothing, and nothing could be proved of a copy"
        )
    form.require_library()
    place = _free_place(Path(folder))
    with new_folder(place) as partial:
        form.write(source, partial)
        certificate = certify(source, to, form, partial)
        if not certificate.passed:
            raise CheckFailed(f"nothing was kept in {folder}: {certificate.text()}")
        told = to_json(certificate.to_dict(), indent=2)
        (partial / CERTIFICATE).write_text(told + "\n", "utf-8")
        card = model_card(loaded, form, certificate, place.name, about or About())
        (partial / CARD).write_text(card, "utf-8")
    return certificate


def _source(loaded: Loaded, pad_vocab: bool) -> Source:
    model = loaded.model
    d_vocab = model.cfg.d_vocab
    return Source(
        cfg=model.cfg,
        weights={name: x.detach().cpu() for name, x in model.state_dict().items()},
        dtype=model.dtype,
        tokenizer=loaded.tokenizer,
        rows=-(-d_vocab // _PAD_TO) * _PAD_TO if pad_vocab else d_vocab,
    )


def _free_place(folder: Path) -> Path:
    """Where the folder will be, if there is nothing yet.

    Raises: PvmlError if there is, or if the name leads nowhere.
    """
    try:
        place = folder.resolve()
    except (OSError, RuntimeError) as error:  # links that lead to each other
        raise PvmlError(f"{folder} cannot be a folder: {error}") from error
    if not place.exists():
        return place
    if not place.is_dir():
        raise PvmlError(f"{folder} is a file: give a folder that is new or empty")
    if any(place.iterdir()):
        raise PvmlError(f"{folder} is not empty, and nothing there is overwritten: give a new one")
    return place
