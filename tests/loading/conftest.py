"""Models in the forms that are loaded. pvml is imported late: the shape hook must see it first."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SIZES = {"n_layer": 2, "n_head": 3, "n_embd": 12, "block_size": 17}


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level vocabulary of 260 entries."""
    from pvml.data.tokenizer import Tokenizer

    return Tokenizer.train(["the cat sat on the mat"], 260)


@pytest.fixture
def ids() -> Any:
    """A batch of two sequences of 13 ids under 260."""
    import torch as t

    return t.randint(0, 260, (2, 13), generator=t.Generator().manual_seed(5))


@pytest.fixture
def nano_gpt() -> Callable[..., Any]:
    """A random nanoGPT in float64, every parameter off its default: plain torch, by its names.

    Its `ckpt()` is what nanoGPT's train.py saves.
    """
    import torch as t
    import torch.nn.functional as F
    from torch import nn

    class LayerNorm(nn.Module):
        def __init__(self, n: int, bias: bool) -> None:
            super().__init__()
            self.weight = nn.Parameter(t.ones(n))
            self.bias = nn.Parameter(t.zeros(n)) if bias else None

        def forward(self, x: Any) -> Any:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)

    class Attention(nn.Module):
        def __init__(self, n: int, heads: int, bias: bool) -> None:
            super().__init__()
            self.heads = heads
            self.c_attn = nn.Linear(n, 3 * n, bias=bias)
            self.c_proj = nn.Linear(n, n, bias=bias)

        def forward(self, x: Any) -> Any:
            batch, posn, n = x.shape
            parts = self.c_attn(x).split(n, dim=2)
            q, k, v = (y.view(batch, posn, self.heads, -1).transpose(1, 2) for y in parts)
            scores = q @ k.transpose(2, 3) / (n // self.heads) ** 0.5
            hidden = t.ones(posn, posn, dtype=t.bool).triu(1)
            z = scores.masked_fill(hidden, -t.inf).softmax(-1) @ v
            return self.c_proj(z.transpose(1, 2).reshape(batch, posn, n))

    class MLP(nn.Module):
        def __init__(self, n: int, bias: bool, form: str) -> None:
            super().__init__()
            self.c_fc = nn.Linear(n, 4 * n, bias=bias)
            self.c_proj = nn.Linear(4 * n, n, bias=bias)
            self.form = form

        def forward(self, x: Any) -> Any:
            return self.c_proj(F.gelu(self.c_fc(x), approximate=self.form))

    class Block(nn.Module):
        def __init__(self, n: int, heads: int, bias: bool, form: str) -> None:
            super().__init__()
            self.ln_1, self.attn = LayerNorm(n, bias), Attention(n, heads, bias)
            self.ln_2, self.mlp = LayerNorm(n, bias), MLP(n, bias, form)

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self, vocab_size: int, bias: bool, form: str) -> None:
            super().__init__()
            n = SIZES["n_embd"]
            self.args = {**SIZES, "bias": bias, "vocab_size": vocab_size, "dropout": 0.0}
            blocks = [Block(n, SIZES["n_head"], bias, form) for _ in range(SIZES["n_layer"])]
            parts: dict[str, Any] = {
                "wte": nn.Embedding(vocab_size, n),
                "wpe": nn.Embedding(SIZES["block_size"], n),
                "h": nn.ModuleList(blocks),
                "ln_f": LayerNorm(n, bias),
            }
            self.transformer = nn.ModuleDict(parts)
            self.lm_head = nn.Linear(n, vocab_size, bias=False)
            self.lm_head.weight = self.transformer.wte.weight

        def forward(self, tokens: Any) -> Any:
            parts = self.transformer
            x = parts.wte(tokens) + parts.wpe(t.arange(tokens.shape[1]))
            for block in parts.h:
                x = block(x)
            return self.lm_head(parts.ln_f(x))

        def ckpt(self, **others: Any) -> dict[str, Any]:
            return {
                "model": self.state_dict(),
                "optimizer": {"state": {}, "param_groups": [{"lr": 6e-4, "params": [0, 1]}]},
                "model_args": self.args,
                "iter_num": 7,
                "best_val_loss": t.tensor(2.5),
                "config": {"init_from": "scratch", "out_dir": "out"},
                **others,
            }

    def make(vocab_size: int = 260, *, bias: bool = True, form: str = "tanh") -> GPT:
        model = GPT(vocab_size, bias, form).double().eval()
        draw = t.Generator().manual_seed(3)
        with t.no_grad():
            for x in model.parameters():
                x.copy_(t.empty(x.shape, dtype=t.float64).normal_(std=0.4, generator=draw))
        return model

    return make


@pytest.fixture
def nano_folder(tmp_path: Path, nano_gpt: Any, tokenizer: Any) -> Path:
    """A folder as nanoGPT's train.py leaves it, with a tokenizer."""
    import torch as t

    folder = tmp_path / "out"
    folder.mkdir()
    t.save(nano_gpt().ckpt(), folder / "ckpt.pt")
    tokenizer.save(folder / "tokenizer.json")
    return folder
