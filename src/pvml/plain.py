"""Numbers that settings hold: any library's as Python's own, and whether they can be used."""

import math
import operator
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any


def make_plain(settings: Any) -> None:
    """Let every field of a dataclass, frozen or not, that holds a number hold a plain one."""
    for field in fields(settings):
        object.__setattr__(settings, field.name, plain(getattr(settings, field.name)))


def plain(value: Any) -> Any:
    """NumPy's whole numbers as int, its others as float; anything else as it is."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Integral):
        return operator.index(value)
    return float(value) if isinstance(value, Real) else value


def plain_tuple(value: Any) -> Any:
    """A list as a tuple, a dictionary as a tuple of its pairs, with plain numbers inside.

    Anything else as `plain` gives it.
    """
    if isinstance(value, Mapping):
        return plain_tuple(tuple(value.items()))
    return tuple(map(plain_tuple, value)) if isinstance(value, list | tuple) else plain(value)


def is_whole(value: Any, least: int, most: int | None = None) -> bool:
    """Whether this is an int within these bounds; True and False are none."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and least <= value and (most is None or value <= most)


def is_finite(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Whether this is an int or float within these bounds that a float can hold."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return number and math.isfinite(value) and least <= value <= most
    except OverflowError:  # a whole number beyond every float
        return False
