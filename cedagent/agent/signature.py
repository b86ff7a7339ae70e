"""What can be read from a function without running it: parameters, hints, texts, its place.

Knows nothing of schemas or models. Names and kinds are checked at decoration and resolve no hint;
hints are resolved later, in the function's own module.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

from docstring_parser import parse as parse_docstring

from cedagent.errors import ToolDefinitionError
from cedagent.events import one_line


class UnresolvedHint(ToolDefinitionError):
    """A hint names what is not defined yet; it may be by the time the tool is first used."""


def place_of(function: Callable[..., Any]) -> str:
    """Return `name (file:line)` of a function, for messages."""
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    target = inspect.unwrap(target)
    target = getattr(target, "__func__", target)
    name = getattr(target, "__qualname__", type(target).__name__)
    code = getattr(body_of(target), "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else str(name)


def check_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a model or a Context fills; raises ToolDefinitionError.

    Looks at names and kinds only and resolves no hint, so it can run at decoration.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"tool {place_of(function)}: no signature: {error}") from None
    bound: set[str] = set()
    layer: Any = function
    while isinstance(layer, functools.partial):
        bound |= set(layer.keywords)
        layer = layer.func
    kept = []
    for parameter in parameters:
        if parameter.name in bound:
            continue
        problem = _problem(parameter)
        if problem:
            raise ToolDefinitionError(f"tool {place_of(function)}: {problem}")
        kept.append(parameter)
    return kept


def _problem(parameter: inspect.Parameter) -> str | None:
    name, kind = parameter.name, parameter.kind
    if kind is parameter.VAR_POSITIONAL or kind is parameter.VAR_KEYWORD:
        stars = "*" if kind is parameter.VAR_POSITIONAL else "**"
        return f"{stars}{name} cannot be described to a model; name each parameter"
    if kind is parameter.POSITIONAL_ONLY:
        return f"parameter {name} is positional-only; arguments are passed by name, remove the '/'"
    if parameter.annotation is parameter.empty:
        hint = "; decorate the bound method instead: tool(obj.method)" if name == "self" else ""
        return f"parameter {name} has no type hint; write for example {name}: str{hint}"
    return None


def resolve_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the hints in the function's own module; raises UnresolvedHint, ToolDefinitionError."""
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    try:
        return typing.get_type_hints(body_of(target), include_extras=True)
    except Exception as error:  # a hint is any expression, so resolving it can raise anything
        kind = UnresolvedHint if isinstance(error, NameError) else ToolDefinitionError
        raise kind(
            f"tool {place_of(function)}: a type hint cannot be resolved in its module: "
            f"{type(error).__name__}: {one_line(error)}"
        ) from None


def argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return what the docstring says of each argument, by name."""
    parsed = parse_docstring(inspect.getdoc(_documented(function)) or "")
    return {p.arg_name: " ".join((p.description or "").split()) for p in parsed.params}


def description_of(function: Callable[..., Any]) -> str:
    """Return the docstring without its section on arguments, or ""."""
    parsed = parse_docstring(inspect.getdoc(_documented(function)) or "")
    return "\n\n".join(t for t in (parsed.short_description, parsed.long_description) if t)


def _documented(function: Callable[..., Any]) -> Any:
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    return body_of(target)


def body_of(target: Any) -> Any:
    """Return the function that calling `target` runs: itself, or its type's `__call__`."""
    if inspect.isroutine(target) or isinstance(target, type):
        return target
    return type(target).__call__
