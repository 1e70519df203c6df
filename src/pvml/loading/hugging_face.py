"""A folder as `GPT2LMHeadModel.save_pretrained` writes it: config.json beside the weights."""

import os
from pathlib import Path

import torch as t

from pvml.device import pick_device, pick_dtype
from pvml.loading.files import CONFIG, read_folder
from pvml.loading.report import Built, build, naming, sizes_note
from pvml.modules.transformer import Transformer
from pvml.reference.names import (
    config_from_hugging_face,
    convert_hugging_face,
    hugging_face_notes,
)
from pvml.runs.json_object import read_json

FORM = "a Hugging Face GPT-2"


def load_hugging_face(
    folder: str | os.PathLike[str],
    device: str | t.device | None = None,
    dtype: str | t.dtype | None = None,
) -> Transformer:
    """The model in a folder as `GPT2LMHeadModel.save_pretrained` writes it; no tokenizer is needed.

    Pickles are read for their tensors only; nothing in them is executed.

    Raises: PvmlError naming the file that is missing, damaged or malicious, or listing what PvML's
    model cannot express, or every tensor that is missing, unexpected or of another shape.
    """
    kind = None if dtype is None else pick_dtype(dtype)
    return build_hugging_face(Path(folder), pick_device(device), kind).model


def build_hugging_face(folder: Path, device: t.device, dtype: t.dtype | None) -> Built:
    """`load_hugging_face`, with the report.

    Raises: PvmlError as `load_hugging_face`.
    """
    theirs = read_json(folder / CONFIG)
    with naming(folder / CONFIG):
        cfg = config_from_hugging_face(theirs)
    state, where = read_folder(folder)
    with naming(where):
        # they tie the tables unless told otherwise, and then store one of them
        tied = theirs.get("tie_word_embeddings", True)
        converted = convert_hugging_face(state, cfg, tied=tied)
    model, report = build(FORM, where, cfg, converted, device, dtype)
    sizes = [sizes_note(model)] if tied else []
    return Built(model, report.saying(*sizes, *hugging_face_notes(theirs)))
