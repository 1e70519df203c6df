"""`pvml patch MODEL`: which activation, moved between two prompts' passes, moves the prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from pvml.cli.circuits_output import (
    print_json,
    progress,
    require_picture,
    say,
    say_drawn,
    told,
    width,
)
from pvml.cli.circuits_subject import CommonFlags, Subject
from pvml.cli.flags import parse, require_file
from pvml.errors import PvmlError

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from pvml.patching.metric import LogitDifference


@dataclass(frozen=True, kw_only=True)
class PatchFlags(CommonFlags):
    """Move one activation at a time between the passes of two prompts, and see what it changes.

    The prompts differ in what the answer depends on, and have as many tokens as each other. What is
    measured is how much higher the answer's logit is than the wrong answer's: 1 as in the clean
    prompt, 0 as in the corrupted one.
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run directory or the NAME of one in runs, a bundled model (attn-1l, attn-2l, stories), a
    Hugging Face GPT-2's folder, or gpt2, ..."""
    clean: str
    """The prompt that the answer belongs to. BOS is put in front of it."""
    corrupted: str
    """The prompt that it does not belong to."""
    answer: str | None = None
    """The next token after the clean prompt. Unset: the model's first choice there."""
    minus: str | None = None
    """The wrong answer: the next token after the corrupted prompt. Unset: the model's first choice
    there."""
    over: str = "heads"
    """What is moved: heads (z), q, k, v, attn_pattern; or by position resid_pre, attn_out, mlp_out,
    and any other tensor of a layer."""
    by_position: bool = False
    """Move a head's tensor at one position at a time."""
    direction: Literal["denoising", "noising"] = "denoising"
    """denoising: clean activations into the corrupted prompt; noising: the other way."""
    position: int = -1
    """Where the prediction is made: from 0, which is BOS, or from the end if negative."""
    top: int = 10
    """How many of the patches that change most are listed."""
    save: Path | None = None
    """A file (.json) with everything that was found."""
    plot: Path | None = None
    """A picture (.png or .svg) of the heat map."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml patch` say; the exit code."""
    flags = parse(PatchFlags, "patch", arguments)
    _require_paths(flags)

    from pvml.circuits.held import require_position
    from pvml.patching.sweep import patch_activations, require_prompts
    from pvml.plots.patching import patch_map, patch_text

    subject = Subject(flags.model, flags.device)
    clean = subject.sequence(flags.clean, "--clean")
    corrupted = subject.sequence(flags.corrupted, "--corrupted")
    require_prompts(subject.model, clean, corrupted)
    require_position(flags.position, clean.shape[1])
    with progress() as bar:
        found = patch_activations(
            subject.model,
            clean,
            corrupted,
            _metric(subject, flags, clean, corrupted),
            over=flags.over,
            by_position=flags.by_position,
            direction=flags.direction,
            tell=lambda done, of: bar("patching", done, of),
        )
    if flags.plot:
        patch_map(found, flags.plot)
    if flags.save:
        found.save(flags.save)
    if flags.json:
        pictures = [str(flags.plot)] if flags.plot else []
        print_json({**subject.told("patch"), **found.to_json(), "pictures": pictures})
        return 0
    say(subject.title)
    for name, tokens in (("clean", found.clean_tokens), ("corrupted", found.corrupted_tokens)):
        say(told(f"{name:<9} " + " ".join(f"{i}:{text!r}" for i, text in enumerate(tokens))))
    say(f"\n{patch_text(found, width=width())}\n")
    say(found.table(flags.top))
    if flags.save:
        say(f"\nfound: {flags.save}")
    if flags.plot:
        say_drawn(flags.plot)
    return 0


def _require_paths(flags: PatchFlags) -> None:
    """Complain before anything is computed."""
    require_picture(flags.plot)
    if flags.top < 1:
        raise PvmlError(f"--top must be at least 1 patch, got {flags.top}")
    if flags.save is not None:
        if flags.save.suffix != ".json" or flags.save.is_dir():
            raise PvmlError(f"--save must be the name of a .json file, got {str(flags.save)!r}")
        require_file(flags.save, "what is found", "--save")


def _metric(
    subject: Subject,
    flags: PatchFlags,
    clean: "Int[Tensor, '1 posn']",
    corrupted: "Int[Tensor, '1 posn_corrupted']",
) -> "LogitDifference":
    """The difference between the two answers, given or chosen by the model.

    Raises: PvmlError where it chooses the same for both.
    """
    import torch as t

    from pvml.patching.metric import LogitDifference

    sides = ((flags.answer, "--answer", clean), (flags.minus, "--minus", corrupted))
    ids = []
    for text, flag, tokens in sides:
        if text is not None:
            ids.append(subject.token(text, flag))
            continue
        with t.no_grad():
            ids.append(int(subject.model(tokens)[0, flags.position].argmax()))
    if ids[0] == ids[1]:
        chosen = subject.texts[ids[0]]
        raise PvmlError(
            f"the answer and the wrong answer are both {chosen!r}: give two with --answer and "
            f"--minus"
        )
    return LogitDifference(answer=ids[0], wrong=ids[1], position=flags.position)
