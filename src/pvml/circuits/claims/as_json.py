"""Frozen dataclasses as plain JSON values and back, each field held against its annotation."""

import dataclasses
import math
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pvml.config import Config
from pvml.errors import PvmlError

T = TypeVar("T")


def encode(value: Any) -> Any:
    """A dataclass as a dict of plain values; fields that do not count in `==` are left out."""
    if isinstance(value, Config):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        fields = [field for field in dataclasses.fields(value) if field.compare]
        return {field.name: encode(getattr(value, field.name)) for field in fields}
    return [encode(entry) for entry in value] if isinstance(value, tuple) else value


def decode(kind: type[T], saved: Any, where: str = "this") -> T:
    """The dataclass that `encode` was given.

    Raises: PvmlError naming the field that is missing, unknown or of another kind.
    """
    found: T = _decoded(kind, saved, where)
    return found


def _decoded(kind: Any, saved: Any, where: str) -> Any:
    choices = get_args(kind)
    if kind is Config:
        if not isinstance(saved, dict):
            raise _damaged(where, "a model's config", saved)
        return Config.from_dict(saved)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        names = {field.name for field in dataclasses.fields(kind) if field.compare}
        if not isinstance(saved, dict) or set(saved) != names:
            raise _damaged(where, f"an object of {', '.join(sorted(names))}", saved)
        return kind(**{n: _decoded(hints[n], saved[n], f"{where}.{n}") for n in sorted(names)})
    if get_origin(kind) in (Union, UnionType):
        if saved is None and NoneType in choices:
            return None
        (other,) = (choice for choice in choices if choice is not NoneType)
        return _decoded(other, saved, where)
    if get_origin(kind) is Literal:
        if saved not in choices:
            raise _damaged(where, f"one of {', '.join(map(str, choices))}", saved)
        return saved
    if get_origin(kind) is tuple:
        size = None if choices[-1] is Ellipsis else len(choices)
        if not isinstance(saved, list) or size not in (None, len(saved)):
            raise _damaged(where, "a list" if size is None else f"a list of {size}", saved)
        of_each = [choices[0]] * len(saved) if size is None else choices
        return tuple(
            _decoded(of, entry, f"{where}[{i}]")
            for i, (of, entry) in enumerate(zip(of_each, saved, strict=True))
        )
    # to Python a bool is an int
    if type(saved) is not kind or (kind is float and not math.isfinite(saved)):
        raise _damaged(where, kind.__name__, saved)
    return saved


def _damaged(where: str, expected: str, saved: Any) -> PvmlError:
    told = ", ".join(sorted(map(str, saved))) if isinstance(saved, dict) else repr(saved)
    return PvmlError(f"{where} is damaged: expected {expected}; got {told[:200]}")
