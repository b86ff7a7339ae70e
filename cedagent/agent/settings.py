"""Checks the settings of a tool. Knows what they may be, not what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from cedagent.errors import ToolDefinitionError


def check_settings(
    place: str,
    *,
    description: object,
    examples: object,
    timeout: object,
    approve: object,
    max_chars: object,
    paged: object,
) -> None:
    """Check what `@tool` was given; raises ToolDefinitionError with what was expected."""
    is_text = description is None or isinstance(description, str)
    is_pairs = isinstance(examples, Sequence) and all(map(_is_example, examples))
    for name, value, is_right, expected in (
        ("description", description, is_text, "a text"),
        ("examples", examples, is_pairs, "pairs (question, {argument: value})"),
        ("timeout", timeout, _is_above_0(timeout, int, float), "a number of seconds above 0"),
        ("approve", approve, approve in ("always", "ask", "never"), "always, ask or never"),
        ("max_chars", max_chars, _is_above_0(max_chars, int), "a whole number above 0"),
        ("paged", paged, isinstance(paged, bool), "True or False"),
    ):
        if not is_right:
            raise ToolDefinitionError(f"tool {place}: {name}: expected {expected}, got {value!r}")


def _is_above_0(value: object, *kinds: type[int] | type[float]) -> bool:
    if value is None:
        return True
    if not isinstance(value, kinds) or isinstance(value, bool):
        return False
    return isfinite(value) and value > 0


def _is_example(value: object) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:
        return False
    return isinstance(value[0], str) and isinstance(value[1], Mapping)
