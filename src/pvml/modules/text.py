"""Text instead of token ids, as notebooks give it to a model: `model("Once upon a time")`.

A thin layer around `Transformer.forward`, which knows nothing of text, and around the tokenizer
that `pvml.load` sets. Methods have TransformerLens's names; where they differ is in
docs/44-porting.md.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import torch as t
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pvml.config import Config
from pvml.errors import PvmlError
from pvml.modules.embedding import Embed
from pvml.modules.unembedding import log_prob_of

Returned = Literal["logits", "loss", "both"]
Side = Literal["left", "right"]
Ids = int | Int[Tensor, "*places"] | Sequence[int]


@runtime_checkable
class TextTokenizer(Protocol):
    """What a model needs of a tokenizer; `pvml.data.tokenizer.Tokenizer` is one."""

    @property
    def eos_token_id(self) -> int: ...

    def encode(
        self, text: str, prepend_bos: bool = False, allow_special: bool = False
    ) -> list[int]: ...

    def decode(self, ids: Any) -> str: ...

    def to_str_tokens(self, text_or_ids: Any, prepend_bos: bool = True) -> list[str]: ...


class Output(NamedTuple):
    """What `return_type="both"` gives."""

    logits: Float[Tensor, "batch posn d_vocab"]
    loss: Float[Tensor, "*places"]


class ReadsText(nn.Module):
    """A model that can be given text, once it has a tokenizer."""

    cfg: Config
    embed: Embed
    tokenizer: TextTokenizer | None = None
    """Set by `pvml.load`; None for a model that was made by hand, until it is set."""

    def __call__(
        self,
        *inputs: Any,
        return_type: Returned | None = "logits",
        loss_per_token: bool = False,
        prepend_bos: bool | None = None,
        **options: Any,
    ) -> Any:
        """What `forward` gives, or the loss (nats) besides or instead; None: the pass alone.

        The input may be a text or several. Those of different lengths are padded on the right and
        given with their mask: logits at padding mean nothing, and no loss counts it. prepend_bos:
        for text, True unless given. loss_per_token: as `per_token` of `loss_fn`.

        Raises: PvmlError for text without a tokenizer, or an option that would do nothing.
        """
        if return_type not in (*get_args(Returned), None):
            raise PvmlError(f"return_type must be logits, loss, both or None, got {return_type!r}")
        if loss_per_token and return_type not in ("loss", "both"):
            raise PvmlError(f"loss_per_token needs return_type loss or both, got {return_type!r}")
        if inputs and _is_text(inputs[0]):
            if len(inputs) > 1 or options.get("attention_mask") is not None:
                raise PvmlError("a text is given without attention_mask: it is made here")
            bos = True if prepend_bos is None else prepend_bos
            tokens, real = self.to_padded_tokens(inputs[0], bos)
            inputs, options = (tokens,), {**options, "attention_mask": None if real.all() else real}
        elif prepend_bos is not None:
            raise PvmlError("prepend_bos is for text: put BOS in front of token ids yourself")
        logits = super().__call__(*inputs, **options)
        if return_type not in ("loss", "both"):
            return logits if return_type else None
        given = dict(zip(("tokens", "attention_mask"), inputs, strict=False)) | options
        loss = self.loss_fn(logits, given["tokens"], given.get("attention_mask"), loss_per_token)
        return Output(logits, loss) if return_type == "both" else loss

    def loss_fn(
        self,
        logits: Float[Tensor, "batch posn d_vocab"],
        tokens: Int[Tensor, "batch posn"],
        attention_mask: Bool[Tensor, "batch posn"] | Int[Tensor, "batch posn"] | None = None,
        per_token: bool = False,
    ) -> Float[Tensor, ""] | Float[Tensor, "batch posn-1"]:
        """The mean loss (nats) of each token given those before it.

        per_token: the loss of every token but the first of its row, 0 where either it or what
        predicts it is padding.

        Raises: PvmlError for rows of fewer than 2 tokens, or a mask under which no token is graded
            where their mean is asked for.
        """
        if tokens.shape[1] < 2:
            raise PvmlError(f"a loss needs rows of at least 2 tokens, got {tuple(tokens.shape)}")
        each = -log_prob_of(logits[:, :-1], tokens[:, 1:].to(logits.device))
        if attention_mask is None:
            return each if per_token else each.mean()
        real = attention_mask.bool().to(each.device)
        graded = real[:, 1:] & real[:, :-1]
        each = each.where(graded, 0.0)
        if not per_token and not graded.any():
            raise PvmlError(
                f"a loss needs 2 real tokens in a row, and none of {len(graded)} rows has them "
                f"under this attention_mask"
            )
        return each if per_token else each.sum() / graded.sum()

    def to_tokens(
        self, text: str | Sequence[str], prepend_bos: bool = True, truncate: bool = False
    ) -> Int[Tensor, "batch posn"]:
        """The ids of a text, or of several of one length, on the model's device.

        truncate: keep the first n_ctx of them.

        Raises: PvmlError without a tokenizer, for no text, or texts of different lengths: in ids
            alone, padding could not be told from end-of-text.
        """
        rows = self._encoded(text, prepend_bos, truncate)
        lengths = sorted({len(row) for row in rows})
        if len(lengths) > 1:
            raise PvmlError(
                f"these texts have {lengths[0]} to {lengths[-1]} tokens, and ids alone do not tell "
                f"padding from text: use `tokens, attention_mask = model.to_padded_tokens(texts)`, "
                f"and give the model both"
            )
        return t.tensor(rows, dtype=t.long, device=self.embed.W_E.device).view(
            len(rows), lengths[0]
        )

    def to_padded_tokens(
        self,
        text: str | Sequence[str],
        prepend_bos: bool = True,
        padding_side: Side = "right",
        truncate: bool = False,
    ) -> tuple[Int[Tensor, "batch posn"], Bool[Tensor, "batch posn"]]:
        """The ids of texts, filled up with end-of-text, and which are real: `attention_mask`.

        On the right, padding reaches no real position even without the mask. On the left, the model
        must be given it.

        Raises: PvmlError without a tokenizer, for no text, or another side than left and right.
        """
        if padding_side not in get_args(Side):
            raise PvmlError(f"padding_side must be left or right, got {padding_side!r}")
        rows = self._encoded(text, prepend_bos, truncate)
        width = max(map(len, rows))
        tokens = t.full((len(rows), width), self._its_tokenizer.eos_token_id)
        real = t.zeros(len(rows), width, dtype=t.bool)
        for i, row in enumerate(rows):
            here = slice(width - len(row), width) if padding_side == "left" else slice(len(row))
            tokens[i, here], real[i, here] = t.tensor(row, dtype=t.long), True
        device = self.embed.W_E.device
        return tokens.to(device), real.to(device)

    def to_string(self, tokens: Ids) -> str | list[str]:
        """The text of ids; a list of texts for ids in (batch, posn)."""
        if isinstance(tokens, Tensor) and tokens.ndim == 2:
            return [self._its_tokenizer.decode(row) for row in tokens]
        return self._its_tokenizer.decode([tokens] if isinstance(tokens, int) else tokens)

    def to_str_tokens(
        self, text: str | Ids | Sequence[str], prepend_bos: bool = True
    ) -> list[str] | list[list[str]]:
        """The text of each token, BOS included; a list for each of several texts.

        prepend_bos: for text only; ids are shown as they are.

        Raises: PvmlError without a tokenizer, or for ids of several sequences.
        """
        if isinstance(text, list | tuple) and _is_text(text):
            return [self._its_tokenizer.to_str_tokens(one, prepend_bos) for one in text]
        ids = [text] if isinstance(text, int) else text
        return self._its_tokenizer.to_str_tokens(ids, prepend_bos)

    def to_single_token(self, text: str) -> int:
        """The id of a text that is one token; `<|endoftext|>` is the special one.

        Raises: PvmlError that shows the pieces of any other text.
        """
        ids = self._its_tokenizer.encode(text, allow_special=True)
        if len(ids) != 1:
            pieces = self._its_tokenizer.to_str_tokens(ids, prepend_bos=False)
            raise PvmlError(
                f"{text!r} is {len(ids)} tokens, not 1: {pieces}. A word in the middle of a text "
                f"begins with its space"
            )
        return ids[0]

    def to_single_str_token(self, token: int) -> str:
        """The text of one id."""
        return self._its_tokenizer.decode([token])

    def get_token_position(
        self,
        single_token: str | int,
        text: str | Int[Tensor, "*places"],
        mode: Literal["first", "last"] = "first",
        prepend_bos: bool = True,
    ) -> int:
        """Where a token stands, the first or the last time, counted from 0.

        prepend_bos: for text, where BOS then takes position 0.

        Raises: PvmlError if it does not stand there, or the ids are of several sequences.
        """
        if mode not in ("first", "last"):
            raise PvmlError(f"mode must be first or last, got {mode!r}")
        token = (
            self.to_single_token(single_token) if isinstance(single_token, str) else single_token
        )
        ids = self.to_tokens(text, prepend_bos) if isinstance(text, str) else text
        if ids.squeeze().ndim > 1:
            raise PvmlError(f"give the ids of one sequence, got shape {tuple(ids.shape)}")
        found = (ids.flatten() == token).nonzero().flatten().tolist()
        if not found:
            shown = self.to_str_tokens(ids, prepend_bos=False)
            raise PvmlError(f"token {token} ({single_token!r}) is not among {shown}")
        return int(found[0 if mode == "first" else -1])

    @property
    def _its_tokenizer(self) -> TextTokenizer:
        """Raises: PvmlError that says how a tokenizer is set."""
        if isinstance(self.tokenizer, TextTokenizer):
            return self.tokenizer
        has = "no" if self.tokenizer is None else f"a {type(self.tokenizer).__name__} for a"
        raise PvmlError(
            f"this model has {has} tokenizer, so it reads token ids only. pvml.load sets one; a "
            f"model made by hand is given one with model.tokenizer = Tokenizer.gpt2() (from "
            f"pvml.data.tokenizer), or whichever it was trained with"
        )

    def _encoded(
        self, text: str | Sequence[str], prepend_bos: bool, truncate: bool
    ) -> list[list[int]]:
        texts = [text] if isinstance(text, str) else list(text)
        if not texts or not _is_text(texts):
            raise PvmlError(f"expected a text or a list of texts, got {text!r:.60}")
        most = self.cfg.n_ctx if truncate else None
        return [self._its_tokenizer.encode(one, prepend_bos)[:most] for one in texts]


def _is_text(given: object) -> bool:
    """Whether this is a text, or several: not ids."""
    if isinstance(given, list | tuple):
        return bool(given) and all(isinstance(one, str) for one in given)
    return isinstance(given, str)
