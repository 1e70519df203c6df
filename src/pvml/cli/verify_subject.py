"""What `pvml verify` looks at: a model, the tokens that it reads, and the reference."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pvml.config import Config, Normalization, Positions
from pvml.errors import PvmlError

if TYPE_CHECKING:
    import torch as t
    from torch import Tensor

    from pvml.cli.verify import VerifyFlags
    from pvml.modules.transformer import Transformer
    from pvml.parity.references import Against, Reference

RANDOM = "random"
"""The MODEL that is none: a random one. A run of that name is runs/random."""

_SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "d_model": 21,
        "n_heads": 3,
        "n_layers": 2,
        "n_ctx": 73,
        "d_vocab": 53,
        "d_mlp": 37,
    },
    "gpt2-small": {},
}
_TOKENS = 70
"""In a row: more than the 64 queries that attention takes at a time where it is differentiated."""


@dataclass(frozen=True, kw_only=True)
class RandomShape:
    """The shape of a random model."""

    shape: Literal["tiny", "gpt2-small"] = "tiny"
    """Of the random model: small sizes that are all different, or GPT-2 small's."""
    d_model: int | None = None
    """Unset, here and below: as --shape has it."""
    n_heads: int | None = None
    n_layers: int | None = None
    n_ctx: int | None = None
    d_vocab: int | None = None
    d_head: int | None = None
    d_mlp: int | None = None
    attn_only: bool = False
    positions: Positions = "standard"
    normalization: Normalization = "LN"
    tie_embeddings: bool = False

    def config(self) -> Config:
        """The Config of that shape. A d_model of one's own asks for d_mlp's default, too.

        Raises: PvmlError for sizes that no model can have.
        """
        sizes: dict[str, Any] = dict(_SHAPES[self.shape])
        if self.d_model is not None:
            sizes.pop("d_mlp", None)
        chosen = {name: getattr(self, name) for name in _NAMES}
        sizes |= {name: size for name, size in chosen.items() if size is not None}
        return Config(
            **sizes,
            attn_only=self.attn_only,
            positions=self.positions,
            normalization=self.normalization,
            tie_embeddings=self.tie_embeddings,
        )


_NAMES = ("d_model", "n_heads", "n_layers", "n_ctx", "d_vocab", "d_head", "d_mlp")


@dataclass(frozen=True)
class Subject:
    """A model, what it reads, and what it is compared with."""

    model: "Transformer"
    tokens: "Tensor"
    """(batch, posn)"""
    reference: "Reference"
    name: str
    note: str
    """Which model it is, in a sentence."""


def subject(flags: "VerifyFlags", seed: int) -> Subject:
    """The model that the flags ask for, random tokens for it, and the reference.

    Raises: PvmlError where a model cannot be had, or the reference asked for cannot hold it.
    """
    import torch as t

    from pvml.device import pick_device, pick_dtype

    device, dtype = pick_device(flags.device), pick_dtype(flags.dtype)
    if dtype == t.float64 and device.type not in ("cpu", "cuda"):
        raise PvmlError(f"{device.type} may have no float64: give --dtype float32, or --device cpu")
    if flags.n_tokens is not None and flags.n_tokens < 1:
        raise PvmlError(f"--n-tokens must be at least 1, got {flags.n_tokens}")
    one = _random(flags, seed, dtype) if flags.model == RANDOM else _loaded(flags, dtype)
    n = min(_TOKENS, one.model.cfg.n_ctx) if flags.n_tokens is None else flags.n_tokens
    draw = t.Generator().manual_seed(seed)
    tokens = t.randint(one.model.cfg.d_vocab, (flags.batch_size, n), generator=draw)
    return replace(one, model=one.model.to(device), tokens=tokens)


def _random(flags: "VerifyFlags", seed: int, dtype: "t.dtype") -> Subject:
    import torch as t

    from pvml.modules.transformer import Transformer
    from pvml.parity.check import move_off_defaults
    from pvml.parity.references import reference_for
    from pvml.reference.names_out import not_in_gpt2

    cfg = flags.shape.config()
    model = move_off_defaults(Transformer(cfg, seed=seed), seed).to(dtype).eval()
    against, why = _against(flags, cfg)
    all_moved = "all moved off their defaults"
    if against != "float64" and not not_in_gpt2(cfg):
        with t.no_grad():
            model.unembed.b_U.zero_()
        all_moved += " but b_U, which a GPT-2 has none of"
    note = (
        f"a random model, seed {seed}: d_model {cfg.d_model}, n_heads {cfg.n_heads}, n_layers "
        f"{cfg.n_layers};\n{sum(x.numel() for x in model.parameters()):,} parameters, "
        f"{all_moved}{why}"
    )
    return Subject(model, t.empty(0), reference_for(model, against), "this random model", note)


def _loaded(flags: "VerifyFlags", dtype: "t.dtype") -> Subject:
    import torch as t

    from pvml.loading.hugging_face import FORM
    from pvml.loading.meaning import load_alone
    from pvml.loading.runs import OURS
    from pvml.parity.references import HuggingFace, reference_for

    loaded = load_alone(flags.model, device="cpu", dtype=dtype)
    model, note = loaded.model, f"{loaded.name}: {loaded.source}, with its own weights"
    if model.processing:
        note += f", rewritten: {', '.join(model.processing)}"
    against, why = _against(flags, model.cfg, model.state_dict())
    if against != "hf" or loaded.report.form != FORM:
        reference = reference_for(model, against)
        if loaded.report.form != OURS:
            note += (
                ".\nThe reference is given the weights as they were read: how the file was read is "
                "not judged here"
            )
    else:
        try:
            from pvml.reference.huggingface import published
        except ImportError as problem:
            raise PvmlError(f"{problem}; or compare with --against float64") from problem

        folder = Path(loaded.report.where).parent
        theirs = published(folder, dtype, tied=model.cfg.tie_embeddings)
        reference = HuggingFace(theirs, model.cfg, own_weights=True)
        note += ", which Hugging Face's library reads for itself"
    noted = "".join(f"\nnote: {each}" for each in loaded.report.notes)
    return Subject(model, t.empty(0), reference, loaded.name, f"{note}{why}{noted}")


def _against(
    flags: "VerifyFlags", cfg: Config, weights: "Mapping[str, Tensor] | None" = None
) -> tuple["Against", str]:
    """The reference asked for, or the best that there is, and why it is not Hugging Face's."""
    if flags.against is not None:
        return flags.against, ""
    from pvml.reference.names_out import not_in_gpt2

    reasons = not_in_gpt2(cfg, weights)
    if reasons:
        return "float64", f"\nnot compared with Hugging Face's GPT-2: {'; '.join(reasons)}"
    if find_spec("transformers") is None:
        return "float64", "\nnot compared with Hugging Face's GPT-2: it needs the extra hub"
    return "hf", ""
