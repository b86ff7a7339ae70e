"""From types to JSON schemas that allow nothing the types do not take.

Knows msgspec's view of types; no functions and no calls. What a call grammar cannot bound as
tightly as the type itself is refused with what to write instead, never described too widely.
"""

from __future__ import annotations

import enum
import json
import re
from pathlib import PurePath
from typing import Any

from msgspec import NODEFAULT, inspect, to_builtins

from cedagent.agent import texts
from cedagent.agent.model_schema import brings_schema, schema_of
from cedagent.agent.scalars import Indescribable, bounds, lengths, scalar

_PLAIN = (
    inspect.StrType | inspect.IntType | inspect.FloatType | inspect.BoolType | inspect.NoneType
    | inspect.EnumType | inspect.LiteralType | inspect.DateTimeType | inspect.DateType
    | inspect.TimeType | inspect.TimeDeltaType | inspect.UUIDType | inspect.DecimalType
)  # fmt: skip
_OBJECT = inspect.DataclassType | inspect.TypedDictType | inspect.StructType


class Describer:
    """Describes the types of one tool; classes are described once, in `parts`."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}
        """What goes under `$defs`."""
        self._names: dict[Any, str] = {}

    def describe(self, kind: inspect.Type) -> dict[str, Any]:
        """Return the schema of a type; raises Indescribable."""
        match kind:
            case inspect.Metadata(type=inner, extra_json_schema=extra):
                # Annotations are added, but nothing is loosened by them.
                return {**(extra or {}), **self.describe(inner)}
            case inspect.AnyType():
                return {}
            case inspect.UnionType(types=types):
                return self._union(types)
            case inspect.CustomType(cls=cls):
                return self._custom(cls)
            case inspect.DictType():
                return self._dict(kind)
            case inspect.DataclassType() | inspect.TypedDictType() | inspect.StructType():
                return self._object(kind)
            case inspect.CollectionType() | inspect.TupleType() | inspect.NamedTupleType():
                return self._array(kind)
            case _:
                return scalar(kind)

    def _union(self, types: tuple[inspect.Type, ...]) -> dict[str, Any]:
        bare = [_bare(item) for item in types]
        numbers = [item for item in bare if isinstance(item, inspect.FloatType)]
        # A whole number is taken for the int of a union, never for its float.
        if numbers and any(_limits_ints(item) for item in bare):
            raise Indescribable("float beside limited ints cannot be told apart; use one of them")
        return {"anyOf": [self.describe(item) for item in types]}

    def _custom(self, cls: Any) -> dict[str, Any]:
        if brings_schema(cls):
            name = self._name(cls)
            if name not in self.parts:
                self.parts |= schema_of(cls, name=name)
            return {"$ref": f"#/$defs/{name}"}
        if not (isinstance(cls, type) and issubclass(cls, PurePath)):
            name = getattr(cls, "__name__", cls)
            raise Indescribable(f"type {name} is not supported; use a dataclass or a plain type")
        return {"type": "string"}

    def _dict(self, kind: inspect.DictType) -> dict[str, Any]:
        if (kind.min_length or 0) > 1:
            raise Indescribable("a dict's least length cannot be more than 1; check it in the tool")
        key, value = _bare(kind.key_type), self.describe(kind.value_type)
        out: dict[str, Any] = {"type": "object"}
        match key:
            case inspect.AnyType() | inspect.StrType(min_length=None, max_length=None,
                                                     pattern=None):  # fmt: skip
                out["additionalProperties"] = value
            case inspect.IntType() if not bounds(key):
                out |= {"patternProperties": {texts.INTEGER_KEY: value}}
                out["additionalProperties"] = False
            case inspect.EnumType() | inspect.LiteralType():
                keys = self.describe(key)["enum"]
                if not all(isinstance(item, str) for item in keys):
                    raise Indescribable("a dict's fixed keys are to be str; use str or int")
                out |= {"properties": dict.fromkeys(keys, value), "additionalProperties": False}
            case _:
                raise Indescribable("a dict's keys are to be str, int or fixed texts; use str")
        return out | lengths(kind, "Properties")

    def _object(self, kind: _OBJECT) -> dict[str, Any]:
        name = self._name(kind.cls)
        if name not in self.parts:
            self.parts[name] = {}  # It may refer to itself.
            fields = list(kind.fields)
            if isinstance(kind, inspect.TypedDictType):
                # msgspec sorts them.
                order = list(kind.cls.__annotations__)
                fields.sort(key=lambda field: order.index(field.name))
            properties: dict[str, Any] = {}
            required = [field.encode_name for field in fields if field.required]
            if isinstance(kind, inspect.StructType):
                if kind.array_like:
                    raise Indescribable(f"{name} is written as a list; use a plain Struct")
                if kind.tag_field is not None:
                    properties[kind.tag_field] = {"const": kind.tag}
                    required.insert(0, kind.tag_field)
            for field in fields:
                properties[field.encode_name] = self.describe(field.type) | _default(field)
            self.parts[name] |= {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{name}"}

    def _array(
        self, kind: inspect.CollectionType | inspect.TupleType | inspect.NamedTupleType
    ) -> dict[str, Any]:
        if isinstance(kind, inspect.CollectionType):
            if isinstance(kind, inspect.SetType | inspect.FrozenSetType):
                _check_set(kind)
            items = self.describe(kind.item_type)
            return {"type": "array"} | ({"items": items} if items else {}) | lengths(kind, "Items")
        if isinstance(kind, inspect.TupleType):
            types, least = kind.item_types, len(kind.item_types)
        else:
            types = tuple(field.type for field in kind.fields)
            least = sum(field.required for field in kind.fields)
        out = {"type": "array", "prefixItems": [self.describe(item) for item in types]}
        return out | {"items": False, "minItems": least, "maxItems": len(types)}

    def _name(self, cls: Any) -> str:
        """Return the name of a class, another one for each."""
        if cls not in self._names:
            base = re.sub(r"\W", "_", getattr(cls, "__name__", str(cls)))
            taken = {*self._names.values(), *self.parts}
            same = (base if n == 1 else f"{base}_{n}" for n in range(1, len(taken) + 2))
            self._names[cls] = next(name for name in same if name not in taken)
        return self._names[cls]


def _bare(kind: inspect.Type) -> inspect.Type:
    return _bare(kind.type) if isinstance(kind, inspect.Metadata) else kind


def _limits_ints(kind: inspect.Type) -> bool:
    match kind:
        case inspect.IntType():
            return bool(bounds(kind))
        case inspect.EnumType(cls=cls):
            return issubclass(cls, enum.Enum) and any(isinstance(i.value, int) for i in cls)
        case inspect.LiteralType(values=values):
            return any(isinstance(value, int) for value in values)
        case _:
            return False


def _check_set(kind: inspect.CollectionType) -> None:
    if (kind.min_length or 0) > 1:
        raise Indescribable("a set may be written with the same item twice; use list")
    if not _is_plain(kind.item_type):
        raise Indescribable("a set's items are to be plain values such as str or int; use list")


def _is_plain(kind: inspect.Type) -> bool:
    match _bare(kind):
        case inspect.UnionType(types=types) | inspect.TupleType(item_types=types):
            return all(_is_plain(item) for item in types)
        case inspect.VarTupleType(item_type=item):
            return _is_plain(item)
        case other:
            return isinstance(other, _PLAIN)


def _default(field: inspect.Field) -> dict[str, Any]:
    if field.default is NODEFAULT:
        return {}
    try:
        value = to_builtins(field.default)
        json.dumps(value, allow_nan=False)
        return {"default": value}
    except (TypeError, ValueError, NotImplementedError):
        # A default that JSON cannot say still applies; it just is not shown.
        return {}
