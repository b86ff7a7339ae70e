"""Schemas of tools as a call grammar enforces them.

Knows what the grammar library can enforce and what it cannot count; nothing of how a format spells
a call. Invariant: a schema that passes here is enforced to the letter, every other one is refused
with the tool's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cedagent.chat.json_line import LAYOUT, dumps
from cedagent.chat.template import Problem, ToolSpec
from cedagent.errors import ToolDefinitionError

NOTES: Final = frozenset(
    [
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "$comment", "$defs", "definitions", "discriminator"),
    ]
)
"""Keywords that allow and forbid nothing by themselves."""
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose keys are names, not keywords."""
_VALUES: Final = ("const", "enum", "default", "examples")
"""Keywords with values in them, not schemas."""


def check_tool(tool: ToolSpec, problem_of: Problem) -> None:
    """Raise ToolDefinitionError for parameters that cannot be enforced as JSON."""
    if tool.parameters.get("type") != "object":
        raise ToolDefinitionError(
            f'tool {tool.name!r}: expected parameters of "type": "object", '
            f"got {tool.parameters.get('type')!r}"
        )
    check_writable([tool])
    try:
        dumps([tool.name, tool.parameters]).encode()
    except UnicodeEncodeError:
        raise ToolDefinitionError(
            f"tool {tool.name!r}: expected text that UTF-8 can hold, got half a surrogate pair"
        ) from None
    check_keywords(tool.parameters, where=f"tool {tool.name!r}")
    check_rule(tool.name, json_rule(tool.parameters), problem_of)


def check_writable(tools: Sequence[ToolSpec]) -> None:
    """Raise ToolDefinitionError for a tool that cannot be shown to a model as JSON."""
    for tool in tools:
        try:
            dumps([tool.name, tool.description, tool.parameters, tool.examples])
        except ValueError as error:
            raise ToolDefinitionError(f"tool {tool.name!r}: {error}") from None


def check_rule(name: str, rule: str, problem_of: Problem) -> None:
    """Raise ToolDefinitionError if the body of a rule cannot be compiled."""
    problem = problem_of(f"start: {rule}")
    if problem:
        raise ToolDefinitionError(
            f"tool {name!r}: expected a parameter schema that can be enforced, got: "
            f"{problem}; remove that keyword or describe it in words"
        )


def json_rule(schema: Mapping[str, Any]) -> str:
    """Return the Lark rule for JSON of a schema, separators fixed, no other white space."""
    return f"%json {dumps({**schema, 'x-guidance': LAYOUT})}"


def literal(text: str) -> str:
    """Return a text as a Lark string."""
    return dumps(text)


def check_keywords(schema: object, *, where: str) -> None:
    """Raise ToolDefinitionError, with `where` in front, for what the grammar cannot count.

    A free key may be sampled twice, and only multiples of whole numbers survive the rounding of
    decimals: as doubles, 0.3 is no multiple of 0.1.
    """
    if isinstance(schema, list | tuple):
        for part in schema:
            check_keywords(part, where=where)
    elif isinstance(schema, Mapping):
        least = schema.get("minProperties", 0)
        if isinstance(least, int) and least > max(1, len(schema.get("required") or ())):
            raise ToolDefinitionError(
                f"{where}: expected at most one in minProperties beyond the required keys, "
                f"got {least}; remove that keyword or describe it in words"
            )
        step = schema.get("multipleOf", 1)
        if isinstance(step, float) or (isinstance(step, int) and step < 1):
            raise ToolDefinitionError(
                f"{where}: expected a whole number of 1 or more as multipleOf, got {step}; "
                "ask for an integer in a smaller unit, or describe it in words"
            )
        for key, part in schema.items():
            if key in _NAMED and isinstance(part, Mapping):
                check_keywords(list(part.values()), where=where)
            elif key not in _VALUES:
                check_keywords(part, where=where)
