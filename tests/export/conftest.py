"""A small model with a tokenizer, ready to be exported."""

from collections.abc import Callable
from typing import Any

import pytest
import torch as t

STORIES = [f"Once upon a time the {word} sat on the red mat. 🙂" for word in ("cat", "dog", "hen")]


@pytest.fixture
def make_loaded() -> Callable[..., Any]:
    """What `load` would give: a random model of GPT-2's kind, every parameter off its default."""
    from pvml.config import Config
    from pvml.data.tokenizer import Tokenizer
    from pvml.loading import Loaded
    from pvml.modules.transformer import Transformer
    from pvml.parity.check import move_off_defaults

    tokenizer = Tokenizer.train(STORIES, 280)

    def make(dtype: t.dtype = t.float32, **changes: Any) -> Loaded:
        sizes: dict[str, Any] = {"d_model": 12, "n_heads": 3, "n_layers": 2, "n_ctx": 24}
        cfg = Config(**{**sizes, "d_vocab": tokenizer.d_vocab, **changes})
        model = move_off_defaults(Transformer(cfg, seed=3), 5).to(dtype).eval()
        with t.no_grad():
            model.unembed.b_U.zero_()
        return Loaded(model, tokenizer, "small", "a model of the tests")

    return make
