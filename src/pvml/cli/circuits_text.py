"""`pvml circuits MODEL paths | scores | attention TEXT`: one text, taken apart."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from pvml.cli.circuits_output import (
    print_json,
    require_picture,
    say,
    say_drawn,
    told,
    waiting,
    width,
)
from pvml.cli.circuits_subject import CommonFlags, HeadWords, Subject, written
from pvml.errors import PvmlError

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from pvml.circuits.held import Head
    from pvml.plots.routes import Sum

_ONLY_DIFFERENCES = (
    "What is added to every token's logit alike changes no probability, and it is in these terms: "
    "only differences of two logits mean something. --minus TOKEN takes one."
)
_TEXT = tyro.conf.arg(metavar="TEXT")


@dataclass(frozen=True, kw_only=True)
class PathsFlags(CommonFlags):
    """Take a prediction apart into all paths: how many there are, what each adds, and the sum.

    Attention patterns and LayerNorms' scales are frozen at what they are for this text, and so is
    what MLPs add: then the logits are exactly this sum, which is checked.
    """

    text: Annotated[tyro.conf.Positional[str], _TEXT]
    """The text to read. BOS is put in front of it."""
    position: int = -1
    """Where the prediction is made: from 0, which is BOS, or from the end if negative."""
    token: str | None = None
    """The next token in question. Unset: the model's first choice."""
    minus: str | None = None
    """Take the difference of the two tokens' logits instead."""
    least: float = 0.01
    """Paths that add less (nats, either way) are added up as the rest."""
    top: int = 20
    """How many terms get a bar of their own."""
    most_paths: int | None = None
    """Give up above so many paths. Unset: 200,000."""
    plot: Path | None = None
    """A picture (.png or .svg) of the bars."""


@dataclass(frozen=True, kw_only=True)
class ScoresFlags(CommonFlags):
    """Take an attention score apart: what the query came by, times what the key came by."""

    text: Annotated[tyro.conf.Positional[str], _TEXT]
    """The text to read. BOS is put in front of it."""
    head: str
    """Whose score: layer.head, such as 1.4."""
    query: int = -1
    """The position that reads: from 0, which is BOS, or from the end if negative."""
    key: int | None = None
    """The position that is read. Unset: the one that the head reads most there."""
    top: int = 20
    """How many pairs get a bar of their own."""
    most_paths: int | None = None
    """Give up above so many pairs of paths. Unset: 200,000."""
    plot: Path | None = None
    """A picture (.png or .svg) of the bars."""


@dataclass(frozen=True, kw_only=True)
class AttentionFlags(CommonFlags):
    """Show where heads look in a text: a row for each reader, a column for what it reads."""

    text: Annotated[tyro.conf.Positional[str], _TEXT]
    """The text to read. BOS is put in front of it."""
    layer: int | None = None
    """Only the heads of this layer, counted from 0."""
    head: HeadWords = ()
    """Only these heads: layer.head, such as 1.4."""
    plot: Path | None = None
    """A picture (.png or .svg) of the patterns."""


