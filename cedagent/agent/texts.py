"""How values that JSON writes as text are spelled: moments, durations, decimals, patterns.

Knows regular expressions as both the call grammar and Python read them. Invariant: every text that
one of these schemas allows is a value of its type; there is no 30 February and no 60th second.
"""

from __future__ import annotations

import re
from typing import Any, Final

# Years of four digits; the last alternative is 29 February of leap years.
_DATE: Final = (
    "([1-9][0-9]{3}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    "|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
    "|([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)"
)
_TIME: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_OFFSET: Final = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_SECONDS: Final = r"[0-9]{1,6}(\.[0-9]{1,6})?S"
_CLOCK: Final = (
    f"T([0-9]{{1,6}}H([0-9]{{1,6}}M)?({_SECONDS})?|[0-9]{{1,6}}M({_SECONDS})?|{_SECONDS})"
)
_ESCAPE: Final = re.compile(r"\\(?:\\|([wWdDsSbB]))")

INTEGER_KEY: Final = "^(0|-?[1-9][0-9]{0,17})$"
DATE: Final = {"type": "string", "format": "date", "pattern": f"^{_DATE}$"}
# Years and months are left out: how long they are depends on when they begin.
DURATION: Final = {
    "type": "string",
    "format": "duration",
    "pattern": f"^P([0-9]{{1,6}}D({_CLOCK})?|{_CLOCK})$",
}
DECIMAL: Final = {"type": "string", "pattern": r"^-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,15})?$"}
UUID: Final = {"type": "string", "format": "uuid"}


def moment(*, offset: bool) -> dict[str, Any]:
    """Return the schema of a date with a time, with or without an offset from UTC."""
    if offset:
        return {
            "type": "string",
            "format": "date-time",
            "pattern": f"^{_DATE}T{_TIME}{_OFFSET}$",
        }
    return {"type": "string", "pattern": f"^{_DATE}T{_TIME}$"}


def time_of_day(*, offset: bool) -> dict[str, Any]:
    """Return the schema of a time, with or without an offset from UTC."""
    if offset:
        return {"type": "string", "format": "time", "pattern": f"^{_TIME}{_OFFSET}$"}
    return {"type": "string", "pattern": f"^{_TIME}$"}


def by_format(name: str) -> dict[str, Any] | None:
    """Return the schema of a format that its own definition leaves too wide, or None."""
    known = {
        "date": DATE,
        "date-time": moment(offset=True),
        "time": time_of_day(offset=True),
        "duration": DURATION,
    }
    return known.get(name)


def unlike(pattern: str) -> str | None:
    r"""Return an escape that the grammar and Python read differently, such as `\w`, or None."""
    for match in _ESCAPE.finditer(pattern):
        if match[1]:
            return match[0]
    return None
