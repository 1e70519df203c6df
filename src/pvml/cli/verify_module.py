"""`pvml verify --module FILE:CLASS`: a reader's own module against the reference."""

import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass

from pvml.cli.circuits_output import print_json


@dataclass(frozen=True, kw_only=True)
class ModuleCheck:
    """Which class to check, and how."""

    module: str
    """FILE:CLASS. FILE is executed."""
    kind: str | None = None
    """What kind of module it is: embed, pos_embed, layer_norm, attention, mlp, block, unembed or
    transformer. Unset: guessed from the class's name."""
    seed: int = 0
    """Which numbers are drawn."""
    backward: bool = True
    """Compare gradients, too."""
    brief: bool = False
    """Show only what is wrong, and the verdict."""
    json: bool = False
    """Print one JSON object."""
    d_model: int | None = None
    """Unset, here and below: small sizes that are all different."""
    n_heads: int | None = None
    n_ctx: int | None = None
    d_vocab: int | None = None
    d_head: int | None = None
    d_mlp: int | None = None


def verify_module(check: ModuleCheck) -> int:
    """Print the table and the verdict; 0 if the class is right, 1 if not.

    With json, what the class itself prints goes to stderr.

    Raises: PvmlError for a file or class that is not there, or sizes that no model can have.
    """
    from pvml.parity.own_code import OwnError, find_class
    from pvml.parity.own_json import as_json, not_executed
    from pvml.parity.own_module import check_module

    names = ("d_model", "n_heads", "n_ctx", "d_vocab", "d_head", "d_mlp")
    sizes = {name: size for name in names if (size := getattr(check, name)) is not None}
    head = {"command": "verify", "module": check.module}
    try:
        with redirect_stdout(sys.stderr) if check.json else nullcontext():
            own = find_class(check.module, check.kind)
            report = check_module(own, seed=check.seed, backward=check.backward, sizes=sizes)
    except OwnError as error:
        if check.json:
            print_json(head | not_executed(str(error)))
        else:
            print(error)
        return 1
    if check.json:
        print_json(head | as_json(report, only_wrong=check.brief))
    else:
        print(report.brief() if check.brief else report.text())
    return 0 if report.ok else 1
