"""Mistakes in the layers that look at each position on its own."""

import math
from collections.abc import Callable

import numpy as np
from numpy import ndarray as Array

from pvml.parity.mistakes.mistake import Mistake, Mistakes, always, left_out
from pvml.parity.steps import State, Step, place
from pvml.reference import numpy_forward as reference


def embed(s: State) -> Mistakes:
    """In looking up tokens."""
    d_model, d_vocab = s["W_E"].shape[1], s["W_E"].shape[0]
    yield Mistake(
        "the vectors are multiplied by sqrt(d_model), as in the first Transformer; GPT-2 does not",
        {"out": lambda s: s["W_E"][s["in"]] * d_model**0.5},
    )
    yield Mistake("token i takes row i + 1 of W_E", {"in": lambda s: (s["in"] + 1) % d_vocab})
    yield Mistake("token i takes row i - 1 of W_E", {"in": lambda s: (s["in"] - 1) % d_vocab})
    yield Mistake(
        "each position takes the vector of the token before it",
        {"in": lambda s: np.roll(s["in"], 1, axis=1)},
    )
    yield Mistake(
        "each position takes the vector of the token after it",
        {"in": lambda s: np.roll(s["in"], -1, axis=1)},
    )


def pos_embed(s: State) -> Mistakes:
    """In looking up positions."""
    n = s["in"].shape[1]
    n_ctx = s["W_pos"].shape[0]
    if n < n_ctx:
        yield Mistake(
            "positions are counted from 1: the first takes row 1 of W_pos, not row 0",
            {"sliced": lambda s: s["W_pos"][1 : n + 1]},
        )
        yield Mistake(
            "the last rows of W_pos are taken, not the first",
            {"sliced": lambda s: s["W_pos"][n_ctx - n :]},
        )
    yield Mistake(
        "the rows come in the reverse order",
        {"sliced": lambda s: s["W_pos"][:n][::-1]},
    )
    yield Mistake(
        "every position takes row 0 of W_pos",
        {"sliced": lambda s: np.repeat(s["W_pos"][:1], n, axis=0)},
    )
    if s["in"].size and s["in"].max() < n_ctx:
        yield Mistake(
            "W_pos is read by the token's id, not by its position",
            {"out": lambda s: s["W_pos"][s["in"]]},
        )
    if not s["real"].all():
        yield Mistake(
            "positions count padding, too",
            {"out": lambda s: s["sliced"][place(np.ones_like(s["real"]))]},
        )


def layer_norm(s: State) -> Mistakes:
    """In standardising: what is divided by, along which axes, and what follows."""
    x = s["residual"]
    yield Mistake(
        "the variance divides by N - 1 (unbiased, torch.var's and torch.std's default), not by N",
        {"residual_std": lambda s: np.sqrt(_var(s, ddof=1) + s["eps"])},
    )
    yield Mistake(
        "eps is added to the standard deviation, not to the variance under the root",
        {"residual_std": lambda s: np.sqrt(_var(s)) + s["eps"]},
    )
    yield Mistake(
        "it divides by x.std() + eps: torch's std divides by N - 1, and eps belongs under the root",
        {"residual_std": lambda s: np.sqrt(_var(s, ddof=1)) + s["eps"]},
    )
    yield Mistake(
        "eps is left out, or far smaller than the config's layer_norm_eps",
        {"eps": always(np.array(0.0))},
    )
    for other in (1e-5, 1e-6, 1e-8):
        if other != s["eps"]:
            yield Mistake(
                f"eps is {other:g}, not the config's layer_norm_eps of {float(s['eps']):g}",
                {"eps": always(np.array(other))},
            )
    yield Mistake(
        "it divides by the variance: the square root is missing",
        {"residual_std": lambda s: _var(s) + s["eps"]},
    )
    yield Mistake(
        "the mean is not taken off",
        {"normalized": lambda s: s["residual"] / s["residual_std"]},
    )
    yield Mistake(
        "it is an RMSNorm: no mean is taken off, and the root is of the mean square",
        {
            "residual_std": lambda s: np.sqrt(
                (s["residual"] ** 2).mean(-1, keepdims=True) + s["eps"]
            ),
            "normalized": lambda s: s["residual"] / s["residual_std"],
        },
    )
    for axes, of_what in (
        (tuple(range(1, x.ndim)), "a sequence's positions and d_model together"),
        (1, "the positions"),
        (0, "the batch"),
    ):
        yield Mistake(
            f"mean and variance are taken over {of_what}, not over d_model alone",
            {"residual_mean": _mean_over(axes), "residual_std": _std_over(axes)},
        )
    yield Mistake(
        "it is not divided by the standard deviation", {"residual_std": lambda s: np.ones(1)}
    )
    yield Mistake("w is left out", {"w": lambda s: np.ones_like(s["w"])})
    yield Mistake("b is left out", {"b": lambda s: 0 * s["b"]})
    yield Mistake(
        "w and b are left out", {"w": lambda s: np.ones_like(s["w"]), "b": lambda s: 0 * s["b"]}
    )
    yield Mistake(
        "b is added before the multiplication with w, not after",
        {"out": lambda s: (s["normalized"] + s["b"]) * s["w"]},
    )
    yield Mistake(
        "w acts as 1 + w",
        {"w": lambda s: 1 + s["w"]},
    )


