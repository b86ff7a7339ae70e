"""JSON that a stranger wrote: parsed strictly, and taken apart value by value.

Knows types and ranges, not what a value means. Invariant: what comes out has the type and the range
that was asked for; anything else is one StoreError that says what was expected and what came.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ced_kvstore.errors import StoreError

MAX_TEXT = 1 << 16
"""Most bytes of a field's name or text; far below what an index rebuild still reads."""


def refuse(what: str, expected: str, got: object) -> NoReturn:
    """Raise StoreError for a value that is not what it should be."""
    raise StoreError(f"{what}: expected {expected}, got {shown(got)}")


def fault(what: str, expected: str, but: str) -> NoReturn:
    """Raise StoreError for a fault that no single value shows; `but` says in words what it is."""
    raise StoreError(f"{what}: expected {expected}, but {but}")


def shown(value: object) -> str:
    """Return a value as a short text on one line."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        return repr(value[:60])
    if value is None or isinstance(value, int | float):
        return repr(value)[:60]
    return "a list" if isinstance(value, list) else "an object"


def loads(raw: bytes | bytearray | memoryview, what: str) -> object:
    """Parse UTF-8 JSON without duplicate names or NaN; raises StoreError."""

    def table(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError("a name comes twice in one object")
        return made

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        value: object = json.loads(
            str(raw, "utf-8"), object_pairs_hook=table, parse_constant=constant
        )
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{what}: expected JSON, but {_fault_of(error)}") from None
    return value


def _fault_of(error: ValueError | RecursionError) -> str:
    """Return what is wrong with a text, without words that only programmers know."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"its byte {error.start} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"its letter {error.pos} is not what JSON has there ({error.msg})"
    # Python refuses to read numbers of thousands of digits.
    return "a number is too long" if "digits" in str(error) else str(error)[:100]


def dumps(value: object) -> bytes:
    """Return the one text that stands for a value: sorted names, ASCII, no spaces.

    Raises ValueError for what is no JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def table_of(value: object, what: str, names: set[str]) -> dict[str, Any]:
    """Return an object that has exactly these names."""
    if not isinstance(value, dict) or value.keys() != names:
        got = f"one of {shown(', '.join(value))}" if isinstance(value, dict) else shown(value)
        fault(what, f"an object of {', '.join(sorted(names))}", f"it is {got}")
    return value


def list_of(value: object, what: str) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list):
        refuse(what, "a list", value)
    return value


def whole(value: object, what: str, low: int, high: int) -> int:
    """Return a whole number within [low, high]; true and false are none."""
    if type(value) is not int or not low <= value <= high:
        refuse(what, f"a whole number in [{low}, {high}]", value)
    return value


def seconds(value: object, what: str) -> float:
    """Return a point in time, in seconds since the epoch."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        refuse(what, "seconds since the epoch", value)
    return float(value)


def flag(value: object, what: str) -> bool:
    """Return true or false."""
    if not isinstance(value, bool):
        refuse(what, "true or false", value)
    return value


def text(value: object, what: str, most: int = MAX_TEXT) -> str:
    """Return a text of at most `most` bytes that UTF-8 can write."""
    if not isinstance(value, str) or len(value.encode(errors="replace")) > most:
        refuse(what, f"a text of at most {most} bytes", value)
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        fault(what, "a text", "it has half of a character in it")
    return value


def digest(value: object, what: str) -> bytes:
    """Return the 32 bytes that 64 lower-case hex digits stand for."""
    if not isinstance(value, str) or len(value) != 64 or set(value) - set("0123456789abcdef"):
        refuse(what, "64 lower-case hex digits", value)
    return bytes.fromhex(value)
