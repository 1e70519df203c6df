"""TransformerLens's form: what its `convert_tl_checkpoint` and `boot_native` take."""

from collections.abc import Mapping
from pathlib import Path

import torch as t
from safetensors.torch import load_file
from torch import Tensor

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.export.form import Form, Reading, Source
from pvml.export.tokenizer_files import NOTE, encoder, write_tokenizer
from pvml.reference.names_out import lens_fields, not_in_lens, to_lens
from pvml.runs.json_object import read_json, to_json
from pvml.runs.weights import save_tensors

_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"


def reasons(cfg: Config, weights: Mapping[str, Tensor]) -> list[str]:
    """Why TransformerLens cannot build this model natively; empty if it can."""
    return not_in_lens(cfg)


def require_library() -> str:
    """The library and its version.

    Raises: PvmlError if it is missing, or older than version 4.
    """
    from importlib.metadata import version

    try:
        import pvml.reference.transformer_lens  # noqa: F401  # says which version it needs
    except ImportError as error:
        raise PvmlError(
            "an export to transformer_lens is read back with TransformerLens 4, which is missing: "
            "pip install 'pvml[lens]'"
        ) from error
    return f"transformer_lens {version('transformer-lens')}"


def write(source: Source, folder: Path) -> None:
    """Write config.json (a TransformerBridgeConfig's fields), model.safetensors, the tokenizer.

    The weights have HookedTransformer's names and shapes.
    """
    fields = lens_fields(source.cfg)
    (folder / _CONFIG).write_text(to_json(fields, indent=2) + "\n", "utf-8")
    tensors = to_lens(source.weights, source.cfg)
    # a tied table's two names must not be views of one another: the format has no views
    apart = {name: x.clone(memory_format=t.contiguous_format) for name, x in tensors.items()}
    save_tensors(apart, folder / _WEIGHTS)
    write_tokenizer(source.tokenizer, source.cfg.n_ctx, folder)


def read(folder: Path, dtype: t.dtype) -> list[Reading]:
    """The folder as a TransformerBridge that `boot_native` built."""
    from pvml.reference.transformer_lens import native_bridge

    bridge = native_bridge(read_json(folder / _CONFIG), load_file(folder / _WEIGHTS), dtype)

    def logits(tokens: Tensor) -> Tensor:
        with t.no_grad():
            found: Tensor = bridge(tokens, return_type="logits")
        return found

    return [Reading(how="TransformerBridge.boot_native", logits=logits)]


FORM = Form(
    title="TransformerLens 4",
    tag="transformer-lens",
    reasons=reasons,
    require_library=require_library,
    write=write,
    read=read,
    encode=encoder,
    opening="""\
import json

from safetensors.torch import load_file
from transformer_lens import TransformerBridgeConfig
from transformer_lens.conversion_utils import convert_tl_checkpoint
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer

cfg = TransformerBridgeConfig.from_dict(json.load(open("FOLDER/config.json")))
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
bridge = TransformerBridge.boot_native(cfg, tokenizer=tokenizer)
bridge.load_state_dict(convert_tl_checkpoint(load_file("FOLDER/model.safetensors"), cfg))
logits, cache = bridge.run_with_cache("Once upon a time")
""",
    notes=(
        NOTE,
        "TransformerLens's native models keep W_U as a table of its own, also where it was tied.",
        "There `hook_attn_scores` holds the pattern, and `hook_normalized` is before w and b.",
    ),
)
