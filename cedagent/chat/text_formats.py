"""Formats of JSON schema as regular expressions, for texts that are written without quotes.

Knows regular expressions as the grammar library reads them. Invariant: every text that one of
these allows is of its format; the less usual spellings of some formats are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_DATE: Final = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME: Final = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_CLOCK: Final = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_GROUP: Final = "[0-9A-Fa-f]{1,4}"
_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST: Final = rf"{_LABEL}(\.{_LABEL})*"
_PATH: Final = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*"

FORMATS: Final[Mapping[str, str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P([0-9]+D({_CLOCK})?|{_CLOCK}|[0-9]+W)",
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_LABEL}(\.{_LABEL})+",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": f"({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,6}}:|:(:{_GROUP}){{1,6}}|::",
    "uuid": "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": (
        rf"[A-Za-z][A-Za-z0-9+.-]*:\/\/{_HOST}(:[0-9]{{1,5}})?"
        rf"(\/{_PATH})*(\?{_PATH})?(#{_PATH})?"
    ),
    "unknown": "(?s:.*)",
}
"""Name of a format -> what it allows, anchored at both ends."""
