"""`pvml verify [MODEL]`: a model against an independent implementation, tensor by tensor."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from pvml.cli.circuits_output import print_json
from pvml.cli.flags import given, parse
from pvml.cli.verify_module import ModuleCheck, verify_module
from pvml.cli.verify_subject import RANDOM, RandomShape
from pvml.errors import CheckFailed, PvmlError

if TYPE_CHECKING:
    from pvml.cli.verify_subject import Subject
    from pvml.parity.verification import Verification


_SIZES = ("d_model", "n_heads", "n_ctx", "d_vocab", "d_head", "d_mlp")
_OF_MODULES = frozenset({"module", "kind", "seed", "backward", "brief", "json", *_SIZES})
"""Flags that mean something with --module, whose gradients are always compared."""


@dataclass(frozen=True, kw_only=True)
class VerifyFlags:
    """Prove a model right, tensor by tensor, or find what is wrong with it.

    Every named tensor is compared twice: each module given the reference's own input, and all of it
    from token ids. Exit code 1 where something differs; the first wrong tensor and the likely cause
    are told. Without MODEL, a random model of the shape asked for, no parameter at its default.
    """

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[MODEL]")] = RANDOM
    """A run directory or the NAME of one in runs, a bundled model (attn-1l, attn-2l, stories), a
    Hugging Face GPT-2's folder, or gpt2, ...; unset or "random", a random model."""
    against: Literal["hf", "transformer_lens", "float64"] | None = None
    """Hugging Face's GPT-2, TransformerLens, or the formulae in float64 NumPy. Unset: hf where a
    GPT-2 can be this model and the extra hub is installed, or else float64."""
    dtype: Literal["float64", "float32", "bfloat16"] = "float64"
    """What the model computes in. The reference computes in float64."""
    backward: bool = False
    """Compare the gradients of the next-token loss, too: of every parameter, and of tensors."""
    seeds: int = 1
    """With more than 1, and --dtype float32: in how many models (of a MODEL: on how many rows of
    tokens) the errors against float64 are compared with the reference's own."""
    seed: int = 0
    """Which random weights and tokens; with --seeds, the first of them."""
    batch_size: int = 2
    """Rows of random tokens to read."""
    n_tokens: int | None = None
    """Tokens in a row. Unset: 70, or as many as the model can read."""
    brief: bool = False
    """Show only what is wrong, and the verdict."""
    json: bool = False
    """Print one JSON object: the verdict, and each tensor's numbers."""
    device: str | None = None
    """Where the model computes: cpu, cuda, mps, ... Unset: an accelerator where there is one."""
    module: str | None = None
    """FILE:CLASS. Check a module of your own instead, a class in that file, which is executed."""
    kind: str | None = None
    """With --module: embed, pos_embed, layer_norm, attention, mlp, block, unembed or transformer (a
    whole model). Unset: guessed from the class's name."""
    shape: RandomShape = field(default_factory=RandomShape)


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments of `pvml verify` say; the exit code."""
    flags = parse(VerifyFlags, "verify", arguments)
    if flags.module is not None:
        _require_only(_OF_MODULES, flags, arguments)
        return verify_module(_module_check(flags))
    if flags.kind is not None:
        raise PvmlError("--kind says what the class of --module is; there is no --module")
    sizes = given(RandomShape, arguments)
    if flags.model != RANDOM and sizes:
        told = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(sizes))
        raise PvmlError(
            f"{told} shape a random model, and MODEL is {flags.model}: give one of both"
        )
    for name in ("seeds", "batch_size"):
        if getattr(flags, name) < 1:
            raise PvmlError(f"--{name.replace('_', '-')} must be at least 1")
    if flags.seeds > 1 and flags.dtype != "float32":
        raise PvmlError(
            f"--seeds compares the errors of float32 with a reference's: give --dtype float32, not "
            f"{flags.dtype}"
        )
    if flags.seeds > 1 and flags.json:
        raise PvmlError("--json tells what came of one model: leave --seeds out, or --json")
    return _compare_rounding(flags) if flags.seeds > 1 else _verify(flags)


def _require_only(known: frozenset[str], flags: VerifyFlags, arguments: Sequence[str]) -> None:
    """Nothing, if a module's check has a use for all that is given."""
    others = [_flag(name) for name in given(VerifyFlags, arguments) - known]
    if flags.model != RANDOM:
        others.append(f"MODEL ({flags.model})")
    if others:
        raise PvmlError(
            f"{', '.join(sorted(others))} cannot be given with --module: a class is tried in "
            f"float64 and float32, on the CPU, in settings of its own. What can: --kind, --seed, "
            f"--brief, --json, {', '.join(_flag(name) for name in _SIZES)}"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _module_check(flags: VerifyFlags) -> ModuleCheck:
    assert flags.module is not None
    sizes = {name: getattr(flags.shape, name) for name in _SIZES}
    return ModuleCheck(
        module=flags.module,
        kind=flags.kind,
        seed=flags.seed,
        brief=flags.brief,
        json=flags.json,
        **sizes,
    )


def _verify(flags: VerifyFlags) -> int:
    from rich.console import Console

    from pvml.cli.verify_subject import subject
    from pvml.parity.verification_text import as_json, judge, table, verdict
    from pvml.parity.verifying import verify

    looked_at = subject(flags, flags.seed)
    model, tokens, reference = looked_at.model, looked_at.tokens, looked_at.reference
    # before anything is printed: some references refuse only now. It is seen on a terminal alone
    with Console(stderr=True).status("comparing"):
        found = verify(model, tokens, reference, backward=flags.backward)
    if flags.json:
        print_json(
            {
                "command": "verify",
                "model": looked_at.name,
                "note": looked_at.note,
                "device": str(model.device),
                "tokens": tuple(tokens.shape),
                **as_json(found, only_wrong=flags.brief),
            }
        )
    else:
        _tell(looked_at, flags)
        if found.sections:
            print(table(found, only_wrong=flags.brief))
            print()
        print(verdict(found))
    if not found.ok:
        title, which = found.title, _unfit(found)
        if first := found.finding:
            title = judge(found, first.section, first.row.name)
            which = f"first {first.row.name} ({first.way})"
        raise CheckFailed(f"{looked_at.name} does not agree with {title}: {which}")
    return 0


def _unfit(found: "Verification") -> str:
    from pvml.parity.check import holds_not_finite

    if found.not_finite:
        return holds_not_finite(found.not_finite)
    return "its parameters do not fit"


def _tell(looked_at: "Subject", flags: VerifyFlags) -> None:
    shape = tuple(looked_at.tokens.shape)
    print(looked_at.note)
    print(
        f"{flags.dtype} on {looked_at.model.device}, random tokens {shape}, against "
        f"{looked_at.reference.title}"
    )
    print()


def _compare_rounding(flags: VerifyFlags) -> int:
    from pvml.cli.verify_subject import subject
    from pvml.parity.rounding import error_ratios
    from pvml.parity.verifying import verify

    found = []
    for seed in range(flags.seed, flags.seed + flags.seeds):
        looked_at = subject(flags, seed)
        one = verify(
            looked_at.model, looked_at.tokens, looked_at.reference, backward=flags.backward
        )
        found.append(one)
        if not one.ok:
            raise CheckFailed(f"seed {seed}: the model is wrong. See pvml verify --seed {seed}")
    ratios = error_ratios(found)
    print(f"seeds {flags.seed} to {seed}, of which this is the last:")
    _tell(looked_at, flags)
    if not flags.brief:
        print(ratios.table())
        print()
    print(ratios.verdict())
    if not ratios.ok:
        raise CheckFailed(f"{looked_at.name} rounds more than {ratios.title}")
    return 0
