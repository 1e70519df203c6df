"""Settings of other programs that PvML does not know: refused or told by name, never ignored."""

import re
from collections.abc import Collection, Mapping
from typing import Any

_CHANGES = re.compile(r"scal(e|ing)|multiplier|soft_?cap|eps$|epsilon$|clip|alibi|parallel|gated")
"""What a setting's name says that takes part in the arithmetic."""
_NEUTRAL: tuple[object, ...] = (None, False, 1, -1)
"""Values with which such a setting does nothing."""
_EPS = re.compile(r"eps(ilon)?$")
_MOST = 20


def foreign(theirs: Mapping[str, Any], known: Collection[str], eps: float) -> list[str]:
    """Settings that are not known and change what is computed, each with its value.

    eps: what the LayerNorms will have; a second name for it may say the same.
    """
    return [
        f"{field} is {theirs[field]!r}, which is not known"
        for field in _unknown(theirs, known)
        if _CHANGES.search(field)
        and theirs[field] not in (*_NEUTRAL, *([eps] if _EPS.search(field) else []))
    ]


def not_understood(theirs: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """A note on the settings that are not known, if there are any."""
    names = _unknown(theirs, known)
    if not names:
        return []
    more = f" and {len(names) - _MOST:,} more" if len(names) > _MOST else ""
    return [f"settings not understood, and left out: {', '.join(names[:_MOST])}{more}"]


def _unknown(theirs: Mapping[str, Any], known: Collection[str]) -> list[str]:
    return sorted(name for name in theirs if name not in known and not name.startswith("_"))
