"""Shorthand for JSON schemas of tools, in the layout that tools made from functions have.

Knows JSON schema only. Invariant: a parameter with a default is optional, any other is required;
key order is that of the runtime: type, then description, then default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cedagent.chat.template import ToolSpec

Schema = dict[str, Any]
REQUIRED: Final = object()
"""Stands for no default."""


def tool(
    name: str,
    description: str,
    parameters: Mapping[str, Schema],
    *,
    parts: Mapping[str, Schema] | None = None,
    examples: tuple[tuple[str, Mapping[str, Any]], ...] = (),
) -> ToolSpec:
    """Return a tool; `parts` go under `$defs`."""
    schema = record(parameters)
    if parts:
        schema["$defs"] = dict(parts)
    return ToolSpec(name, description, schema, examples)


def text(about: str = "", *, default: Any = REQUIRED) -> Schema:
    """Return a string's schema."""
    return _with({"type": "string"}, about, default)


def whole(
    about: str = "", *, least: int | None = None, most: int | None = None, default: Any = REQUIRED
) -> Schema:
    """Return an integer's schema."""
    return _with({"type": "integer"} | _bounds(least, most), about, default)


def real(
    about: str = "",
    *,
    least: float | None = None,
    most: float | None = None,
    default: Any = REQUIRED,
) -> Schema:
    """Return a number's schema."""
    return _with({"type": "number"} | _bounds(least, most), about, default)


def flag(about: str = "", *, default: Any = REQUIRED) -> Schema:
    """Return a boolean's schema."""
    return _with({"type": "boolean"}, about, default)


def one_of(*values: Any, about: str = "", default: Any = REQUIRED) -> Schema:
    """Return the schema of fixed values."""
    return _with({"enum": list(values)}, about, default)


def list_of(items: Schema, about: str = "", *, default: Any = REQUIRED, **lengths: int) -> Schema:
    """Return an array's schema."""
    return _with({"type": "array", "items": items, **lengths}, about, default)


def maybe(schema: Schema, about: str = "", *, default: Any = None) -> Schema:
    """Return the schema of a value that may be null, by default optional."""
    return _with({"anyOf": [schema, {"type": "null"}]}, about, default)


def record(properties: Mapping[str, Schema], about: str = "") -> Schema:
    """Return an object's schema."""
    required = [name for name, schema in properties.items() if "default" not in schema]
    schema = {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }
    return _with(schema, about, REQUIRED)


def part(name: str, about: str = "") -> Schema:
    """Return a reference to a schema under `$defs`."""
    return _with({"$ref": f"#/$defs/{name}"}, about, REQUIRED)


def day(about: str = "", *, default: Any = REQUIRED) -> Schema:
    """Return the schema of a date as digits."""
    shape = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}
    return _with(shape, about, default)


def optional_names(spec: ToolSpec) -> frozenset[str]:
    """Return the parameters that a call may leave out."""
    required = spec.parameters.get("required", ())
    return frozenset(name for name in spec.parameters["properties"] if name not in required)


def in_order(spec: ToolSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in the schema's order, which the call grammar enforces."""
    return _in_order(spec.parameters, arguments)


def _in_order(schema: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    ordered = {}
    for name, inner in schema["properties"].items():
        if name in values:
            value = values[name]
            is_object = isinstance(value, Mapping) and "properties" in inner
            ordered[name] = _in_order(inner, value) if is_object else value
    return ordered


def _bounds(least: float | None, most: float | None) -> Schema:
    bounds = {"minimum": least, "maximum": most}
    return {word: value for word, value in bounds.items() if value is not None}


def _with(schema: Schema, about: str, default: Any) -> Schema:
    if about:
        schema["description"] = about
    if default is not REQUIRED:
        schema["default"] = default
    return schema
