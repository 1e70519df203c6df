"""State dicts as other programs leave them: prefixes, shapes, and where each tensor comes from.

Which tensor becomes which is in a file of its own for each program. Nothing is read from disk here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from torch import Tensor, strided

from pvml.device import DTYPES
from pvml.errors import PvmlError

WRAPPERS = ("_orig_mod", "module")
"""What `torch.compile` and DDP put into the path of what they wrap."""
NOT_WEIGHTS = ("mask", "IGNORE")
"""Buffers that the seeds' and TransformerLens's attention keep in their state dicts."""
COMPUTED = "PvML computes its mask"
AS_IT_IS = "as it is"
_MOST = 500
"""Names in a message."""
_LAYERS = 100
"""Up to so many, missing layers are listed tensor by tensor."""


class Origin(NamedTuple):
    """Where one of PvML's tensors came from."""

    ours: str
    """Its name in PvML."""
    theirs: str
    """The key in the file; empty for a tensor that the file does not hold."""
    done: str
    """What was done to it."""


class Part(NamedTuple):
    """One of their tensors: its name, the shape it must have, and what it becomes by our names."""

    theirs: str
    shape: tuple[int, ...]
    done: str
    """What `convert` does, in words."""
    convert: Callable[[Tensor], dict[str, Tensor]]


class Converted(NamedTuple):
    """PvML's tensors, views of the file's where possible, and where each came from."""

    weights: dict[str, Tensor]
    origins: list[Origin]
    ignored: dict[str, str]
    """Keys of the file that no tensor was made of, and why."""

    def replacing(self, name: str, x: Tensor, done: str) -> None:
        """Put another tensor in one's place, and tell what was done besides."""
        self.weights[name] = x
        place = next(i for i, origin in enumerate(self.origins) if origin.ours == name)
        before = self.origins[place]
        told = done if before.done == AS_IT_IS else f"{before.done}, {done}"
        self.origins[place] = before._replace(done=told)


def bare_names(names: Iterable[str], prefix: str = "") -> dict[str, str]:
    """From each name without its wrappers to the name as it stands. prefix: what goes besides.

    Raises: PvmlError if two are the same once they are bare.
    """
    found: dict[str, str] = {}
    for name in names:
        *path, last = name.split(".")
        bare = ".".join([part for part in path if part not in WRAPPERS] + [last])
        bare = bare.removeprefix(prefix)
        if bare in found:
            raise PvmlError(f"two tensors are called {bare} once {name!r} has lost its prefix")
        found[bare] = name
    return found


def is_not_weight(name: str) -> bool:
    """Whether a tensor of this name is a buffer that holds nothing learnt."""
    return name.rpartition(".")[2] in NOT_WEIGHTS


def faults(given: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]]) -> str:
    """Every tensor that is missing, unexpected or wrong, in one sentence; empty if none is."""
    both = sorted(wanted.keys() & given.keys())
    found = {
        "missing": sorted(wanted.keys() - given.keys()),
        "unexpected": sorted(given.keys() - wanted.keys()),
        "wrong shape": [
            f"{name} {tuple(given[name].shape)} instead of {wanted[name]}"
            for name in both
            if tuple(given[name].shape) != wanted[name]
        ],
        "no numbers to compute with": [
            f"{name} ({fault})" for name in both if (fault := _not_numbers(given[name]))
        ],
    }
    return "; ".join(f"{fault}: {_listed(names)}" for fault, names in found.items() if names)


def require_layers(state: Mapping[str, Tensor], n_layers: int) -> None:
    """Nothing, if a file of these tensors may hold a model of so many layers.

    A config may claim thousands, which would take long to look for one by one.

    Raises: PvmlError that names both numbers.
    """
    if n_layers > max(_LAYERS, len(state)):
        raise PvmlError(f"n_layers is {n_layers:,}, and there are {len(state):,} tensors")


def convert(
    state: Mapping[str, Tensor], keys: Mapping[str, str], parts: Iterable[Part]
) -> Iterator[tuple[Origin, Tensor]]:
    """Each of our tensors and where it came from. keys: from a part's name to the state dict's."""
    for part in parts:
        for ours, x in part.convert(state[keys[part.theirs]]).items():
            yield Origin(ours, keys[part.theirs], part.done), x


def same_names(state: Mapping[str, Tensor]) -> Converted:
    """Tensors that have PvML's names already, but for wrappers' prefixes and buffers.

    Raises: PvmlError if two are the same once they are bare.
    """
    keys = bare_names(key for key in state if not is_not_weight(key))
    return Converted(
        weights={name: state[key] for name, key in keys.items()},
        origins=[Origin(name, key, AS_IT_IS) for name, key in keys.items()],
        ignored={key: COMPUTED for key in state if is_not_weight(key)},
    )


def _not_numbers(x: Tensor) -> str:
    """Why no model can compute with a tensor; empty if one can."""
    if x.dtype not in DTYPES.values():
        return str(x.dtype).removeprefix("torch.")
    if x.layout != strided:
        return str(x.layout).removeprefix("torch.")
    if x.device.type == "meta":
        return "without its numbers"
    # a view may show one number a million times: the file holds less than it claims
    claimed, held = x.numel(), x.untyped_storage().nbytes() // x.element_size()
    return f"{held:,} numbers for {claimed:,}" if held < claimed else ""


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
