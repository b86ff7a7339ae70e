"""From a function's signature to a JSON schema, and from a call's arguments to Python values.

Does both through one msgspec struct per tool, so that what the model is told and what is accepted
cannot differ. Hints are resolved in the function's own module, once, when first needed. An argument
is never dropped in silence: what cannot be described is a ToolDefinitionError with file and line.
"""

from __future__ import annotations

import datetime
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any

import msgspec

from cedagent.agent.signature import argument_texts, check_parameters, place_of, resolve_hints
from cedagent.errors import ToolDefinitionError


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes: its struct, its JSON schema, and the names that get a Context."""

    struct: type[msgspec.Struct]
    parameters: dict[str, Any]
    context_names: tuple[str, ...]

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments of the annotated types; raises ValueError with one line."""
        given = dict(arguments)
        value = msgspec.convert(given, self.struct, str_keys=True, dec_hook=_decode)
        taken = msgspec.to_builtins(value, str_keys=True, enc_hook=encode_other)
        extra = _extra_key(given, taken)
        if extra:
            raise ValueError(f"Object contains unknown field `{extra}`")
        found = ((name, getattr(value, name)) for name in self.struct.__struct_fields__)
        return {name: item for name, item in found if item is not msgspec.UNSET}


def read_signature(function: Callable[..., Any], *, name: str, context_type: type) -> Signature:
    """Resolve a function's hints and build its Signature; raises ToolDefinitionError."""
    parameters = check_parameters(function)
    hints = resolve_hints(function)
    texts = argument_texts(function)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    context_names = []
    plain = []
    for parameter in parameters:
        hint = hints.get(parameter.name, parameter.annotation)
        if _is_context(hint, context_type):
            context_names.append(parameter.name)
            continue
        hint, text = _split_doc(hint)
        text = text or texts.get(parameter.name)
        hint = _with_format(hint)
        if text:
            hint = Annotated[hint, msgspec.Meta(description=text)]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            # UNSET, so that the function's own default applies, whatever its type.
            fields.append((parameter.name, hint | msgspec.UnsetType, msgspec.UNSET))
        plain.append(parameter)
    try:
        struct = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=True, module=__name__
        )
        (root,), components = msgspec.json.schema_components(
            [struct], schema_hook=_describe, ref_template="#/$defs/{name}"
        )
    except (TypeError, ValueError, NotImplementedError, msgspec.ValidationError) as error:
        line = str(error).splitlines()[0]
        raise ToolDefinitionError(
            f"tool {place_of(function)}: a type hint cannot be described to a model: {line}"
        ) from None
    schema = components.pop(root["$ref"].removeprefix("#/$defs/"))
    schema = _tidy(schema)
    for parameter in plain:
        if parameter.default is not parameter.empty:
            _keep_default(schema["properties"][parameter.name], parameter.default)
    if components:
        schema["$defs"] = {key: _tidy(value) for key, value in components.items()}
    return Signature(struct, schema, tuple(context_names))


def _is_context(hint: Any, context_type: type) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_is_context(item, context_type) for item in typing.get_args(hint))
    return isinstance(hint, type) and issubclass(hint, context_type)


def _split_doc(hint: Any) -> tuple[Any, str | None]:
    """Take `Annotated[T, "doc"]` apart; other annotations stay on the type."""
    if typing.get_origin(hint) is not Annotated:
        return hint, None
    base, *extras = typing.get_args(hint)
    texts = [item for item in extras if isinstance(item, str)]
    for item in extras:
        if isinstance(item, msgspec.Meta):
            base = Annotated[base, item]
    return base, texts[0] if texts else None


def _with_format(hint: Any) -> Any:
    """Say `date-time` of a datetime, so that only what parses can be written."""
    if hint is datetime.datetime:
        return Annotated[hint, msgspec.Meta(extra_json_schema={"format": "date-time"})]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.Union[tuple(_with_format(item) for item in typing.get_args(hint))]  # noqa: UP007 (built from a tuple)
    return hint


def _tidy(schema: Any) -> Any:
    """Drop titles and close objects; sets lose `uniqueItems`, which a grammar cannot express."""
    if not isinstance(schema, dict):
        return schema
    out = {key: value for key, value in schema.items() if key not in ("title", "uniqueItems")}
    if "properties" in out:
        out["properties"] = {key: _tidy(value) for key, value in out["properties"].items()}
        out.setdefault("additionalProperties", False)
    for key in ("anyOf", "prefixItems"):
        if key in out:
            out[key] = [_tidy(item) for item in out[key]]
    for key in ("items", "additionalProperties"):
        if key in out:
            out[key] = _tidy(out[key])
    return out


def _keep_default(schema: dict[str, Any], default: Any) -> None:
    try:
        schema["default"] = msgspec.to_builtins(default, enc_hook=encode_other)
    except (TypeError, ValueError, NotImplementedError):
        # A default that JSON cannot say still applies; it just is not shown.
        return


def encode_other(value: Any) -> Any:
    """Encode what msgspec does not know: paths as text; raises TypeError for the rest."""
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


def _describe(kind: Any) -> dict[str, Any]:
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return {"type": "string"}
    raise TypeError(f"type {getattr(kind, '__name__', kind)} is not supported")


def _decode(kind: type, value: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    raise TypeError(f"Expected `{getattr(kind, '__name__', kind)}`, got `{type(value).__name__}`")


def _extra_key(given: Any, taken: Any) -> str | None:
    """Return a key of `given` that conversion dropped, at any depth."""
    if isinstance(given, dict) and isinstance(taken, dict):
        for key, value in given.items():
            if key not in taken:
                return str(key)
            if found := _extra_key(value, taken[key]):
                return found
    elif isinstance(given, list) and isinstance(taken, list) and len(given) == len(taken):
        for item, kept in zip(given, taken, strict=True):
            if found := _extra_key(item, kept):
                return found
    return None
