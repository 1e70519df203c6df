"""`pvml lens MODEL TEXT`: what each layer would predict, were it the last."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from pvml.cli.circuits_output import print_json, say, table, told
from pvml.cli.circuits_subject import CommonFlags, Subject
from pvml.cli.flags import parse


@dataclass(frozen=True, kw_only=True)
class LensFlags(CommonFlags):
    """Read every layer's stream out as the last one is: the logit lens."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run directory or the NAME of one in runs, a bundled model (attn-1l, attn-2l, stories), a
    Hugging Face GPT-2's folder, or gpt2, ..."""
    text: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TEXT")]
    """The text to read. BOS is put in front of it."""
    answer: str | None = None
    """The next token in question. Unset: the model's first choice."""
    position: int = -1
    """Where the prediction is made: from 0, which is BOS, or from the end if negative."""
    scale: Literal["own", "final"] = "own"
    """What each stream is divided by: its own standard deviation, or the finished stream's."""
    incl_mid: bool = False
    """With the streams between attention and MLP."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml lens` say; the exit code."""
    flags = parse(LensFlags, "lens", arguments)

    from pvml.attribution.lens import logit_lens

    subject = Subject(flags.model, flags.device)
    tokens = subject.sequence(flags.text)
    answer = None if flags.answer is None else subject.token(flags.answer, "--answer")
    found = logit_lens(
        subject.model, tokens, flags.position, incl_mid=flags.incl_mid, scale=flags.scale
    )
    token = int(found.logits[-1].argmax()) if answer is None else answer
    rows = list(zip(found.likeliest(), found.of(token), strict=True))
    if flags.json:
        print_json(
            {
                **subject.told("lens"),
                "text": flags.text,
                "tokens": subject.tokenizer.to_str_tokens(tokens[0]),
                "position": found.position,
                "scale": found.scale,
                "answer": subject.texts[token],
                "answer_id": token,
                "streams": [
                    {
                        "name": name,
                        "likeliest": subject.texts[first],
                        "likeliest_probability": chance,
                        "logit": logit,
                        "probability": own,
                        "rank": rank,
                    }
                    for (name, first, chance), (_, logit, own, rank) in rows
                ],
                "error": found.error,
                "processing": list(found.processing),
            }
        )
        return 0
    texts = subject.tokenizer.to_str_tokens(tokens[0])
    say(subject.title)
    say(told("tokens " + " ".join(f"{i}:{text!r}" for i, text in enumerate(texts))))
    say(f"\nat position {found.position}, about {subject.texts[token]!r}\n")
    headings = ("stream", "likeliest", "with", "logit", "probability", "rank")
    lines = [
        (
            name,
            repr(subject.texts[first]),
            f"{chance:.1%}",
            f"{logit:+.3f}",
            f"{own:.1%}",
            f"{rank:,}",
        )
        for (name, first, chance), (_, logit, own, rank) in rows
    ]
    say(table(headings, lines, headings[:2]))
    say()
    say(told(found.said))
    return 0
