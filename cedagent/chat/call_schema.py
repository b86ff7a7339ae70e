"""Schemas of tools as a call grammar enforces them.

Knows what the grammar library can enforce and what it cannot count; nothing of how a format spells
a call. Invariant: a schema that passes here is enforced to the letter, every other one is refused
with the tool's name.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def check_tool(tool: ToolSpec, problem_of: Problem) -> None:
    """Raise ToolDefinitionError for parameters that cannot be enforced as JSON."""
    if tool.parameters.get("type") != "object":
        raise ToolDefinitionError(
            f'tool {tool.name!r}: expected parameters of "type": "object", '
            f"got {tool.parameters.get('type')!r}"
        )
    _check_counts(tool.name, tool.parameters)
    check_rule(tool.name, json_rule(tool.parameters), problem_of)


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


def _check_counts(name: str, schema: object) -> None:
    """Refuse what the grammar cannot count: a free key may be sampled twice."""
    if isinstance(schema, list | tuple):
        for part in schema:
            _check_counts(name, part)
    elif isinstance(schema, Mapping):
        least = schema.get("minProperties", 0)
        if isinstance(least, int) and least > max(1, len(schema.get("required") or ())):
            raise ToolDefinitionError(
                f"tool {name!r}: expected at most one in minProperties beyond the required keys, "
                f"got {least}; remove that keyword or describe it in words"
            )
        for part in schema.values():
            _check_counts(name, part)
