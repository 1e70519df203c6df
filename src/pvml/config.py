"""What a model is: its sizes and few variations. How it is trained or sampled lives elsewhere."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from pvml.errors import PvmlError
from pvml.plain import is_finite, is_whole, make_plain

Positions = Literal["standard", "none", "shortformer"]
Normalization = Literal["LN", "none"]

_SMALLEST = {
    "d_model": 1,
    "n_heads": 1,
    "n_layers": 0,
    "n_ctx": 1,
    "d_vocab": 1,
    "d_head": 1,
    "d_mlp": 1,
}
LARGEST_SEED = 2**63 - 1
"""Of whatever is drawn; the smallest is 0."""
_LARGEST = 2**31 - 1
"""A larger size overflows the kernels' own numbers; that memory runs out earlier is told later."""
_MOST_LAYERS = 10_000


@dataclass(frozen=True, kw_only=True)
class Config:
    """A model's shape. The defaults are GPT-2 small.

    Raises: PvmlError at construction for a value that no model can have, naming field and value.
    """

    d_model: int = 768
    """Width of the residual stream (numbers per position)."""
    n_heads: int = 12
    """Attention heads in each layer."""
    n_layers: int = 12
    """Transformer blocks; 0 leaves embedding and unembedding only, a bigram model."""
    n_ctx: int = 1024
    """Longest sequence the model can read (tokens, BOS included)."""
    d_vocab: int = 50257
    """Vocabulary size (distinct token ids)."""
    d_head: int = None  # type: ignore[assignment]  # an int once constructed; None asks for the default
    """Width of one head's queries, keys and values (numbers). Unset: d_model / n_heads."""
    d_mlp: int = None  # type: ignore[assignment]
    """Width of the MLP's hidden layer (numbers). Unset: 4 x d_model."""
    layer_norm_eps: float = 1e-5
    """Added to the variance inside LayerNorm's square root (no unit)."""
    init_range: float = 0.02
    """Standard deviation of the freshly drawn weights (no unit)."""
    attn_only: bool = False
    """Leave out every MLP and its LayerNorm."""
    positions: Positions = "standard"
    """How a position is told: added to the stream, not at all, or to queries and keys only."""
    normalization: Normalization = "LN"
    """LayerNorm before each layer and before the unembedding, or none at all."""
    tie_embeddings: bool = False
    """Use W_E transposed as W_U: one table, trained as one."""
    debug: bool = field(default=False, compare=False, repr=False)
    """Print every named tensor of each pass. Never stored with the model."""

    def __post_init__(self) -> None:
        make_plain(self)
        for name in ("d_model", "n_heads"):
            self._require_size(name)
        if self.d_head is None:
            if self.d_model % self.n_heads:
                raise PvmlError(
                    f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}: "
                    f"change one, or give d_head"
                )
            object.__setattr__(self, "d_head", self.d_model // self.n_heads)
        if self.d_mlp is None:
            object.__setattr__(self, "d_mlp", 4 * self.d_model)
        for name in _SMALLEST:
            self._require_size(name)
        for name in ("layer_norm_eps", "init_range"):
            self._require_non_negative(name)
        for name, words in (("positions", Positions), ("normalization", Normalization)):
            value = getattr(self, name)
            if value not in get_args(words):
                raise PvmlError(
                    f"{name} must be one of {', '.join(get_args(words))}, got {value!r}"
                )
        for name in ("attn_only", "tie_embeddings", "debug"):
            if not isinstance(getattr(self, name), bool):
                raise PvmlError(f"{name} must be True or False, got {getattr(self, name)!r}")

    def _require_size(self, name: str) -> None:
        value, least = getattr(self, name), _SMALLEST[name]
        if not is_whole(value, least):
            raise PvmlError(f"{name} must be a whole number of at least {least}, got {value!r}")
        most = _MOST_LAYERS if name == "n_layers" else _LARGEST
        if value > most:
            raise PvmlError(f"{name} must be at most {most}, got {value}")

    def _require_non_negative(self, name: str) -> None:
        value = getattr(self, name)
        if not is_finite(value, 0.0):
            raise PvmlError(f"{name} must be a finite number of at least 0, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """The fields that make the model, ready for JSON; `debug` is not one of them."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "debug"}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "Config":
        """The Config that `to_dict` described; a stored `debug`, as the seeds wrote it, is dropped.

        Raises: PvmlError for a field that this version does not know, or a value out of range.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(saved) - known)
        if unknown:
            raise PvmlError(
                f"unknown model fields {', '.join(unknown)}: this version knows "
                f"{', '.join(sorted(known))}"
            )
        return cls(**{name: value for name, value in saved.items() if name != "debug"})
