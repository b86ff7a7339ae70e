"""What a parameter's schema allows in DSML: texts as a regular expression, all else as JSON.

Knows JSON schema, and Lark terminals of the grammar library; nothing of tags. Invariant: a text
that the expression matches, and any JSON of the other schema, validates against the parameter's
own; a schema that cannot be divided so is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cedagent.chat.call_schema import NOTES, literal
from cedagent.chat.text_formats import FORMATS
from cedagent.errors import ToolDefinitionError

_OTHER_TYPES: Final = ("null", "boolean", "number", "array", "object")
ANY_TEXT: Final = "/(?s:.*)/"


@dataclass(frozen=True, slots=True)
class ValueForms:
    """The two ways to write one value; at least one of them is there."""

    text: str | None
    """A Lark expression over terminals for values that are strings."""
    json: Mapping[str, Any] | None
    """A schema for values that are no strings."""


def forms_of(schema: Any, root: Mapping[str, Any]) -> ValueForms:
    """Divide a schema; `root` holds its definitions. Raises ToolDefinitionError."""
    forms = _divide(schema, root, ())
    if forms.json is None:
        return forms
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return ValueForms(forms.text, {**forms.json, **shared})


def _divide(schema: Any, root: Mapping[str, Any], seen: tuple[str, ...]) -> ValueForms:
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        return ValueForms(None, None)
    given = schema.get("type")
    types = [given] if isinstance(given, str) else given
    if types is not None and "string" not in types:
        return ValueForms(None, schema)
    keys = schema.keys() - NOTES
    if keys == {"$ref"}:
        return _divide(_target(schema["$ref"], root, seen), root, (*seen, schema["$ref"]))
    for union in ("anyOf", "oneOf"):
        if keys == {union}:
            return _unite(union, [_divide(part, root, seen) for part in schema[union]])
    if keys == {"allOf"} and len(schema["allOf"]) == 1:
        return _divide(schema["allOf"][0], root, seen)
    if keys & {"$ref", "anyOf", "oneOf", "allOf", "not", "if"}:
        raise ToolDefinitionError(
            f"expected one of $ref, anyOf, oneOf and allOf at a time, got {', '.join(sorted(keys))}"
        )
    if "const" in keys:
        schema = {**schema, "enum": [schema["const"]]}
    if "enum" in schema:
        texts = [value for value in schema["enum"] if isinstance(value, str)]
        others = [value for value in schema["enum"] if not isinstance(value, str)]
        text = _all_of([" | ".join(map(literal, texts)), *_limits(schema)]) if texts else None
        rest = None
        if others and types != ["string"]:
            rest = {key: schema[key] for key in schema if key not in ("enum", "const", "type")}
            rest = {**rest, "enum": others} | ({"type": _without(types)} if types else {})
        return ValueForms(text, rest)
    text = _all_of(list(_limits(schema)) or [ANY_TEXT])
    if types == ["string"]:
        return ValueForms(text, None)
    return ValueForms(text, {**schema, "type": _without(types) if types else list(_OTHER_TYPES)})


def _unite(union: str, parts: Sequence[ValueForms]) -> ValueForms:
    texts = [f"({part.text})" for part in parts if part.text is not None]
    others = [part.json for part in parts if part.json is not None]
    rest = others[0] if len(others) == 1 else {union: others} if others else None
    return ValueForms(" | ".join(texts) or None, rest)


def _without(types: Sequence[str]) -> list[str]:
    return [name for name in types if name != "string"]


def _all_of(terms: Sequence[str]) -> str:
    return " & ".join(f"({term})" for term in terms)


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield a terminal for each keyword that says something about a text."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        yield f"/(?s:.{{{least},{'' if most is None else most}}})/"
    if "format" in schema:
        if schema["format"] not in FORMATS:
            raise ToolDefinitionError(
                f"expected a format of {', '.join(FORMATS)}, got {schema['format']!r}"
            )
        yield f"/{FORMATS[schema['format']]}/"
    if "pattern" in schema:
        yield f"/{_anchored(schema['pattern'])}/"


def _anchored(pattern: str) -> str:
    """Return a pattern that may match anywhere as one that matches the whole."""
    parts = []
    for part in _alternatives(pattern):
        start, end = part.startswith("^"), part.endswith("$") and _is_plain(part, len(part) - 1)
        inner = part[start : len(part) - end]
        parts.append(f"{'' if start else '(?s:.*)'}({inner}){'' if end else '(?s:.*)'}")
    joined = "|".join(parts)
    return "".join(
        f"\\{char}" if char == "/" and _is_plain(joined, i) else char
        for i, char in enumerate(joined)
    )


def _alternatives(pattern: str) -> list[str]:
    """Split at the `|` outside groups and classes."""
    parts, start, depth, in_class = [], 0, 0, False
    for i, char in enumerate(pattern):
        if not _is_plain(pattern, i):
            continue
        if in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and not depth:
            parts.append(pattern[start:i])
            start = i + 1
        elif char in "^$" and not (
            (char == "^" and i == start)
            or (char == "$" and not depth and pattern[i + 1 : i + 2] in ("", "|"))
        ):
            raise ToolDefinitionError(f"expected ^ and $ at the ends alone, got {pattern!r}")
    return [*parts, pattern[start:]]


def _is_plain(pattern: str, i: int) -> bool:
    """Whether no backslash escapes the character."""
    before = pattern[:i]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 0


def _target(ref: str, root: Mapping[str, Any], seen: tuple[str, ...]) -> Any:
    if ref in seen:
        raise ToolDefinitionError(
            f"expected a $ref that leads to a schema, got {ref!r} in a circle"
        )
    found: Any = root
    for key in ref.removeprefix("#/").split("/"):
        key = key.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    if found is None:
        raise ToolDefinitionError(f"expected a $ref into $defs, got {ref!r}")
    return found
