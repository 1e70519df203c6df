"""What the demonstrations look at: GPT-2 where it can be had, else a random model of its shape."""

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from pvml.config import Config
from pvml.data.tokenizer import Tokenizer
from pvml.errors import HubUnavailable, PvmlError
from pvml.loading import load
from pvml.modules.transformer import Transformer
from pvml.parity.check import move_off_defaults

TEXT = "The cat sat on the mat"


@dataclass(frozen=True)
class Subject:
    """A model, its tokenizer, and a sentence for it to read."""

    model: Transformer
    tokenizer: Tokenizer
    tokens: Int[Tensor, "1 posn"]
    """The sentence, BOS first."""
    note: str
    """Which model it is, in a sentence or two."""

    @property
    def labels(self) -> list[str]:
        """A short name for each position: its token without the space, `<BOS>` for BOS."""
        strings = self.tokenizer.to_str_tokens(self.tokens[0])
        bos = self.tokenizer.bos_token_id
        return [
            "<BOS>" if token == bos else string.strip() or repr(string)[1:-1]
            for token, string in zip(self.tokens[0].tolist(), strings, strict=True)
        ]


def gpt2_or_random(n_layers: int | None = None) -> Subject:
    """GPT-2 small about to read a sentence; where it is out of reach, a seeded random twin.

    n_layers: how many of the twin's layers are drawn, where not all are looked at (default: 12).
    On the CPU, in float32.

    Raises: PvmlError if GPT-2's weights are there and are damaged.
    """
    try:
        loaded = load("gpt2", device="cpu", dtype="float32")
    except PvmlError as problem:
        extra_is_missing = isinstance(problem.__cause__, ImportError)
        if not isinstance(problem, HubUnavailable) and not extra_is_missing:
            raise
        return _random_twin(n_layers, str(problem).split(". ")[0])
    tokens = loaded.tokenizer.to_tokens(TEXT)
    return Subject(loaded.model, loaded.tokenizer, tokens, f"GPT-2's weights: {loaded.source}.")


def _random_twin(n_layers: int | None, why: str) -> Subject:
    cfg = Config() if n_layers is None else Config(n_layers=n_layers)
    model = move_off_defaults(Transformer(cfg, seed=0), seed=0).eval()
    tokenizer = Tokenizer.gpt2()
    layers = "" if n_layers is None else f" ({n_layers} of its {Config().n_layers} layers)"
    note = (
        f"{why.rstrip('.')}.\n"
        f"So this is a random model of GPT-2's shape{layers}: seed 0, every parameter moved off "
        f"its default."
    )
    return Subject(model, tokenizer, tokenizer.to_tokens(TEXT), note)
