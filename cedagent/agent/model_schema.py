"""Classes that bring their own JSON schema, as pydantic's models do; no library is imported.

Such a class is known by two methods, `model_json_schema()` and `model_validate(value)`. Its schema
is taken over closed, without titles, and with the formats that this package spells out.
"""

from __future__ import annotations

from typing import Any

from cedagent.agent.texts import by_format

_DROPPED = ("title", "uniqueItems", "discriminator", "$schema", "$id")
_REF = "#/$defs/"


def brings_schema(kind: Any) -> bool:
    """Tell whether a type describes and checks its values itself."""
    methods = (getattr(kind, name, None) for name in ("model_json_schema", "model_validate"))
    return isinstance(kind, type) and all(callable(method) for method in methods)


def schema_of(kind: Any, *, name: str) -> dict[str, dict[str, Any]]:
    """Return the schema of a class under `name`, and what it refers to under `name.` names."""
    given = dict(kind.model_json_schema())
    parts = given.pop("$defs", {})
    found = {name: _taken(given, name)}
    return found | {f"{name}.{key}": _taken(part, name) for key, part in parts.items()}


def _taken(schema: Any, name: str) -> Any:
    """Return a schema as it is offered; references go to `name.` names."""
    if not isinstance(schema, dict):
        return schema
    out = {key: value for key, value in schema.items() if key not in _DROPPED}
    # A tag tells the alternatives apart, so that one of them is any of them.
    if "oneOf" in out:
        out["anyOf"] = out.pop("oneOf")
    if str(out.get("$ref", "")).startswith(_REF):
        out["$ref"] = f"{_REF}{name}.{out['$ref'].removeprefix(_REF)}"
    if out.get("type") == "string" and "pattern" not in out:
        out |= by_format(out.get("format", "")) or {}
    if "properties" in out:
        out["properties"] = {key: _taken(part, name) for key, part in out["properties"].items()}
        out.setdefault("additionalProperties", False)
    for key in ("anyOf", "allOf", "prefixItems"):
        if key in out:
            out[key] = [_taken(part, name) for part in out[key]]
    for key in ("items", "additionalProperties"):
        if key in out:
            out[key] = _taken(out[key], name)
    return out
