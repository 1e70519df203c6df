"""The four rewritings in the order in which they are done: what each does, keeps, and refuses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pvml.config import Config
from pvml.modules.transformer import Transformer
from pvml.processing.centring import centre_logits, centre_writing
from pvml.processing.folding import fold_biases, fold_norms

Keeps = Literal["logits", "differences of logits"]
"""What is the same before and after; equal differences of logits are equal probabilities."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One way to rewrite weights."""

    run: Callable[[Transformer], list[str]]
    """Do it to this model; the names of the tensors that were changed."""
    wrong_for: Callable[[Config], str]
    """Why it would be wrong for a model of this shape. Empty: it is right."""
    did: str
    """What it does, as a sentence."""
    keeps: Keeps = "logits"
    unties: bool = False
    """Whether W_U and W_E are no longer one table afterwards."""


def _folding(cfg: Config) -> str:
    if cfg.normalization == "none":
        return "this model has no LayerNorm to fold"
    if cfg.positions == "shortformer" and cfg.n_layers:
        return (
            "positions are added behind ln1, for queries and keys only. In W_Q and W_K, ln1's w "
            "would scale the positions too, which it does not now, and one table of positions "
            "cannot make up for every layer's w"
        )
    return ""


def _centring(cfg: Config) -> str:
    if cfg.normalization == "none":
        return (
            "this model has no LayerNorm that would take the stream's mean off before it is read, "
            "so without that mean it would read something else"
        )
    return ""


def _never(cfg: Config) -> str:
    return ""


CHANGES = {
    "fold_layer_norm": Change(
        run=fold_norms,
        wrong_for=_folding,
        did="each LayerNorm's w, b and centring are in the weights and biases that read it; "
        "it keeps w = 1 and b = 0, and still divides by the standard deviation",
        unties=True,
    ),
    "centre_writing_weights": Change(
        run=centre_writing,
        wrong_for=_centring,
        did="whatever writes to the stream writes vectors of mean 0, which is all that the "
        "LayerNorms read",
        unties=True,
    ),
    "centre_unembedding": Change(
        run=centre_logits,
        wrong_for=_never,
        did="the logits of each position have mean 0: they move by one number together, and no "
        "probability changes",
        keeps="differences of logits",
        unties=True,
    ),
    "fold_value_biases": Change(
        run=fold_biases,
        wrong_for=_never,
        did="b_V is 0 and b_O has what it gave, since each query's pattern adds up to 1; a "
        "pattern or z that is edited no longer takes its share of b_V away",
    ),
}
"""By the name of the function that does it, in the right order for all of them."""


def described(processing: Sequence[str]) -> str:
    """What figures say of a processed model's weights; empty for one that is as it was trained."""
    return f"weights processed: {', '.join(processing)}" if processing else ""
