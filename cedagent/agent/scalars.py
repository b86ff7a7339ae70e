"""JSON schemas of types without parts: numbers, texts, fixed values.

Knows msgspec's view of such types and nothing of others.
"""

from __future__ import annotations

from typing import Any

from msgspec import inspect

from cedagent.agent import texts

_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}


class Indescribable(Exception):
    """A type cannot be offered to a model; the message is one line and says what to use."""


def scalar(kind: inspect.Type) -> dict[str, Any]:
    """Return the schema of a type without parts; raises Indescribable."""
    match kind:
        case inspect.NoneType():
            return {"type": "null"}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer"} | bounds(kind)
        case inspect.FloatType():
            if kind.multiple_of is not None:
                raise Indescribable("a float cannot be a multiple of another exactly; use int")
            return {"type": "number"} | bounds(kind)
        case inspect.EnumType(cls=cls):
            return {"enum": [item.value for item in cls]}
        case inspect.LiteralType(values=values):
            return {"enum": list(values)}
        case inspect.StrType(pattern=pattern):
            if pattern is not None and (escape := texts.unlike(pattern)):
                raise Indescribable(
                    f"the pattern {pattern!r} has {escape}, which grammars read in another way; "
                    "write the characters out, as [0-9] or [A-Za-z_]"
                )
            shape = {} if pattern is None else {"pattern": pattern}
            return {"type": "string"} | shape | lengths(kind, "Length")
        case inspect.DateTimeType(tz=tz):
            return texts.moment(offset=tz is not False)
        case inspect.TimeType(tz=tz):
            return texts.time_of_day(offset=tz is True)
        case inspect.DateType():
            return dict(texts.DATE)
        case inspect.TimeDeltaType():
            return dict(texts.DURATION)
        case inspect.UUIDType():
            return dict(texts.UUID)
        case inspect.DecimalType():
            return dict(texts.DECIMAL)
        case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
            raise Indescribable("bytes cannot be written by a model; use str")
        case _:
            name = type(kind).__name__.removesuffix("Type")
            raise Indescribable(f"type {name} is not supported; use a plain type")


def bounds(kind: inspect.IntType | inspect.FloatType) -> dict[str, Any]:
    """Return the keywords for the bounds of a number."""
    found = {word: getattr(kind, name) for name, word in _BOUNDS.items()}
    return {word: value for word, value in found.items() if value is not None}


def lengths(kind: Any, what: str) -> dict[str, int]:
    """Return the keywords for how many there may be; `what` ends them."""
    found = {f"min{what}": kind.min_length, f"max{what}": kind.max_length}
    return {word: value for word, value in found.items() if value is not None}