def paths(word: str, flags: PathsFlags) -> int:
    """Print the paths of a prediction; the exit code."""
    from pvml.circuits.held import require_position
    from pvml.circuits.paths.logit_paths import MOST_PATHS, count_paths, expand
    from pvml.plots.routes import logit_sum

    _require_terms(flags.top, flags.least, flags.most_paths)
    require_picture(flags.plot)
    subject = Subject(word, flags.device)
    tokens = subject.sequence(flags.text)
    token, minus = (
        None if text is None else subject.token(text, flag)
        for text, flag in ((flags.token, "--token"), (flags.minus, "--minus"))
    )
    position = require_position(flags.position, tokens.shape[1])
    n_paths = count_paths(subject.model.cfg)
    if not flags.json:
        say(subject.title)
        say(_tokens(subject, tokens))
        say(f"{n_paths:,} paths lead to the prediction at position {position}\n")
    most = MOST_PATHS if flags.most_paths is None else flags.most_paths
    with waiting(f"expanding {n_paths:,} paths"):
        whole = expand(subject.model, tokens, position, most_paths=most, quiet=True)
    chosen = token is None
    first = int(whole.logits.argmax())
    token = first if token is None else token
    kept = whole.pruned(flags.least, token, minus)
    made = logit_sum(kept, token, minus, texts=subject.texts, most=flags.top)
    _draw(made, flags.plot)
    if flags.json:
        found = {
            **subject.told("paths"),
            **_text_json(subject, flags.text, tokens),
            "position": position,
            "token": subject.texts[token],
            "token_id": token,
            "minus": None if minus is None else subject.texts[minus],
            "minus_id": minus,
            "n_paths": n_paths,
            "n_pruned": kept.n_pruned,
            "terms": [
                {"name": name, "nats": value, "heads": [written(h) for h in kept[name].heads]}
                for name, value in kept.values(token, minus)
            ],
            "by_order": whole.by_order(token, minus),
            "total": made.total,
            "logit": made.own,
            "error": whole.error,
            "frozen": list(whole.frozen),
            "pictures": [str(flags.plot)] if flags.plot else [],
        }
        print_json(found)
        return 0
    if chosen:
        share = float(whole.logits.softmax(-1)[token])
        say(f"the model's first choice is {subject.texts[token]!r}, with {share:.1%}\n")
    say(sum_of(made))
    say(told(_orders(whole.by_order(token, minus))))
    if minus is None:
        say(told(_ONLY_DIFFERENCES))
    if flags.plot:
        say_drawn(flags.plot)
    return 0


def scores(word: str, flags: ScoresFlags) -> int:
    """Print the pairs of paths of an attention score; the exit code."""
    from pvml.circuits.held import require_position
    from pvml.circuits.paths.logit_paths import MOST_PATHS, count_paths
    from pvml.circuits.paths.score_paths import expand_score
    from pvml.plots.routes import score_sum

    _require_terms(flags.top, most_paths=flags.most_paths)
    require_picture(flags.plot)
    subject = Subject(word, flags.device)
    tokens, head = subject.sequence(flags.text), subject.head(flags.head)
    query = require_position(flags.query, tokens.shape[1])
    shares = _patterns(subject, tokens, [head])[head][query]
    key = int(shares.argmax()) if flags.key is None else flags.key
    key = require_position(key, tokens.shape[1])
    n_paths = count_paths(subject.model.cfg, head[0])
    if not flags.json:
        say(subject.title)
        say(_tokens(subject, tokens))
        say(f"{n_paths:,} paths lead to the query, and as many to the key: {n_paths**2:,} pairs\n")
    most = MOST_PATHS if flags.most_paths is None else flags.most_paths
    with waiting(f"expanding {n_paths**2:,} pairs"):
        found = expand_score(subject.model, tokens, head, query, key, most_paths=most, quiet=True)
    made = score_sum(found, most=flags.top)
    _draw(made, flags.plot)
    if flags.json:
        pairs = found.largest(flags.top)
        print_json(
            {
                **subject.told("scores"),
                **_text_json(subject, flags.text, tokens),
                "head": written(head),
                "query": query,
                "key": key,
                "attention": float(shares[key]),
                "n_pairs": found.values.numel(),
                "pairs": [{"query": q, "key": k, "adds": value} for q, k, value in pairs],
                "total": found.total,
                "score": found.score,
                "scale": found.scale,
                "error": found.error,
                "frozen": list(found.frozen),
                "pictures": [str(flags.plot)] if flags.plot else [],
            }
        )
        return 0
    texts = subject.tokenizer.to_str_tokens(tokens[0])
    most_read = ", which is what it reads most," if flags.key is None else ""
    say(
        told(
            f"{written(head)} reads {texts[key]!r} at {key}{most_read} from {texts[query]!r} at "
            f"{query}: {float(shares[key]):.1%} of its attention"
        )
    )
    say()
    say(sum_of(made))
    if flags.plot:
        say_drawn(flags.plot)
    return 0


