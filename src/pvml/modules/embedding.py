"""Token ids become vectors: a row of W_E says which token it is, a row of W_pos where it stands."""

import torch as t
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.trace.printer import print_if_asked
from pvml.trace.tap import Tap


class Embed(nn.Module):
    """The token's own vector, looked up by its id."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.tap = Tap("embed")
        self.W_E = nn.Parameter(t.empty(cfg.d_vocab, cfg.d_model).normal_(std=cfg.init_range))
        print_if_asked(self, cfg)

    def forward(self, tokens: Int[Tensor, "batch posn"]) -> Float[Tensor, "batch posn d_model"]:
        """A row of W_E for each id.

        Raises: PvmlError for ids that are no whole numbers in (batch, posn), or not below d_vocab.
        """
        check_tokens(tokens, self.cfg)
        tokens = self.tap.at("in", tokens)
        # the kernel takes no id of 8 or 16 bits
        return self.tap.at("out", F.embedding(tokens.long(), self.W_E))


class PosEmbed(nn.Module):
    """A vector for each position, learned like a word's."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        self.tap = Tap("pos_embed")
        self.W_pos = nn.Parameter(t.empty(cfg.n_ctx, cfg.d_model).normal_(std=cfg.init_range))
        print_if_asked(self, cfg)

    def forward(
        self,
        tokens: Int[Tensor, "batch posn"],
        start: int = 0,
        places: Int[Tensor, "batch posn"] | None = None,
    ) -> Float[Tensor, "batch posn d_model"]:
        """Rows start, start+1, ... of W_pos for every sequence, or the rows that `places` names.

        Raises: PvmlError when the sequence reaches past n_ctx.
        """
        tokens = self.tap.at("in", tokens)
        batch, seq_len = tokens.shape
        check_length(start + seq_len, self.cfg)
        if places is None:
            sliced = self.tap.at("sliced", self.W_pos[start : start + seq_len])
            out = sliced.expand(batch, seq_len, -1)
        else:
            sliced = self.tap.at("sliced", self.W_pos[: start + seq_len])
            out = F.embedding(places, sliced)
        return self.tap.at("out", out)


def check_tokens(tokens: object, cfg: Config) -> None:
    """Nothing, if these are token ids of this vocabulary, in (batch, posn).

    Raises: PvmlError that names the shape or dtype, or the first id outside the vocabulary.
    """
    if not isinstance(tokens, Tensor):
        raise PvmlError(
            f"tokens must be a tensor of ids in (batch, posn), got {type(tokens).__name__}: "
            f"tokenizer.to_tokens(text) makes one"
        )
    if tokens.ndim != 2:
        raise PvmlError(
            f"tokens must have shape (batch, posn), got {tuple(tokens.shape)}"
            + (": add a batch axis with tokens[None]" if tokens.ndim == 1 else "")
        )
    if tokens.dtype not in (t.int64, t.int32, t.int16, t.uint8, t.int8):
        raise PvmlError(f"tokens must be whole numbers (torch.long), got {tokens.dtype}")
    if t.compiler.is_compiling() or tokens.numel() == 0 or tokens.device.type == "meta":
        return
    low, high = (int(extreme) for extreme in tokens.aminmax())
    if low < 0 or high >= cfg.d_vocab:
        wrong = low if low < 0 else high
        raise PvmlError(
            f"token id {wrong} is outside the vocabulary: ids run from 0 to {cfg.d_vocab - 1}"
        )


def check_length(seq_len: int, cfg: Config) -> None:
    """Nothing, if the model has room for `seq_len` positions.

    Raises: PvmlError that names the length and n_ctx.
    """
    if seq_len > cfg.n_ctx:
        raise PvmlError(
            f"{seq_len} tokens are more than this model's n_ctx of {cfg.n_ctx}: "
            f"shorten the text, or keep its last {cfg.n_ctx} tokens"
        )


if __name__ == "__main__":
    from pvml.demos.embedding import main

    main()
