"""What a cache makes of the residual stream, with TransformerLens's names and meaning.

The stream is a sum: the embeddings, and what every layer added. Here are its parts and its running
totals, stacked along a first axis, and what each part adds to a logit. A LayerNorm on the way is
linear once its standard deviation is held at what it was in the pass; it is, and its w belongs to
what it does. Its b is no part's, and neither is b_U: parts and these two add up to the logit.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch as t
from jaxtyping import Float, Int
from torch import Tensor, nn

from pvml.errors import PvmlError

Places = int | tuple[int | None, ...] | slice | Sequence[int] | Tensor | None
"""Positions to keep: one (its axis goes), (start, stop[, step]), a list or tensor, None for all."""
Components = Float[Tensor, "components ... d_model"]
Labelled = tuple[Components, list[str]]


class Stacks(Mapping[Any, Tensor]):
    """A cache of a whole model's pass, taken apart. What is read must have been kept.

    What needs the model's weights is refused once they have changed since the pass. Results are
    plain numbers, without gradients.
    """

    model: Any
    """What was run. Only a whole model has the weights that these methods need."""
    weight_writes: list[int]
    """What `writes_to` said of it at the pass."""
    has_batch_dim: bool

    def stack_head_results(
        self,
        layer: int | None = -1,
        return_labels: bool = False,
        incl_remainder: bool = False,
        pos_slice: Places = None,
        apply_ln: bool = False,
    ) -> Components | Labelled:
        """What each head of the layers below `layer` wrote to the stream; labels `L0H3`.

        layer: -1 or None means all layers. incl_remainder: last, all that else is in the stream
        there, so that the components add up to it. apply_ln: as `apply_ln_to_stack` does. Half
        types are computed in float32.

        Raises: PvmlError for a layer that is not there; KeyError if z (or the stream) was not kept.
        """
        below = self._layers_below(layer)
        each = [self.head_results(i, pos_slice) for i in range(below)]
        labels = self._model.all_head_labels()[: below * self._model.cfg.n_heads]
        if each:
            stack = t.cat(each, -2).movedim(-2, 0)
        else:
            stream = _picked(self._stream(below), pos_slice, -2)
            stack = stream.new_zeros(0, *stream.shape)
        if incl_remainder:
            rest = _picked(self._stream(below), pos_slice, -2) - stack.sum(0)
            stack, labels = t.cat([stack, rest[None]]), [*labels, "remainder"]
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, below, pos_slice=pos_slice)
        return (stack, labels) if return_labels else stack

    def accumulated_resid(
        self,
        layer: int | None = None,
        incl_mid: bool = False,
        apply_ln: bool = False,
        pos_slice: Places = None,
        mlp_input: bool = False,
        return_labels: bool = False,
    ) -> Components | Labelled:
        """The stream before each layer up to `layer`: `0_pre`, `1_pre`, ...; last `final_post`.

        incl_mid: with the stream between attention and MLP, `0_mid`, .... mlp_input: up to what
        the MLP of `layer` reads. apply_ln: as `apply_ln_to_stack` does, by the scale of `layer`
        (None: ln_final's) for every one of them.

        Raises: PvmlError for a layer or a stream that is not there; KeyError if one was not kept.
        """
        last = self._layers_below(layer)
        self._require_mid(last, incl_mid and last > 0, mlp_input)
        streams, labels = [], []
        for i in range(last + 1):
            streams.append(self._stream(i))
            labels.append(f"{i}_pre" if i < self._model.cfg.n_layers else "final_post")
            if mlp_input if i == last else incl_mid:
                streams.append(self[f"blocks.{i}.resid_mid"])
                labels.append(f"{i}_mid")
        stack = t.stack([_picked(stream, pos_slice, -2) for stream in streams])
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, last, mlp_input, pos_slice)
        return (stack, labels) if return_labels else stack

    def decompose_resid(
        self,
        layer: int | None = None,
        mlp_input: bool = False,
        mode: Literal["all", "attn", "mlp"] = "all",
        apply_ln: bool = False,
        pos_slice: Places = None,
        incl_embeds: bool = True,
        return_labels: bool = False,
    ) -> Components | Labelled:
        """What adds up to the stream that `layer` reads: embeddings, and each layer's outputs.

        Labels are `embed`, `pos_embed` (where positions are added to the stream), `0_attn_out`,
        `0_mlp_out`, .... mlp_input: what the MLP of `layer` reads. mode: only attention's outputs,
        or only the MLPs'. apply_ln: as `apply_ln_to_stack` does.

        Raises: PvmlError for a layer or mode that is not there, or no part at all; KeyError if one
            was not kept.
        """
        below = self._layers_below(layer)
        if mode not in ("all", "attn", "mlp"):
            raise PvmlError(f"mode must be all, attn or mlp, got {mode!r}")
        self._require_mid(below, False, mlp_input)
        cfg = self._model.cfg
        named = list(self._embeddings()) if incl_embeds else []
        for i in range(below + mlp_input):
            if mode != "mlp":
                named.append((f"{i}_attn_out", f"blocks.{i}.attn.attn_out"))
            if mode != "attn" and not cfg.attn_only and i < below:
                named.append((f"{i}_mlp_out", f"blocks.{i}.mlp.mlp_out"))
        if not named:
            raise PvmlError(f"nothing below layer {below} is left with mode={mode!r}")
        stack = t.stack([_picked(self[name], pos_slice, -2) for _, name in named])
        if apply_ln:
            stack = self.apply_ln_to_stack(stack, below, mlp_input, pos_slice)
        return (stack, [label for label, _ in named]) if return_labels else stack

    def apply_ln_to_stack(
        self,
        residual_stack: Components,
        layer: int | None = None,
        mlp_input: bool = False,
        pos_slice: Places = None,
    ) -> Components:
        """What each component is behind the LayerNorm that reads the stream at `layer`.

        Centred, divided by the standard deviation that the whole stream had there in this pass,
        times that LayerNorm's w. Its b is not added: it belongs to no component. layer: None or -1
        means ln_final. pos_slice: what the stack was already sliced by. Without LayerNorm the stack
        itself.

        Raises: PvmlError if the stack's axes are not those of the pass, sliced so; KeyError if
            the scale was not kept.
        """
        below = self._layers_below(layer)
        self._require_mid(below, False, mlp_input)
        if residual_stack.shape[-1] != self._model.cfg.d_model:
            raise PvmlError(
                f"a stack's last axis is d_model, {self._model.cfg.d_model}; got shape "
                f"{tuple(residual_stack.shape)}"
            )
        if self._model.cfg.normalization == "none":
            return residual_stack
        final = below == self._model.cfg.n_layers
        path = "ln_final" if final else f"blocks.{below}.ln{2 if mlp_input else 1}"
        std = _picked(self[f"{path}.residual_std"], pos_slice, -2)
        if residual_stack.shape[1:-1] != std.shape[:-1]:
            axes = ", ".join(map(str, ("components", *std.shape[:-1], "d_model")))
            raise PvmlError(
                f"the stack {tuple(residual_stack.shape)} must be ({axes}), as {path} with this "
                f"pos_slice: give the pos_slice that made the stack"
            )
        centred = residual_stack - residual_stack.mean(-1, keepdim=True)
        w: Tensor = self._weights.get_submodule(path).w.detach()
        return centred / std * w.to(std.device)

    def logit_attrs(
        self,
        residual_stack: Components,
        tokens: str | int | Int[Tensor, "*places"] | Sequence[int],
        incorrect_tokens: str | int | Int[Tensor, "*places"] | Sequence[int] | None = None,
        pos_slice: Places = None,
    ) -> Float[Tensor, "components ..."]:
        """What each component adds to the logit of a token (nats), ln_final's scale frozen.

        tokens: one for all, one for each sequence, or one for each sequence and position.
        incorrect_tokens: take the difference to their logits. For the parts of a whole stream the
        sum, plus ln_final.b through W_U and b_U, is the model's logit.

        Raises: PvmlError for tokens of another shape than the stack's, or as `apply_ln_to_stack`.
        """
        directions = self._directions(tokens).to(residual_stack.device)
        if incorrect_tokens is not None:
            others = self._directions(incorrect_tokens).to(directions.device)
            if others.shape != directions.shape:
                raise PvmlError(
                    f"tokens and incorrect_tokens must have one shape, got "
                    f"{tuple(directions.shape[:-1])} and {tuple(others.shape[:-1])}"
                )
            directions = directions - others
        scaled = self.apply_ln_to_stack(residual_stack, pos_slice=pos_slice)
        places, asked = scaled.shape[1:-1], directions.shape[:-1]
        if places[: len(asked)] != asked:
            shapes = (tuple(places[:n]) for n in range(1, len(places) + 1))
            ways = "".join(f", or tokens of shape {shape}" for shape in shapes)
            raise PvmlError(
                f"tokens of shape {tuple(asked)} do not belong to a stack of "
                f"{tuple(scaled.shape)}: give one token for all{ways}"
            )
        one_for_many = (1,) * (len(places) - len(asked))
        return (scaled * directions.view(*asked, *one_for_many, -1)).sum(-1)

    def stack_activation(
        self, activation_name: str, layer: int | None = -1, sublayer_type: str | None = None
    ) -> Float[Tensor, "layers ..."]:
        """The tensor of that short name of each layer below `layer` (-1 or None: of all layers).

        Raises: PvmlError if there is no such layer, or none below; KeyError for one not kept.
        """
        below = self._layers_below(layer)
        if not below:
            raise PvmlError(f"there is no layer below {layer} whose {activation_name!r} to stack")
        return t.stack([self[activation_name, i, sublayer_type] for i in range(below)])

    def head_results(
        self, layer: int, pos_slice: Places = None
    ) -> Float[Tensor, "*batch_and_posn n_heads d_model"]:
        """What each head of a layer wrote to the stream: z times its W_O. b_O is no head's."""
        name = f"blocks.{layer}.attn.z"
        if name not in self:
            raise KeyError(
                f"what each head wrote is computed from z, and {name!r} was not kept: let "
                f"names_filter keep hook_z, too"
            )
        z = _picked(self[name], pos_slice, -3)
        W_O: Tensor = self._weights.get_submodule(f"blocks.{layer}.attn").W_O.detach()
        wide = t.promote_types(z.dtype, t.float32)
        return t.einsum("...hd,hdm->...hm", z.to(wide), W_O.to(z.device, wide))

    @property
    def _weights(self) -> Any:
        """The model, for its weights.

        Raises: PvmlError if they have changed since the pass, or as `_model`.
        """
        model = self._model
        if writes_to(model) != self.weight_writes:
            raise PvmlError(
                "the model's weights have changed since this pass: its activations belong to the "
                "old ones. Run it again"
            )
        return model

    @property
    def _model(self) -> Any:
        """Raises: PvmlError for a cache of a part, or of nothing that is known."""
        if not hasattr(self.model, "all_head_labels"):
            raise PvmlError(
                "this cache is not of a whole model's pass, whose weights are needed here: make it "
                "with model.run_with_cache(tokens)"
            )
        return self.model

    def _layers_below(self, layer: int | None) -> int:
        n_layers: int = self._model.cfg.n_layers
        if layer is None or layer == -1:
            return n_layers
        if not 0 <= layer <= n_layers:
            raise PvmlError(
                f"layer must be 0 to {n_layers}, or -1 for what follows the last; got {layer}"
            )
        return layer

    def _require_mid(self, layer: int, incl_mid: bool, mlp_input: bool) -> None:
        cfg = self._model.cfg
        if (incl_mid or mlp_input) and cfg.attn_only:
            raise PvmlError("this model is attention-only: there is no stream before an MLP")
        if mlp_input and layer == cfg.n_layers:
            raise PvmlError(f"mlp_input is for a layer below {cfg.n_layers}: no MLP reads the last")

    def _stream(self, layer: int) -> Tensor:
        """What `layer` reads; behind the last, what ln_final reads."""
        n_layers = self._model.cfg.n_layers
        if layer < n_layers:
            return self[f"blocks.{layer}.resid_pre"]
        if n_layers:
            return self[f"blocks.{n_layers - 1}.resid_post"]
        return t.stack([self[name] for _, name in self._embeddings()]).sum(0)

    def _embeddings(self) -> list[tuple[str, str]]:
        """Labels and names of what is in the stream from the start."""
        placed = [("pos_embed", "pos_embed.out")]
        standard = self._model.cfg.positions == "standard"
        return [("embed", "embed.out"), *(placed if standard else [])]

    def _directions(self, tokens: Any) -> Tensor:
        if isinstance(tokens, str):
            tokens = self._model.to_single_token(tokens)
        directions: Tensor = self._weights.tokens_to_residual_directions(tokens)
        return directions.detach()


def writes_to(model: Any) -> list[int]:
    """How often each parameter was written into; nothing for what is no model."""
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    return [weight._version for weight in parameters if not weight.is_inference()]


def _picked(x: Tensor, places: Places, axis: int) -> Tensor:
    """The tensor at some places along an axis, which goes where it is one place.

    Raises: PvmlError for a place that is not there.
    """
    if places is None:
        return x
    at: Any = slice(*places) if isinstance(places, tuple) else places
    if not isinstance(at, int | slice):
        at = t.as_tensor(at, device=x.device)
    try:
        return x[(..., at, *[slice(None)] * (-axis - 1))]
    except IndexError as error:
        raise PvmlError(
            f"pos_slice {places!r} does not fit {x.shape[axis]} positions: {error}"
        ) from error