def attention(word: str, flags: AttentionFlags) -> int:
    """Print attention patterns; the exit code."""
    from pvml.circuits.ablation import all_heads
    from pvml.plots.attention import attention_grids, attention_text

    require_picture(flags.plot)
    subject = Subject(word, flags.device)
    subject.require_layers("attention")
    n_layers = subject.model.cfg.n_layers
    if flags.layer is not None and not 0 <= flags.layer < n_layers:
        raise PvmlError(f"there is no layer {flags.layer}: this model has 0 to {n_layers - 1}")
    chosen = subject.heads(flags.head)
    if flags.layer is not None:
        chosen += [head for head in all_heads(subject.model) if head[0] == flags.layer]
    chosen = sorted(set(chosen or all_heads(subject.model)))
    tokens = subject.sequence(flags.text)
    found = _patterns(subject, tokens, chosen)
    grids = {written(head): pattern.numpy() for head, pattern in found.items()}
    texts = subject.tokenizer.to_str_tokens(tokens[0])
    if flags.plot:
        attention_grids(
            grids,
            texts,
            flags.plot,
            title=f"Attention in {subject.loaded.name}",
            processing=subject.model.processing,
        )
    if flags.json:
        print_json(
            {
                **subject.told("attention"),
                **_text_json(subject, flags.text, tokens),
                "patterns": {name: pattern.tolist() for name, pattern in grids.items()},
                "pictures": [str(flags.plot)] if flags.plot else [],
            }
        )
        return 0
    drawn = attention_text(grids, texts, width=width())
    say(f"{subject.title}\n\n{drawn}")
    if flags.plot:
        say_drawn(flags.plot)
    return 0


def sum_of(made: "Sum") -> str:
    """Terms as bars, with the rest, the sum and the sum check."""
    from pvml.plots.routes import sum_text

    return sum_text(made, width=width())


def _patterns(
    subject: Subject, tokens: "Int[Tensor, '1 posn']", heads: "list[Head]"
) -> "dict[Head, Float[Tensor, 'posn posn']]":
    """What each of these heads reads, reader by reader."""
    import torch as t

    names = sorted({f"blocks.{layer}.attn.attn_pattern" for layer, _ in heads})
    with t.no_grad():
        _, cache = subject.model.run_with_cache(tokens, names_filter=names)
    return {
        (layer, head): cache[f"blocks.{layer}.attn.attn_pattern"][0, head].float().cpu()
        for layer, head in heads
    }


def _orders(sums: list[float]) -> str:
    """What paths of each number of heads add together, the constants left out."""
    parts = [
        f"through {'no head' if i == 0 else '1 head' if i == 1 else f'{i} heads'} {value:+.3f}"
        for i, value in enumerate(sums)
    ]
    return f"paths {', '.join(parts)} (without the constants)"


def _tokens(subject: Subject, tokens: "Int[Tensor, '1 posn']") -> str:
    texts = subject.tokenizer.to_str_tokens(tokens[0])
    return told("tokens " + " ".join(f"{i}:{text!r}" for i, text in enumerate(texts)))


def _text_json(subject: Subject, text: str, tokens: "Int[Tensor, '1 posn']") -> dict[str, Any]:
    return {"text": text, "tokens": subject.tokenizer.to_str_tokens(tokens[0])}


def _draw(made: "Sum", path: Path | None) -> None:
    if path is not None:
        from pvml.plots.routes import sum_bars

        sum_bars(made, path)


def _require_terms(top: int, least: float = 0.0, most_paths: int | None = None) -> None:
    if most_paths is not None and most_paths < 1:
        raise PvmlError(f"--most-paths must be at least 1, got {most_paths}")
    if top < 1:
        raise PvmlError(f"--top must be at least 1 term, got {top}")
    if not least >= 0:
        raise PvmlError(f"--least must be a number of nats of at least 0, got {least}")
