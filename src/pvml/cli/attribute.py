"""`pvml attribute MODEL TEXT`: what each head, MLP and embedding adds to a prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from pvml.cli.circuits_output import print_json, require_picture, say, say_drawn, told, width
from pvml.cli.circuits_subject import CommonFlags, Subject
from pvml.cli.flags import parse
from pvml.errors import PvmlError


@dataclass(frozen=True, kw_only=True)
class AttributeFlags(CommonFlags):
    """Show what each part of a model writes for a token's logit, and that it adds up.

    What a part writes for later parts to read is not followed: `pvml circuits MODEL paths` does.
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run directory or the NAME of one in runs, a bundled model (attn-1l, attn-2l, stories), a
    Hugging Face GPT-2's folder, or gpt2, ..."""
    text: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TEXT")]
    """The text to read. BOS is put in front of it."""
    answer: str | None = None
    """The next token in question. Unset: the model's first choice."""
    minus: str | None = None
    """Take the difference of the two tokens' logits instead."""
    position: int = -1
    """Where the prediction is made: from 0, which is BOS, or from the end if negative."""
    top: int = 20
    """How many parts get a bar of their own."""
    plot: Path | None = None
    """A picture (.png or .svg) of the bars."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml attribute` say; the exit code."""
    flags = parse(AttributeFlags, "attribute", arguments)
    if flags.top < 1:
        raise PvmlError(f"--top must be at least 1 part, got {flags.top}")
    require_picture(flags.plot)

    from pvml.attribution.direct import attribute
    from pvml.plots.attribution import attribution_sum
    from pvml.plots.routes import sum_bars, sum_text

    subject = Subject(flags.model, flags.device)
    tokens = subject.sequence(flags.text)
    answer, minus = (
        None if text is None else subject.token(text, flag)
        for text, flag in ((flags.answer, "--answer"), (flags.minus, "--minus"))
    )
    found = attribute(subject.model, tokens, answer, minus, flags.position)
    made = attribution_sum(found, texts=subject.texts, most=flags.top)
    if flags.plot:
        sum_bars(made, flags.plot)
    if flags.json:
        first = int(found.answers[0])
        print_json(
            {
                **subject.told("attribute"),
                "text": flags.text,
                "tokens": subject.tokenizer.to_str_tokens(tokens[0]),
                "position": found.position,
                "answer": subject.texts[first],
                "answer_id": first,
                "minus": None if minus is None else subject.texts[minus],
                "minus_id": minus,
                "parts": [
                    {
                        "name": part.name,
                        "kind": part.kind,
                        "layer": part.layer,
                        "head": part.head,
                        "nats": value,
                    }
                    for part, value in found.largest()
                ],
                "total": made.total,
                "logit": made.own,
                "error": found.error,
                "frozen": list(found.frozen),
                "processing": list(found.processing),
                "pictures": [str(flags.plot)] if flags.plot else [],
            }
        )
        return 0
    texts = subject.tokenizer.to_str_tokens(tokens[0])
    say(subject.title)
    say(told("tokens " + " ".join(f"{i}:{text!r}" for i, text in enumerate(texts))))
    say(f"\n{sum_text(made, width=width())}")
    if flags.plot:
        say_drawn(flags.plot)
    return 0
