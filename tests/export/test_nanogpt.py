"""The nanoGPT form, held against nanoGPT's architecture written down once more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch as t
from torch import Tensor, nn

from pvml.errors import CheckFailed
from pvml.export.exporting import export_model
from pvml.export.nanogpt import read
from pvml.loading import load
from pvml.runs.weights import read_pickle


class Attention(nn.Module):
    """One joint projection, split into q, k and v, then into heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.c_attn(x).split(width, dim=2)
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).permute(0, 2, 1, 3) for part in (q, k, v))
        scores = q @ k.mT / (width // self.heads) ** 0.5
        future = t.ones(length, length, dtype=t.bool).triu(1)
        mixed = scores.masked_fill(future, -t.inf).softmax(-1) @ v
        return self.c_proj(mixed.permute(0, 2, 1, 3).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and an MLP, each behind a LayerNorm; `gelu` is "none" for erf, or "tanh"."""

    def __init__(self, width: int, heads: int, gelu: str) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)}
        )
        self.gelu = nn.GELU(gelu)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](self.gelu(self.mlp["c_fc"](self.ln_2(x))))


class GPT(nn.Module):
    """nanoGPT's model, from its model_args."""

    def __init__(self, args: dict[str, Any], gelu: str = "none") -> None:
        super().__init__()
        width = args["n_embd"]
        blocks = [Block(width, args["n_head"], gelu) for _ in range(args["n_layer"])]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(args["vocab_size"], width),
                "wpe": nn.Embedding(args["block_size"], width),
                "h": nn.ModuleList(blocks),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, args["vocab_size"], bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, ids: Tensor) -> Tensor:
        body = self.transformer
        x = body["wte"](ids) + body["wpe"](t.arange(ids.shape[1]))
        for block in body["h"]:
            x = block(x)
        return self.lm_head(body["ln_f"](x))


def opened(folder: Path, gelu: str) -> GPT:
    """The checkpoint in a model of that architecture, loaded strictly, in float64."""
    checkpoint: Any = read_pickle(folder / "ckpt.pt")
    model = GPT(checkpoint["model_args"], gelu).double()
    model.load_state_dict(checkpoint["model"])
    return model


@pytest.fixture
def ids() -> Tensor:
    return t.randint(280, (3, 17), generator=t.Generator().manual_seed(0)) % 270


def test_its_architecture_loads_it_and_computes_the_same(
    make_loaded: Callable[..., Any], tmp_path: Path, ids: Tensor
) -> None:
    """Strictly loaded; with GPT-2's GELU our logits to 1e-12, and our reading of both GELUs."""
    loaded = make_loaded(tie_embeddings=True)
    export_model(loaded, "nanogpt", tmp_path / "there")
    ours = loaded.model.double()(ids)
    scale = ours.abs().max()
    readings = read(tmp_path / "there", t.float64)
    for gelu, reading in zip(("tanh", "none"), readings, strict=True):
        theirs = opened(tmp_path / "there", gelu)(ids)
        assert ((reading.logits(ids) - theirs).abs().max() / scale) < 1e-12
        off = (theirs - ours).abs().max() / scale
        assert off < 1e-12 if gelu == "tanh" else 1e-6 < off < 1e-2


def test_the_certificate_tells_what_erf_changes(
    make_loaded: Callable[..., Any], tmp_path: Path
) -> None:
    """nanoGPT's own GELU is measured and not judged; GPT-2's is judged, in float64."""
    certificate = export_model(make_loaded(tie_embeddings=True), "nanogpt", tmp_path / "there")
    rows = {(row.dtype, "erf" in row.read_as): row for row in certificate.comparisons}
    assert rows["float64", True].relative > 1e-6 > rows["float64", False].relative
    assert [row.allowed for row in rows.values()] == [None, None, 1e-12, None]
    assert certificate.passed and certificate.same_ids is None


def test_a_padded_vocabulary_is_told_by_its_ids(
    make_loaded: Callable[..., Any], tmp_path: Path, ids: Tensor
) -> None:
    """Filled up to a multiple of 64: the real logits are the same, the others are 0."""
    loaded = make_loaded(tie_embeddings=True)
    d_vocab = loaded.model.cfg.d_vocab
    with t.no_grad():  # a model whose likeliest token is a real one everywhere
        loaded.model.ln_final.b.copy_(40 * loaded.model.embed.W_E[5])
    export_model(loaded, "nanogpt", tmp_path / "there", pad_vocab=True)
    theirs = opened(tmp_path / "there", "tanh")(ids)
    assert theirs.shape[-1] % 64 == 0 and theirs.shape[-1] > d_vocab
    assert not theirs[..., d_vocab:].any()
    ours = loaded.model.double()(ids)
    assert t.allclose(theirs[..., :d_vocab], ours, rtol=0, atol=1e-10)


def test_a_padding_that_would_be_written_is_refused(
    make_loaded: Callable[..., Any], tmp_path: Path
) -> None:
    """With every real logit below the padding's 0, nanoGPT would write ids that mean nothing."""
    loaded = make_loaded(tie_embeddings=True)
    with t.no_grad():
        loaded.model.embed.W_E.abs_()
        loaded.model.ln_final.w.zero_()
        loaded.model.ln_final.b.fill_(-1)
    with pytest.raises(CheckFailed, match="the likeliest at 24 of 24 positions"):
        export_model(loaded, "nanogpt", tmp_path / "there", pad_vocab=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pad_vocab", [False, True])
def test_it_comes_in_again(
    make_loaded: Callable[..., Any], tmp_path: Path, pad_vocab: bool
) -> None:
    """What was written is read by `load`, number for number."""
    loaded = make_loaded(tie_embeddings=True)
    with t.no_grad():
        loaded.model.ln_final.b.copy_(40 * loaded.model.embed.W_E[5])
    export_model(loaded, "nanogpt", tmp_path / "there", pad_vocab=pad_vocab)
    back = load(tmp_path / "there" / "ckpt.pt", "cpu").model
    n = loaded.model.cfg.d_vocab
    assert t.equal(back.embed.W_E[:n], loaded.model.embed.W_E)
    for name, x in loaded.model.state_dict().items():
        if name.startswith("blocks."):
            assert t.equal(back.state_dict()[name], x), name
