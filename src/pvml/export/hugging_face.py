"""The form of Hugging Face's GPT-2: a folder for `GPT2LMHeadModel` and `AutoTokenizer`."""

from collections.abc import Mapping
from pathlib import Path

import torch as t
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.export.form import Form, Reading, Source
from pvml.export.tokenizer_files import NOTE, encoder, write_tokenizer
from pvml.reference.names_out import (
    has_one_table,
    hugging_face_fields,
    not_in_gpt2,
    to_hugging_face,
)
from pvml.runs.json_object import to_json
from pvml.runs.weights import save_tensors


def reasons(cfg: Config, weights: Mapping[str, Tensor]) -> list[str]:
    """Why a GPT-2 cannot be this model; empty if it can."""
    return not_in_gpt2(cfg, weights)


def require_library() -> str:
    """The library and its version.

    Raises: PvmlError if it is missing.
    """
    try:
        import transformers
    except ImportError as error:
        raise PvmlError(
            "an export to hf is read back with transformers, which is missing: "
            "pip install 'pvml[hub]'"
        ) from error
    return f"transformers {transformers.__version__}"


def write(source: Source, folder: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer's files.

    One table is written for two where W_U is W_E transposed.
    """
    cfg, tokenizer = source.cfg, source.tokenizer
    tied = has_one_table(source.weights, cfg)
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "dtype": str(source.dtype).removeprefix("torch."),
        **hugging_face_fields(cfg, tied=tied),
        **special,
    }
    (folder / "config.json").write_text(to_json(config, indent=2) + "\n", "utf-8")
    # in config.json a padding token would let every pass ask for a mask
    writing = {**special, "pad_token_id": tokenizer.eos_token_id}
    (folder / "generation_config.json").write_text(to_json(writing, indent=2) + "\n", "utf-8")
    tensors = to_hugging_face(source.weights, cfg)
    if tied:
        tensors.pop("lm_head.weight", None)
    contiguous = {name: x.contiguous() for name, x in tensors.items()}
    save_tensors(contiguous, folder / "model.safetensors")
    write_tokenizer(tokenizer, cfg.n_ctx, folder)


def read(folder: Path, dtype: t.dtype) -> list[Reading]:
    """The folder as `GPT2LMHeadModel.from_pretrained` opens it."""
    from transformers import GPT2LMHeadModel

    from pvml.reference.huggingface import quiet

    with quiet():
        model = GPT2LMHeadModel.from_pretrained(str(folder), local_files_only=True)
    model = model.to(dtype).eval()

    def logits(tokens: Tensor) -> Tensor:
        with t.no_grad():
            found: Tensor = model(tokens, use_cache=False).logits
        return found

    def continued(ids: list[int], n_new: int) -> list[int]:
        tokens = t.tensor([ids])
        with quiet():
            written = model.generate(
                tokens,
                attention_mask=t.ones_like(tokens),
                do_sample=False,
                max_new_tokens=n_new,
            )
        return [int(i) for i in written[0, len(ids) :]]

    return [Reading(how="GPT2LMHeadModel", logits=logits, continued=continued)]


FORM = Form(
    title="Hugging Face transformers",
    tag="transformers",
    reasons=reasons,
    require_library=require_library,
    write=write,
    read=read,
    encode=encoder,
    opening="""\
from transformers import AutoTokenizer, GPT2LMHeadModel

model = GPT2LMHeadModel.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
inputs = tokenizer(tokenizer.bos_token + "Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0], skip_special_tokens=True))
""",
    notes=(NOTE,),
)
