"""Tells whether a call asks a tool for what is expected, however it is spelled.

Knows JSON, schemas and the calculator's notation; no outputs. Invariants: values are compared as
JSON, so true is not 1 and a text counts letter by letter; what a schema gives as the default may be
given or left out; a formula may differ in what changes neither its numbers nor its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.builtin import CALCULATOR

_WORDS: Final = (
    (r"\bto the power of\b|\*\*", "^"), (r"\b(?:divided by|over)\b", "/"),
    (r"\b(?:multiplied by|times|of)\b", "*"), (r"(?<=[\d)\s])x(?=[\s\d(])", "*"),
    (r"\bplus\b", "+"), (r"\bminus\b", "-"), (r"\bpercent\b", "%"),
    (r"(?<!\w)\s+|\s+(?!\w)", ""),
)  # fmt: skip
_DECIMAL: Final = re.compile(r"\d+\.\d+")


def same_arguments(
    given: Mapping[str, Any], expected: Mapping[str, Any], *, tool: ToolSpec
) -> bool:
    """Tell whether two sets of arguments mean the same to a tool."""
    ours, theirs = (_completed(values, tool.parameters, tool) for values in (given, expected))
    if tool.name == CALCULATOR.name:
        ours, theirs = _read_formulas(ours), _read_formulas(theirs)
    return json_equal(ours, theirs)


def json_equal(a: object, b: object) -> bool:
    """Tell whether two values are the same JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(json_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(json_equal, a, b))
    if isinstance(a, bool) or isinstance(b, bool) or a is None or b is None:
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b
    return isinstance(a, str) and isinstance(b, str) and a == b


def read_formula(formula: str) -> str:
    """Return one spelling for formulas that differ in spaces, words for signs, zeros behind a
    decimal point, or the order of what is added or multiplied.
    """
    text = formula.casefold()
    for pattern, sign in _WORDS:
        text = re.sub(pattern, sign, text)
    text = _DECIMAL.sub(lambda match: match[0].rstrip("0").rstrip("."), text)
    # 92 + 12% is not 12% + 92, and brackets and functions stay as they are.
    if re.search(r"[^\d.+*%]", text) or ("+" in text and "%" in text):
        return text
    return "+".join(sorted("*".join(sorted(term.split("*"))) for term in text.split("+")))


def _read_formulas(arguments: Any) -> Any:
    return {k: read_formula(v) if isinstance(v, str) else v for k, v in arguments.items()}


def _completed(value: Any, schema: Mapping[str, Any], tool: ToolSpec) -> Any:
    """Return a value with the defaults of its schema where nothing is given."""
    if "$ref" in schema:
        schema = tool.parameters["$defs"][schema["$ref"].rpartition("/")[2]]
    properties = schema.get("properties")
    if isinstance(value, Mapping) and properties is not None:
        defaults = {key: one["default"] for key, one in properties.items() if "default" in one}
        return {
            key: _completed(one, properties.get(key, {}), tool)
            for key, one in {**defaults, **value}.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str) and "items" in schema:
        return [_completed(one, schema["items"], tool) for one in value]
    return value
