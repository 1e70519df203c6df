"""A tensor that refuses writes, for a copy that somebody might take for the original."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch as t
from torch import Tensor

from pvml.errors import PvmlError


class ReadOnly(Tensor):
    """Reads and computes like any tensor; a write is an error that says where to write instead.

    What shares its memory (a row, a slice, a NumPy view) is read-only too; what is computed from it
    is an ordinary tensor. Gradients flow through.
    """

    refusal: str
    """The message to whoever writes."""

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What `func` makes of its arguments.

        Raises: PvmlError if it wrote into one of them that is read-only.
        """
        with t._C.DisableTorchFunctionSubclass():
            given = list(_read_only_in((args, kwargs or {})))
            writes = [x._version for x in given]
            result = func(*args, **(kwargs or {}))
            for x, before in zip(given, writes, strict=True):
                if x._version != before:
                    raise PvmlError(x.refusal)
            return _shared(result, given)

    def __deepcopy__(self, memo: object) -> Tensor:
        """An ordinary tensor, as `clone` gives it."""
        return self.detach().clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Stored as an ordinary tensor."""
        return self.detach().clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def read_only(x: Tensor, refusal: str) -> Tensor:
    """The tensor, read-only. refusal: the message to whoever writes."""
    locked = x.as_subclass(ReadOnly)
    locked.refusal = refusal
    return locked


def _read_only_in(arguments: Any) -> Iterator[ReadOnly]:
    if isinstance(arguments, ReadOnly):
        yield arguments
    elif isinstance(arguments, Mapping):
        yield from _read_only_in(tuple(arguments.values()))
    elif isinstance(arguments, list | tuple):
        for argument in arguments:
            yield from _read_only_in(argument)


def _shared(result: Any, given: Sequence[ReadOnly]) -> Any:
    """The result, read-only where it lies in the memory of one that was given."""
    if isinstance(result, np.ndarray) and given:
        result.setflags(write=False)
    elif type(result) in (list, tuple):
        return type(result)(_shared(one, given) for one in result)
    elif type(result) is Tensor and result.numel():
        for x in given:
            if x.untyped_storage().data_ptr() == result.untyped_storage().data_ptr():
                return read_only(result, x.refusal)
    return result
