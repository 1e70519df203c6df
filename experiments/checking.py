"""Whether figures read from a file can be used: there, of their kind, and within bounds."""

from collections.abc import Callable, Mapping
from typing import Any

from pvml.errors import RunDirError
from pvml.plain import is_finite, is_whole

Kind = tuple[str, Callable[[Any], bool]]
"""What a figure must be, in words, and whether it is."""

_LARGEST = 2**63 - 1
COUNT: Kind = ("a whole number of at least 1", lambda x: is_whole(x, 1, _LARGEST))
WHOLE: Kind = ("a whole number of at least 0", lambda x: is_whole(x, 0, _LARGEST))
NUMBER: Kind = ("a finite number", is_finite)
POSITIVE: Kind = ("a finite number above 0", lambda x: is_finite(x, 0.0) and x > 0)
NOT_NEGATIVE: Kind = ("a finite number of at least 0", lambda x: is_finite(x, 0.0))
SHARE: Kind = ("a number from 0 to 1", lambda x: is_finite(x, 0.0, 1.0))
NUMBERS: Kind = (
    "a list of finite numbers",
    lambda x: isinstance(x, list) and all(map(is_finite, x)),
)
TEXT: Kind = ("a text", lambda x: isinstance(x, str))
OBJECT: Kind = ("an object", lambda x: isinstance(x, dict))
_MOST_SHOWN = 60


def require(figures: Mapping[str, Any], kinds: Mapping[str, Kind], where: str) -> None:
    """Nothing, if all figures of these names are there and of their kind.

    Raises: RunDirError that begins with `where`, naming those that are not.
    """
    if lacking := [name for name in kinds if name not in figures]:
        raise RunDirError(f"{where} has no {', '.join(lacking)}")
    wrong = [
        f"{name} must be {words}, not {str(figures[name])[:_MOST_SHOWN]!r}"
        for name, (words, holds) in kinds.items()
        if not holds(figures[name])
    ]
    if wrong:
        raise RunDirError(f"{where} is damaged: {'; '.join(wrong)}")
