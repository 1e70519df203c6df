"""Direct logit attribution: a logit as the sum of what each part of the model wrote for it.

Each head, each MLP and the embeddings write to one stream, which ln_final and W_U read. With
ln_final's standard deviation frozen that reading is linear, so the parts' shares add up to the
logit. What a part does to later parts is theirs: `pvml.circuits.expand` follows it. Source: Wang et
al. 2022, arXiv:2211.00593, section 3.1 and appendix; Elhage et al. 2021 for the sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch as t
from jaxtyping import Float, Int
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from pvml.circuits.held import constants, require_position, require_sum, wide
from pvml.errors import PvmlError
from pvml.modules.embedding import check_tokens
from pvml.modules.transformer import Transformer
from pvml.trace.capture import ActivationCache

Answers = int | Int[Tensor, " batch"] | Sequence[int]
"""A token id for all rows, or one for each."""
_KEPT = ("embed.out", "attn.z", "mlp.mlp_out", "ln_final.residual_std")


@dataclass(frozen=True)
class Part:
    """Something that writes to the stream, or a constant."""

    name: str
    """token, position, head 0.3 (layer.head, from 0), b_O 0, mlp 0 (b_out included), ln_final.b or
    b_U.
    """
    kind: Literal["direct", "head", "mlp", "bias"]
    layer: int | None = None
    """Counted from 0; None where a part belongs to no layer."""
    head: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribution:
    """The logits of some answers, and what each part adds to them."""

    parts: tuple[Part, ...]
    values: Float[Tensor, "n_parts batch"]
    """What each part adds to each row's logit (nats); they add up to `logits`."""
    answers: Int[Tensor, " batch"]
    minus: Int[Tensor, " batch"] | None
    """Where given, everything is a difference to this token's logit."""
    logits: Float[Tensor, " batch"]
    """The model's own (nats), or their differences."""
    position: int
    """Where the prediction is made, counted from 0."""
    error: float
    """max|sum - logits| over the largest part or logit, checked: a sum may cancel."""
    frozen: tuple[str, ...]
    """What was held at the value it had in the pass."""
    processing: tuple[str, ...] = ()
    """How the model's weights were rewritten, as its own `processing` says."""

    def __getitem__(self, name: str) -> Float[Tensor, " batch"]:
        """What the part of that name adds to each row's logit (nats).

        Raises: PvmlError for any other name; it lists them.
        """
        names = [part.name for part in self.parts]
        if name not in names:
            raise PvmlError(f"there is no part {name!r}: this model has {', '.join(names)}")
        return self.values[names.index(name)]

    @property
    def heads(self) -> Float[Tensor, "n_layers n_heads batch"]:
        """What each head adds (nats)."""
        which = [i for i, part in enumerate(self.parts) if part.kind == "head"]
        n_layers = len({self.parts[i].layer for i in which})
        n_heads = len(which) // n_layers if which else 0
        return self.values[which].view(n_layers, n_heads, self.values.shape[1])

    def largest(self, n: int | None = None) -> list[tuple[Part, float]]:
        """The n parts (all, unless given) that add most on average over rows, either way (nats)."""
        means = self.values.mean(1).tolist()
        pairs = sorted(zip(self.parts, means, strict=True), key=lambda pair: -abs(pair[1]))
        return pairs[:n]

    def check(self) -> str:
        """How well the parts add up, as a sentence."""
        return (
            f"{len(self.parts):,} parts add up to the model's own logits: off by at most "
            f"{self.error:.1e} of the largest part"
        )

    def table(self, n: int | None = None, texts: Sequence[str] | None = None) -> Table:
        """`largest` as a table, with the sum of all and the model's own logit at its foot.

        Over several rows: means and standard deviations. texts: what each id of the vocabulary
        stands for (default: show ids).
        """
        rows = self.values.shape[1]
        heading = f"adds to the logit of {self.asked(texts)}"
        table = Table("part", escape(heading), *(["std over rows"] if rows > 1 else []))
        for column in table.columns[1:]:
            column.justify = "right"
        spreads = dict(zip(self.parts, self.values.std(1, correction=0).tolist(), strict=True))
        kept = self.largest(n)
        for part, value in kept:
            table.add_row(part.name, f"{value:+.4f}", *self._spread(spreads[part]))
        if others := self.largest()[len(kept) :]:
            table.add_row(f"{len(others):,} others", f"{sum(value for _, value in others):+.4f}")
        table.add_section()
        for name, whole in (("sum", self.values.sum(0)), ("the model's own", self.logits)):
            spread = self._spread(float(whole.std(correction=0)))
            table.add_row(name, f"{float(whole.mean()):+.4f}", *spread)
        return table

    def asked(self, texts: Sequence[str] | None = None) -> str:
        """Whose logit this is, in words."""

        def named(ids: Tensor) -> str:
            different = sorted(set(ids.tolist()))
            if len(different) > 1:
                return "each row's answer" if ids is self.answers else "its alternative"
            return repr(texts[different[0]]) if texts else f"token {different[0]}"

        return " minus ".join(named(ids) for ids in (self.answers, self.minus) if ids is not None)

    def _spread(self, value: float) -> list[str]:
        return [f"{value:.4f}"] if self.values.shape[1] > 1 else []


