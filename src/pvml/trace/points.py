"""The table of named tensors: every activation and parameter, what its axes are and what it means.

The printer, the caches, the parity check, the docs and the tests all read this table. How a name
is listened to lives in `tap.py`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Point:
    """One activation: its name inside its module, its axes, its meaning, and its other name."""

    name: str
    axes: str
    note: str = ""
    """What the trace prints after `#`. Empty: nothing needs saying beyond the shape."""
    lens: str = ""
    """TransformerLens's name, relative to the module; a leading `../` means its parent."""
    differs: str = ""
    """Where TransformerLens's tensor of that name is not the same thing."""
    shows: tuple[str, ...] = ()
    """Parameters that the trace prints just before this tensor, which they produce."""
    feeds: str = ""
    """The only tensor of the same module that is computed from this one, if there is just one."""
    fixed: str = ""
    """Why an edit here could not act. Empty: it can."""
    label: str = ""
    """The name as the trace prints it, where that is not `name`."""
    when: str = ""
    """The Config field and value that this tensor exists under. Empty: always."""


STREAM = "batch posn d_model"
HEADS = "batch posn n_heads d_head"
GRID = "batch n_heads posn_q posn_k"

POINTS: dict[str, tuple[Point, ...]] = {
    "embed": (
        Point(
            name="in",
            axes="batch posn",
            note="token ids: the only whole numbers in the model",
            feeds="out",
        ),
        Point(
            name="out",
            axes=STREAM,
            note="each token's row of W_E",
            shows=("W_E",),
            lens="../hook_embed",
        ),
    ),
    "pos_embed": (
        Point(
            name="in",
            axes="batch posn",
            note="token ids again; how many there are is all that counts",
            fixed="only its shape is read",
        ),
        Point(
            name="sliced",
            axes="posn d_model",
            note="the rows of the positions in use",
            shows=("W_pos",),
            feeds="out",
        ),
        Point(
            name="out",
            axes=STREAM,
            note="where each token stands, equal in every sequence",
            lens="../hook_pos_embed",
        ),
    ),
    "ln": (
        Point(name="residual", axes=STREAM, note="the stream, at its own scale"),
        Point(
            name="residual_mean",
            axes="batch posn 1",
            note="one mean per position, over d_model",
            feeds="normalized",
        ),
        Point(
            name="residual_std",
            axes="batch posn 1",
            note="sqrt(variance + eps), the variance over d_model, biased",
            lens="hook_scale",
            feeds="normalized",
        ),
        Point(
            name="normalized",
            axes=STREAM,
            note="standardised (kept as `normalized`): mean 0, std 1",
            label="residual",
            feeds="out",
        ),
        Point(
            name="out",
            axes=STREAM,
            note="rescaled by w, shifted by b",
            shows=("w, b",),
            lens="hook_normalized",
            differs="HookedTransformer takes hook_normalized here, after w and b; "
            "TransformerLens 4, bridge or native, takes it before them, at `normalized`",
        ),
    ),
    "attn": (
        Point(name="normalized_resid_pre", axes=STREAM, note="what the heads read"),
        Point(
            name="qk_input",
            axes=STREAM,
            note="normalized_resid_pre + positions, for queries and keys only",
            when="positions=shortformer",
        ),
        Point(
            name="q",
            axes=HEADS,
            note="what each position asks for",
            shows=("W_Q", "b_Q"),
            lens="hook_q",
            feeds="attn_scores",
        ),
        Point(
            name="k",
            axes=HEADS,
            note="what each position can be found by",
            shows=("W_K", "b_K"),
            lens="hook_k",
            feeds="attn_scores",
        ),
        Point(
            name="v",
            axes=HEADS,
            note="what each position hands over when it is read",
            shows=("W_V", "b_V"),
            lens="hook_v",
            feeds="z",
        ),
        Point(
            name="attn_scores",
            axes=GRID,
            note="q . k, raw: the future is still in it",
            feeds="attn_scores_masked",
        ),
        Point(
            name="mask",
            axes="posn_q posn_k",
            note="True where a query must not look",
            feeds="attn_scores_masked",
        ),
        Point(
            name="attn_scores_masked",
            axes=GRID,
            note="/ sqrt(d_head), -inf where masked",
            lens="hook_attn_scores",
            differs="TransformerLens 4's natively built models hold the pattern under this name; "
            "its bridge masks with the dtype's lowest number, and with -inf in compatibility mode",
            feeds="attn_pattern",
        ),
        Point(
            name="attn_pattern",
            axes=GRID,
            note="softmax: each row shares out 1",
            lens="hook_pattern",
            feeds="z",
        ),
        Point(
            name="z",
            axes=HEADS,
            note="the mix of values each query collects",
            lens="hook_z",
            feeds="attn_out",
        ),
        Point(
            name="attn_out",
            axes=STREAM,
            note="all heads together, at the stream's width",
            shows=("W_O", "b_O"),
            lens="../hook_attn_out",
        ),
    ),
    "mlp": (
        Point(
            name="normalized_resid_mid",
            axes=STREAM,
            note="what the MLP reads",
            feeds="pre",
        ),
        Point(
            name="pre",
            axes="batch posn d_mlp",
            note="the hidden layer, before the bend",
            shows=("W_in", "b_in"),
            lens="hook_pre",
            feeds="post",
        ),
        Point(
            name="post",
            axes="batch posn d_mlp",
            note="after gelu_new, the only bend here",
            lens="hook_post",
            feeds="mlp_out",
        ),
        Point(
            name="mlp_out",
            axes=STREAM,
            note="what the MLP adds to the stream",
            shows=("W_out", "b_out"),
            lens="../hook_mlp_out",
        ),
    ),
    "block": (
        Point(
            name="resid_pre", axes=STREAM, note="the stream, as it comes in", lens="hook_resid_pre"
        ),
        Point(
            name="resid_mid",
            axes=STREAM,
            note="resid_pre + attn_out",
            lens="hook_resid_mid",
            when="attn_only=False",
        ),
        Point(
            name="resid_post",
            axes=STREAM,
            note="resid_mid + mlp_out",
            lens="hook_resid_post",
            when="attn_only=False",
        ),
        Point(
            name="resid_post",
            axes=STREAM,
            note="resid_pre + attn_out",
            lens="hook_resid_post",
            when="attn_only=True",
        ),
    ),
    "unembed": (
        Point(
            name="normalized_resid_final",
            axes=STREAM,
            note="the finished stream",
            feeds="logits",
        ),
        Point(
            name="logits",
            axes="batch posn d_vocab",
            note="a score for every token that could come next",
            shows=("W_U", "b_U"),
        ),
    ),
}