def _mean_over(axes: int | tuple[int, ...]) -> Step:
    return lambda s: s["residual"].mean(axes, keepdims=True)


def _std_over(axes: int | tuple[int, ...]) -> Step:
    return lambda s: np.sqrt(s["residual"].var(axes, keepdims=True) + s["eps"])


def _var(s: State, ddof: int = 0) -> Array:
    var: Array = s["residual"].var(-1, keepdims=True, ddof=ddof)
    return var


def mlp(s: State) -> Mistakes:
    """In the bend, mostly."""
    for text, bend in (
        ("the GELU is the erf form (torch's default), not gelu_new, its tanh form", _gelu_erf),
        ("the GELU is x sigmoid(1.702 x), not gelu_new", lambda x: x / (1 + np.exp(-1.702 * x))),
        ("the bend is a ReLU, not gelu_new", lambda x: np.maximum(x, 0)),
        ("the bend is a SiLU, not gelu_new", lambda x: x / (1 + np.exp(-x))),
        ("the bend is a tanh, not gelu_new", np.tanh),
        ("there is no bend between the two products", lambda x: x),
        ("gelu_new's sqrt(2/pi) is missing", lambda x: _gelu_new(x, inner=1.0)),
        ("gelu_new has 2/pi in place of its square root", lambda x: _gelu_new(x, inner=2 / np.pi)),
        (
            "gelu_new has 2/sqrt(pi) in place of sqrt(2/pi): the root is of both",
            lambda x: _gelu_new(x, inner=2 / np.pi**0.5),
        ),
        (
            "gelu_new's 0.044715 is written as 0.44715",
            lambda x: _gelu_new(x, cubic=0.44715),
        ),
        ("gelu_new's x^3 is an x^2", lambda x: _gelu_new(x, power=2)),
        ("gelu_new's 0.044715 x^3 is missing", lambda x: _gelu_new(x, cubic=0.0)),
        ("gelu_new's factor 1/2 is missing", lambda x: 2 * reference.gelu_new(x)),
        ("gelu_new's 1 + is missing before the tanh", lambda x: reference.gelu_new(x) - x / 2),
    ):
        yield Mistake(text, {"post": _bent_by(bend)})
    yield from left_out("b_in", "b_out")
    yield Mistake(
        "b_in is added after the bend, not before",
        {"post": lambda s: reference.gelu_new(s["pre"] - s["b_in"]) + s["b_in"]},
    )
    yield Mistake(
        "the bend comes after the second product, too",
        {"mlp_out": lambda s: reference.gelu_new(s["post"] @ s["W_out"] + s["b_out"])},
    )
    yield Mistake(
        "the input is added to the output: in a block, the block does that",
        {"mlp_out": lambda s: s["post"] @ s["W_out"] + s["b_out"] + s["normalized_resid_mid"]},
    )


def _bent_by(bend: Callable[[Array], Array]) -> Step:
    return lambda s: bend(s["pre"])


def _gelu_erf(x: Array) -> Array:
    y: Array = x / 2 * (1 + np.vectorize(math.erf, otypes=[float])(x / 2**0.5))
    return y


def _gelu_new(
    x: Array, inner: float = (2 / np.pi) ** 0.5, cubic: float = 0.044715, power: int = 3
) -> Array:
    y: Array = x / 2 * (1 + np.tanh(inner * (x + cubic * x**power)))
    return y


def unembed(s: State) -> Mistakes:
    """In making logits."""
    yield from left_out("b_U")
    yield Mistake(
        "it gives probabilities: the softmax belongs to the loss and the sampler",
        {"logits": lambda s: reference.softmax(_logits(s))},
    )
    yield Mistake(
        "it gives log-probabilities: the log-softmax belongs to the loss",
        {"logits": lambda s: np.log(reference.softmax(_logits(s)))},
    )
    yield Mistake(
        "the logits are divided by sqrt(d_model)",
        {"logits": lambda s: _logits(s) / len(s["W_U"]) ** 0.5},
    )
    yield Mistake(
        "the logits of the token after next: positions are moved on by one",
        {"normalized_resid_final": lambda s: np.roll(s["normalized_resid_final"], -1, axis=1)},
    )


def _logits(s: State) -> Array:
    return s["normalized_resid_final"] @ s["W_U"] + s["b_U"]
