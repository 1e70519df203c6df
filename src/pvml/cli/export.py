"""`pvml export MODEL --to FORM DIR`: a model in another library's form, with its certificate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from pvml.cli.flags import parse
from pvml.errors import PvmlError

if TYPE_CHECKING:
    import torch as t

    from pvml.export.about import About


@dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """Write a model for another library, which reads it back and must compute the same.

    Its numbers keep the dtype of their file; a bundled model's are written as float32.
    hf: a folder for GPT2LMHeadModel and AutoTokenizer. transformer_lens: one for boot_native and
    convert_tl_checkpoint. nanogpt: a ckpt.pt. What a form cannot hold is refused with the reason.
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """A run directory, a checkpoint in it, or the NAME of one in runs; a bundled model (attn-1l,
    attn-2l, stories); a Hugging Face GPT-2's folder; or gpt2, ..."""
    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DIR")]
    """Where to put it: a folder that is new or empty. It is there whole, or not at all."""
    to: Literal["hf", "transformer_lens", "nanogpt"]
    """The form."""
    pad_vocab: bool = False
    """For nanogpt: fill the vocabulary up with zeros to a multiple of 64."""
    push: str | None = None
    """A repository on the Hugging Face hub, such as you/tiny-stories: upload the folder there."""
    private: bool = False
    """With --push: a repository that is made now is visible to you only."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml export` say; the exit code."""
    flags = parse(ExportFlags, "export", _spelt(arguments))
    if flags.private and flags.push is None:
        raise PvmlError("--private is about the repository that --push names: give both")

    from pvml.export.exporting import export_model
    from pvml.export.pushing import push_folder, require_repo
    from pvml.loading import load

    if flags.push is not None:
        require_repo(flags.push)
    loaded = load(flags.model, device="cpu", dtype=_dtype(flags.model))
    about = replace(_about(flags.model), repo=flags.push or "")
    certificate = export_model(
        loaded, flags.to, flags.folder, pad_vocab=flags.pad_vocab, about=about
    )
    print(certificate.text())
    print(
        f"{flags.folder} holds {loaded.name} for {flags.to}; README.md there tells how to open it"
    )
    if flags.push is not None:
        print(f"uploaded to {push_folder(flags.folder, flags.push, private=flags.private)}")
    return 0


def _spelt(arguments: Sequence[str]) -> list[str]:
    """The arguments; the form may be spelt with the hyphen that the library's name has."""
    return [
        word.replace("-lens", "_lens") if before == "--to" or word.startswith("--to=") else word
        for before, word in pairwise(["", *arguments])
    ]


def _dtype(MODEL: str) -> "t.dtype | None":
    """What a run's file has; None, which is what `load` takes, for a bundled model and others."""
    from pvml.bundled import FOLDER
    from pvml.export.about import run_behind
    from pvml.loading.runs import stored_dtype
    from pvml.runs.format import RunDir

    behind = run_behind(MODEL)
    if behind is None or behind[0].parent == FOLDER:
        return None
    return stored_dtype(RunDir.open(behind[0]), behind[1])


def _about(MODEL: str) -> "About":
    """What is known of the model's training."""
    from pvml.export.about import About, about_run, run_behind

    behind = run_behind(MODEL)
    return About() if behind is None else about_run(*behind, command=_command(behind[0]))


def _command(run: Path) -> str:
    """The command that made a run; empty for one that `pvml train` did not make."""
    from pvml.cli.train import TrainFlags
    from pvml.cli.train_command import command_line, recorded_flags

    try:
        # where runs lie on this machine is nobody else's business
        return command_line(replace(recorded_flags(run), run_dir=TrainFlags().run_dir))
    except PvmlError:
        return ""