PARAMETERS: dict[str, dict[str, tuple[str, str]]] = {
    "embed": {"W_E": ("d_vocab d_model", "a row for every token id")},
    "pos_embed": {"W_pos": ("n_ctx d_model", "a row for every position there can be")},
    "ln": {"w, b": ("d_model", "one pair for all positions")},
    "attn": {
        "W_Q": ("n_heads d_model d_head", "a reading matrix per head"),
        "b_Q": ("n_heads d_head", "a bias per head, equal at every position"),
        "W_K": ("n_heads d_model d_head", ""),
        "b_K": ("n_heads d_head", ""),
        "W_V": ("n_heads d_model d_head", ""),
        "b_V": ("n_heads d_head", ""),
        "W_O": ("n_heads d_head d_model", "a writing matrix per head"),
        "b_O": ("d_model", "once for the layer, not once a head"),
    },
    "mlp": {
        "W_in": ("d_model d_mlp", "into the hidden layer"),
        "b_in": ("d_mlp", ""),
        "W_out": ("d_mlp d_model", "and out of it"),
        "b_out": ("d_model", ""),
    },
    "block": {},
    "unembed": {
        "W_U": ("d_model d_vocab", "a column for every token id"),
        "b_U": ("d_vocab", "frozen at zero"),
    },
}
"""Parameter names by module: their axes, and what the trace prints after `#`."""


def points_of(kind: str, **settings: object) -> tuple[Point, ...]:
    """The rows of a module kind that exist under these Config settings."""
    return tuple(point for point in POINTS[kind] if not point.when or _holds(point.when, settings))


def _holds(when: str, settings: dict[str, object]) -> bool:
    field, wanted = when.split("=")
    return str(settings[field]) == wanted


def full_name(path: str, name: str) -> str:
    """A tensor's name as listeners see it: its module's path, then its own name."""
    return f"{path}.{name}" if path else name


def lens_name(path: str, point: Point) -> str:
    """TransformerLens's full name for a tensor of the module at `path`; empty where it has none."""
    if not point.lens:
        return ""
    if not point.lens.startswith("../"):
        return full_name(path, point.lens)
    parent = path.rpartition(".")[0]
    return full_name(parent, point.lens.removeprefix("../"))
