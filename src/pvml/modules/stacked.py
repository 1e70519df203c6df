"""All layers' weights as one tensor each, by TransformerLens's names: `model.W_Q[layer, head]`.

What a model has once (W_E, W_pos, W_U, b_U) is the parameter itself. What each layer has is stacked
anew whenever it is asked for: a copy, through which gradients flow, and which refuses writes.
"""

from collections.abc import Sequence

import torch as t
from jaxtyping import Float, Int
from torch import Tensor, nn

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.embedding import Embed, PosEmbed
from pvml.modules.read_only import read_only
from pvml.modules.text import ReadsText
from pvml.modules.unembedding import Unembed
from pvml.trace.points import PARAMETERS

AttnIn = Float[Tensor, "n_layers n_heads d_model d_head"]
AttnBias = Float[Tensor, "n_layers n_heads d_head"]


class Stacked(ReadsText):
    """A whole model whose weights can be asked for by name, all layers together."""

    cfg: Config
    embed: Embed
    pos_embed: PosEmbed
    blocks: nn.ModuleList
    unembed: Unembed

    @property
    def W_Q(self) -> AttnIn:
        return self._stack("attn", "W_Q")

    @property
    def W_K(self) -> AttnIn:
        return self._stack("attn", "W_K")

    @property
    def W_V(self) -> AttnIn:
        return self._stack("attn", "W_V")

    @property
    def W_O(self) -> Float[Tensor, "n_layers n_heads d_head d_model"]:
        return self._stack("attn", "W_O")

    @property
    def b_Q(self) -> AttnBias:
        return self._stack("attn", "b_Q")

    @property
    def b_K(self) -> AttnBias:
        return self._stack("attn", "b_K")

    @property
    def b_V(self) -> AttnBias:
        return self._stack("attn", "b_V")

    @property
    def b_O(self) -> Float[Tensor, "n_layers d_model"]:
        return self._stack("attn", "b_O")

    @property
    def W_in(self) -> Float[Tensor, "n_layers d_model d_mlp"]:
        return self._stack("mlp", "W_in")

    @property
    def b_in(self) -> Float[Tensor, "n_layers d_mlp"]:
        return self._stack("mlp", "b_in")

    @property
    def W_out(self) -> Float[Tensor, "n_layers d_mlp d_model"]:
        return self._stack("mlp", "W_out")

    @property
    def b_out(self) -> Float[Tensor, "n_layers d_model"]:
        return self._stack("mlp", "b_out")

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        return self.embed.W_E

    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"]:
        """Raises: PvmlError in a model without positions."""
        if self.cfg.positions == "none":
            raise PvmlError("this model has no W_pos: its Config says positions='none'")
        return self.pos_embed.W_pos

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        """With tied embeddings, W_E transposed: a write there reaches both."""
        table: Tensor = self.unembed.W_U
        return table

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"]:
        return self.unembed.b_U

    def tokens_to_residual_directions(
        self, tokens: int | str | Int[Tensor, "*places"] | Sequence[int]
    ) -> Float[Tensor, "*places d_model"]:
        """The column of W_U for each id: what the stream is multiplied by for its logit.

        A text is that of a single token. ln_final's w is not in it, unless it was folded into W_U.

        Raises: PvmlError for an id outside the vocabulary, or a text that is no single token.
        """
        if isinstance(tokens, str):
            tokens = self.to_single_token(tokens)
        ids = t.as_tensor(tokens, device=self.unembed.b_U.device)
        if ids.is_floating_point() or ids.dtype == t.bool:
            raise PvmlError(f"token ids are whole numbers, got {ids.dtype}")
        d_vocab = self.cfg.d_vocab
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < d_vocab:
            raise PvmlError(
                f"token ids run from 0 to {d_vocab - 1}, got {int(ids.min())} to {int(ids.max())}"
            )
        return self.W_U.T[ids.long()]

    def all_head_labels(self) -> list[str]:
        """Every head as `L0H3`, layer by layer: the order of `stack_head_results`."""
        cfg = self.cfg
        return [f"L{layer}H{head}" for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]

    def _stack(self, part: str, name: str) -> Tensor:
        """Raises: PvmlError in a model that has no such part."""
        if part == "mlp" and self.cfg.attn_only:
            raise PvmlError(f"this model is attention-only: it has no MLPs, and no {name}")
        each: list[Tensor] = [
            block.get_submodule(part).get_parameter(name) for block in self.blocks
        ]
        if not each:
            axes = PARAMETERS[part][name][0].split()
            return self.embed.W_E.new_zeros(0, *(getattr(self.cfg, axis) for axis in axes))
        # a tensor made in inference mode counts no writes, so that none could be refused
        with t.inference_mode(False), t.set_grad_enabled(t.is_grad_enabled()):
            stacked = t.stack(each)
        return read_only(
            stacked,
            f"model.{name} is a copy of all layers' {name}, stacked: a write would not reach the "
            f"model. Write into model.blocks[layer].{part}.{name} under torch.no_grad(), or take "
            f"model.{name}.clone() for a tensor of your own",
        )
