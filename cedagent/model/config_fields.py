"""Fields of a config.json: taken with their types and refused by name.

Knows JSON values and dataclass fields; knows no model family. Invariant: bad input is one
ConfigError of one line that names the field, what was expected and what came.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from reprlib import Repr
from typing import Any

from cedagent.errors import ConfigError


def typed_fields(cls: Any, values: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the int, float, bool, str and int-tuple fields of the dataclass `cls`, each typed.

    A bool is no int, an int is a float. Fields of other types are left out; what is missing has a
    default, or ConfigError names it.
    """
    taken: dict[str, Any] = {}
    missing = []
    for field in fields(cls):
        if field.type not in _READERS:
            continue
        if field.name in values:
            taken[field.name] = typed(field.name, field.type, values[field.name], where=where)
        elif field.default is MISSING:
            missing.append(field.name)
    if missing:
        raise ConfigError(f"{where}: missing {', '.join(missing)}")
    return taken


def typed(name: str, kind: Any, value: Any, *, where: str) -> Any:
    """Return `value` as the type that an annotation's text names; raises ConfigError."""
    try:
        return _READERS[kind](value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{where}: {name} must be {kind}, got {shown(value)}") from None


def expect(holds: bool, rule: str, got: object) -> None:
    """Raise ConfigError with the rule and what came unless the rule holds."""
    if not holds:
        raise ConfigError(f"{rule}, got {got if isinstance(got, str) else shown(got)}")


def shown(value: object) -> str:
    """Return a value as an error line shows it: one line, cut where it is long or deep."""
    short = Repr()
    short.maxlevel, short.maxdict, short.maxlist, short.maxtuple = 4, 12, 48, 48
    short.maxstring = short.maxlong = short.maxother = 120
    return short.repr(value).replace("\n", " ")


def _int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise TypeError


def _float(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise TypeError


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError


def _str(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError


def _ints(value: Any) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(map(_int, value))
    raise TypeError


_READERS: Mapping[Any, Any] = {
    "int": _int,
    "float": _float,
    "bool": _bool,
    "str": _str,
    "tuple[int, ...]": _ints,
}