@t.no_grad()
def attribute(
    model: Transformer,
    tokens: Int[Tensor, "batch posn"],
    answers: Answers | None = None,
    minus: Answers | None = None,
    position: int = -1,
) -> Attribution:
    """What each part of the model adds to the logit of each row's answer, checked.

    answers: None means each row's likeliest token. minus: take the difference of the answer's
    logit and this token's. position: counted from 0, or from the end if negative.

    Raises: PvmlError for no rows, a position that is not there, an id outside the vocabulary, or
        another number of answers than rows; CheckFailed if the parts do not add up.
    """
    check_tokens(tokens, model.cfg)
    if not tokens.numel():
        raise PvmlError(f"attribution needs a row with a token, got {tuple(tokens.shape)}")
    here = require_position(position, tokens.shape[1])
    read = tokens[:, : here + 1]  # nothing behind a position reaches it
    whole, cache = model.run_with_cache(read, names_filter=lambda name: name.endswith(_KEPT))
    logits = wide(whole[:, -1])
    chosen = logits.argmax(-1) if answers is None else answers
    asked = _ids(chosen, model, len(tokens), "answers")
    others = None if minus is None else _ids(minus, model, len(tokens), "minus")

    written, parts = _written(cache, model)
    values = cache.logit_attrs(written, asked, others, pos_slice=-1)
    fixed = dict(constants(model))
    values = t.cat([values, t.stack([_at(vector, asked, others) for vector in fixed.values()])])
    parts += [Part(name, "bias") for name in fixed]
    own = _at_rows(logits, asked, others)
    largest = float(t.cat([values, own[None]]).abs().max()) or 1.0
    error = float((values.sum(0) - own).abs().max()) / largest
    require_sum(error, model.dtype, "the logits")
    scale = ("ln_final's standard deviation",) if model.cfg.normalization == "LN" else ()
    return Attribution(
        parts=tuple(parts),
        values=values,
        answers=asked,
        minus=others,
        logits=own,
        position=here,
        error=error,
        frozen=scale,
        processing=model.processing,
    )


def _written(
    cache: ActivationCache, model: Transformer
) -> tuple[Float[Tensor, "n_parts batch d_model"], list[Part]]:
    """What each part wrote to the stream at the last position."""
    cfg = model.cfg
    names = {"embed": Part("token", "direct"), "pos_embed": Part("position", "direct")}
    names |= {f"{i}_mlp_out": Part(f"mlp {i}", "mlp", i) for i in range(cfg.n_layers)}
    outside = cache.decompose_resid(mode="mlp", pos_slice=-1, return_labels=True)
    embeds_and_mlps, labels = cast(tuple[Tensor, list[str]], outside)
    heads = cast(Tensor, cache.stack_head_results(pos_slice=-1))
    biases = model.b_O.detach()[:, None].expand(-1, heads.shape[1], -1)
    every = range(cfg.n_layers)
    parts = [names[label] for label in labels]
    parts += [Part(f"head {i}.{h}", "head", i, h) for i in every for h in range(cfg.n_heads)]
    parts += [Part(f"b_O {i}", "bias", i) for i in every]
    return t.cat([wide(x) for x in (embeds_and_mlps, heads, biases)]), parts


def _ids(given: object, model: Transformer, rows: int, name: str) -> Int[Tensor, " batch"]:
    try:
        ids = t.as_tensor(given, device=model.device)
    except (TypeError, ValueError, RuntimeError) as error:  # a text, or what is no number
        raise PvmlError(f"{name} must be token ids, got {given!r:.60}") from error
    if ids.shape not in ((), (rows,)):
        raise PvmlError(
            f"{name} must be a token id, or one for each of {rows} rows, got {given!r:.60}"
        )
    model.tokens_to_residual_directions(ids)  # refuses what is no id
    return ids.long().expand(rows)


def _at(
    vector: Float[Tensor, " d_vocab"],
    answers: Int[Tensor, " batch"],
    minus: Int[Tensor, " batch"] | None,
) -> Float[Tensor, " batch"]:
    return vector[answers] if minus is None else vector[answers] - vector[minus]


def _at_rows(
    logits: Float[Tensor, "batch d_vocab"],
    answers: Int[Tensor, " batch"],
    minus: Int[Tensor, " batch"] | None,
) -> Float[Tensor, " batch"]:
    rows = range(len(logits))
    own = logits[rows, answers]
    return own if minus is None else own - logits[rows, minus]
