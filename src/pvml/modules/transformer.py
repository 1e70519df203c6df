"""The whole model: an embedding, blocks that take turns on one stream, and an unembedding."""

from dataclasses import replace

import torch as t
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.block import TransformerBlock, norm
from pvml.modules.cache import KVCache
from pvml.modules.embedding import Embed, PosEmbed, check_length, check_tokens
from pvml.modules.stacked import Stacked
from pvml.modules.unembedding import Unembed
from pvml.trace.hooks import Hooked
from pvml.trace.printer import print_if_asked


class Transformer(Hooked, Stacked):
    """From token ids to logits, through parts that hold all the parameters."""

    def __init__(self, cfg: Config, seed: int | None = None) -> None:
        """A freshly drawn model. `seed`: reproducibly, and torch's own generator is left alone."""
        super().__init__()
        self.cfg = cfg
        self.processing: tuple[str, ...] = ()
        """Which rewritings of `pvml.processing` made these weights, in order; figures say so."""
        with t.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                t.manual_seed(seed)
            part = replace(cfg, debug=False)
            self.embed = Embed(part)
            if cfg.positions != "none":
                self.pos_embed = PosEmbed(part)
            self.blocks = nn.ModuleList(TransformerBlock(part) for _ in range(cfg.n_layers))
            self.ln_final = norm(part)
            self.unembed = Unembed(part, self.embed)
        print_if_asked(self, cfg)

    def forward(
        self,
        tokens: Int[Tensor, "batch posn"],
        attention_mask: Bool[Tensor, "batch posn"] | Int[Tensor, "batch posn"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch posn d_vocab"]:
        """Scores for the token after each position.

        `attention_mask` is 1 (True) at real tokens and 0 at padding, on any side or in between;
        positions are counted over real tokens. `cache` holds earlier positions and takes these.
        A batch of 0 or an empty sequence gives empty logits.

        Raises: PvmlError for an id outside the vocabulary, or a sequence longer than n_ctx.
        """
        return self.unembed(self.stream(tokens, attention_mask, cache))  # type: ignore[no-any-return]

    def stream(
        self,
        tokens: Int[Tensor, "batch posn"],
        attention_mask: Bool[Tensor, "batch posn"] | Int[Tensor, "batch posn"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch posn d_model"]:
        """Everything before the unembedding: what `unembed` reads."""
        check_tokens(tokens, self.cfg)
        seq_len = tokens.shape[1]
        start = cache.length if cache is not None else 0
        check_length(start + seq_len, self.cfg)
        real = check_mask(attention_mask, tokens)
        if cache is not None:
            check_cache(cache, tokens, self)
            real = cache.real_with(real, seq_len, tokens.device)

        residual = self.embed(tokens)
        positions = None
        if self.cfg.positions != "none":
            positions = self.pos_embed(tokens, start, places(real, seq_len))
        if self.cfg.positions == "standard":
            residual, positions = residual + positions, None
        for i, block in enumerate(self.blocks):
            past = cache.layers[i] if cache is not None else None
            residual = block(residual, positions, real, past)
        if cache is not None:
            cache.advance(seq_len, real)
        return self.ln_final(residual)  # type: ignore[no-any-return]

    def parameter_counts(self) -> dict[str, int]:
        """How many numbers each part holds, frozen ones included, and their `total`."""
        parts = {name: sum(p.numel() for p in m.parameters()) for name, m in self.named_children()}
        return {**parts, "total": sum(parts.values())}

    @property
    def device(self) -> t.device:
        return self.embed.W_E.device

    @property
    def dtype(self) -> t.dtype:
        return self.embed.W_E.dtype


def check_mask(
    mask: Tensor | None, tokens: Tensor, name: str = "attention_mask"
) -> Bool[Tensor, "batch posn"] | None:
    """The mask as booleans, True at real tokens. name: what messages call it.

    Raises: PvmlError for another shape than the tokens', or values other than 0 and 1.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape:
        given = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise PvmlError(
            f"{name} must be a tensor of the tokens' shape {tuple(tokens.shape)}, got {given}"
        )
    real = mask.bool()
    if not t.equal(real.to(mask.dtype), mask):
        raise PvmlError(f"{name} must hold 1 (real) and 0 (padding) only")
    return real.to(tokens.device)


def check_cache(cache: KVCache, tokens: Tensor, model: Transformer) -> None:
    """Nothing, if the cache has room for these tokens, and was made for their batch and this model.

    Raises: PvmlError that names both sizes.
    """
    sizes = ("n_layers", "n_heads", "d_head")
    made, wanted = ({size: getattr(cfg, size) for size in sizes} for cfg in (cache.cfg, model.cfg))
    if made != wanted:
        raise PvmlError(f"the cache was made for a model with {made}, and this one has {wanted}")
    for layer in cache.layers[:1]:
        for what in ("dtype", "device"):
            kept, needed = getattr(layer.keys, what), getattr(model, what)
            if kept != needed:
                raise PvmlError(
                    f"the cache's {what} is {kept} and the model's is {needed}: give "
                    f"KVCache(model.cfg, {what}=model.{what})"
                )
    if tokens.shape[0] != cache.batch:
        raise PvmlError(f"the cache was made for a batch of {cache.batch}, got {tokens.shape[0]}")
    if cache.length + tokens.shape[1] > cache.n_ctx:
        raise PvmlError(
            f"the cache has room for {cache.n_ctx} positions: {cache.length} are filled and "
            f"{tokens.shape[1]} more came"
        )


def places(
    real: Bool[Tensor, "batch posn_k"] | None, seq_len: int
) -> Int[Tensor, "batch posn"] | None:
    """Where each of the last `seq_len` tokens stands, counted over real ones; None: plain order."""
    if real is None:
        return None
    return (real.long().cumsum(1) - 1).clamp(min=0)[:, real.shape[1] - seq_len :]


if __name__ == "__main__":
    from pvml.demos.transformer import main

    main()
