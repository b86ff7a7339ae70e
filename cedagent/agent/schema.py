"""From a function's signature to a JSON schema, and from a call's arguments to Python values.

What the schema allows is accepted: the schema is derived from the very types that arguments are
converted to, and a type that a call grammar cannot bound is a ToolDefinitionError with file and
line. An argument is never dropped in silence.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any

import msgspec
from llguidance import LLMatcher

from cedagent.agent.describe import Describer
from cedagent.agent.model_schema import brings_schema
from cedagent.agent.scalars import Indescribable
from cedagent.agent.signature import (
    UnresolvedHint,
    argument_texts,
    check_parameters,
    place_of,
    resolve_hints,
)
from cedagent.chat.call_schema import check_keywords
from cedagent.errors import ToolDefinitionError
from cedagent.events import one_line

_REF = "#/$defs/"


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes: its types, its JSON schema, and the names that get a Context."""

    hints: dict[str, Any]
    parameters: dict[str, Any]
    context_names: tuple[str, ...]

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments of the annotated types; raises ValueError with one line."""
        for name in self.parameters["required"]:
            if name not in arguments:
                raise ValueError(f"the argument {name} is missing")
        extra = _unknown_key(arguments, self.parameters, self.parameters.get("$defs", {}))
        if extra is not None:
            raise ValueError(f"there is no {extra} to give")
        return {
            name: _convert(arguments[name], hint, name=name)
            for name, hint in self.hints.items()
            if name in arguments
        }


def read_signature(function: Callable[..., Any], *, context_type: type) -> Signature:
    """Resolve a function's hints and build its Signature.

    Raises UnresolvedHint while a name in a hint is not defined, ToolDefinitionError for all else.
    """
    parameters = check_parameters(function)
    resolved = resolve_hints(function)
    documented = argument_texts(function)
    hints: dict[str, Any] = {}
    descriptions: dict[str, str | None] = {}
    context_names = []
    for parameter in parameters:
        name = parameter.name
        hint = resolved.get(name, parameter.annotation)
        if _is_context(hint, context_type):
            context_names.append(name)
            continue
        hints[name], text = _split_doc(hint)
        descriptions[name] = text or documented.get(name)
    place, describer = place_of(function), Describer()
    properties = {
        name: _describe(describer, hint, where=f"tool {place}: parameter {name}")
        | ({"description": descriptions[name]} if descriptions[name] else {})
        for name, hint in hints.items()
    }
    for parameter in parameters:
        if parameter.name in hints and parameter.default is not parameter.empty:
            _keep_default(properties[parameter.name], parameter.default)
    by_name = {parameter.name: parameter for parameter in parameters}
    required = [name for name in hints if by_name[name].default is by_name[name].empty]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    schema["additionalProperties"] = False
    if describer.parts:
        schema["$defs"] = describer.parts
    _check_enforceable(schema, where=f"tool {place}")
    return Signature(hints, schema, tuple(context_names))


def encode_other(value: Any) -> Any:
    """Encode what msgspec does not know: paths, and values of classes that bring their schema.

    Raises TypeError for the rest.
    """
    if isinstance(value, PurePath):
        return str(value)
    if brings_schema(type(value)) and hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


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


def _describe(describer: Describer, hint: Any, *, where: str) -> dict[str, Any]:
    try:
        schema = describer.describe(msgspec.inspect.type_info(hint))
        return {key: value for key, value in schema.items() if key != "title"}
    except NameError as error:
        raise UnresolvedHint(f"{where}: {one_line(error)}") from None
    except Indescribable as error:
        raise ToolDefinitionError(f"{where}: {error}") from None
    # Also a class's own `model_json_schema`, which can raise anything.
    except Exception as error:
        raise ToolDefinitionError(
            f"{where}: its type cannot be described to a model: {one_line(error)}"
        ) from None


def _check_enforceable(schema: dict[str, Any], *, where: str) -> None:
    check_keywords(schema, where=where)
    problem = LLMatcher.validate_grammar(f"start: %json {json.dumps(schema)}")
    if problem and not problem.startswith("WARNING"):
        # Behind the first line stands the whole grammar.
        reason = one_line(problem.splitlines()[0]).partition("JSON schema: ")[2]
        raise ToolDefinitionError(
            f"{where}: expected parameters that a grammar can enforce, got: "
            f"{reason or one_line(problem)[:200]}; use a plainer type"
        )


def _keep_default(schema: dict[str, Any], default: Any) -> None:
    try:
        value = msgspec.to_builtins(default, str_keys=True, enc_hook=encode_other)
        json.dumps(value, allow_nan=False)
        schema["default"] = value
    except (TypeError, ValueError, NotImplementedError):
        # A default that JSON cannot say still applies; it just is not shown.
        return


def _convert(value: Any, hint: Any, *, name: str) -> Any:
    try:
        return msgspec.convert(value, hint, str_keys=True, dec_hook=_decode)
    # A class may check its fields as it likes, and raise what it likes.
    except Exception as error:
        raise ValueError(f"{name}: {one_line(error)}") from None


def _decode(kind: Any, value: Any) -> Any:
    if brings_schema(kind):
        return kind.model_validate(value)
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    raise TypeError(f"Expected `{getattr(kind, '__name__', kind)}`, got `{type(value).__name__}`")


def _unknown_key(value: Any, schema: Any, parts: Mapping[str, Any]) -> str | None:
    """Return a key, at any depth, that the schema does not name and conversion would drop."""
    if not isinstance(schema, Mapping):
        return None
    if "$ref" in schema:
        return _unknown_key(value, parts.get(schema["$ref"].removeprefix(_REF)), parts)
    if "anyOf" in schema:
        fitting = [part for part in schema["anyOf"] if _may_be(value, part, parts)]
        found = [_unknown_key(value, part, parts) for part in fitting]
        return None if None in found else next(iter(found), None)
    if isinstance(value, Mapping):
        named, other = schema.get("properties", {}), schema.get("additionalProperties", True)
        for key, item in value.items():
            if key not in named and other is False and "patternProperties" not in schema:
                return str(key)
            if found_key := _unknown_key(item, named.get(key, other), parts):
                return found_key
    if isinstance(value, list):
        first = schema.get("prefixItems", ())
        for i, item in enumerate(value):
            part = first[i] if i < len(first) else schema.get("items")
            if found_key := _unknown_key(item, part, parts):
                return found_key
    return None


def _may_be(value: Any, schema: Any, parts: Mapping[str, Any]) -> bool:
    while "$ref" in schema:
        schema = parts[schema["$ref"].removeprefix(_REF)]
    if not isinstance(value, dict | list):
        return True
    kind = "object" if isinstance(value, dict) else "array"
    return bool(schema.get("type", kind) == kind)
