"""Samples outputs under a grammar in tests: tools of every JSON type, and picks for all tempers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema

from cedagent.chat import ChatFormat, Constraint, Output, Tokenizer, ToolSpec

Pick = Callable[[list[int]], int]


def obj(properties: Mapping[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "nothing": obj({}),
    "scalars": obj(
        {
            "text": {"type": "string", "description": "Ünïcode “quotes” \\ 日本"},
            "whole": {"type": "integer"},
            "real": {"type": "number"},
            "flag": {"type": "boolean"},
            "none": {"type": "null"},
        },
        *("text", "whole", "real", "flag", "none"),
    ),
    "ranges": obj(
        {
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "below": {"type": "integer", "exclusiveMaximum": -3},
            "share": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            "big": {"type": "number", "exclusiveMinimum": 999999.5},
            "step": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
        },
        *("days", "below", "share", "big", "step"),
    ),
    "optional": obj({"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"enum": [1]}}, "b"),
    "choices": obj(
        {
            "unit": {"enum": ["°C", "°F", 3, None, True, 1.5]},
            "fixed": {"const": {"a": [1, "é"]}},
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "types": {"type": ["boolean", "null"]},
        },
        *("unit", "fixed", "either", "types"),
    ),
    "nested": obj(
        {
            "point": obj({"x": {"type": "integer"}, "tag": {"type": ["null"]}}, "x"),
            "rows": {
                "type": "array",
                "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
                "minItems": 1,
                "maxItems": 3,
            },
            "pair": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
                "minItems": 2,
                "items": False,
            },
        },
        *("point", "rows", "pair"),
    ),
    "strings": obj(
        {
            "code": {"type": "string", "pattern": "^[a-z]{2}[0-9]+$"},
            "short": {"type": "string", "minLength": 1, "maxLength": 4},
            "day": {"type": "string", "format": "date"},
        },
        *("code", "short", "day"),
    ),
    "recursive": obj(
        {"tree": {"$ref": "#/$defs/Tree"}},
        "tree",
        **{
            "$defs": {
                "Tree": obj(
                    {
                        "value": {"type": "boolean"},
                        "left": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}]},
                    },
                    *("value", "left"),
                )
            }
        },
    ),
    "open": {"type": "object", "additionalProperties": {"type": "integer"}},
    "anything": obj({"x": {}, "größe": {"type": "object"}}, "x"),
}
TOOLS = [ToolSpec(name, f"Tool “{name}”.", schema) for name, schema in SCHEMAS.items()]


def allowed(constraint: Constraint) -> list[int]:
    bits = int.from_bytes(constraint.mask(), "little")
    return [i for i, bit in enumerate(reversed(bin(bits)[2:])) if bit == "1"]


def sample(
    constraint: Constraint,
    tokenizer: Tokenizer,
    fmt: ChatFormat,
    pick: Pick,
    limit: int = 500,
    marks: frozenset[int] = frozenset(),
) -> list[int]:
    """Sample ids until the output ends; checks each mask on the way.

    `marks` are the control tokens that calls are made of.
    """
    ids: list[int] = []
    while not constraint.is_finished() and len(ids) < limit:
        choices = allowed(constraint)
        assert choices
        assert set(choices) & tokenizer.control_ids <= fmt.stop_ids | marks
        assert choices[-1] < tokenizer.vocab_size
        assert len(constraint.mask()) == (tokenizer.vocab_size + 7) // 8
        assert constraint.forced() == (choices[0] if len(choices) == 1 else None)
        ids.append(pick(choices))
        constraint.advance(ids[-1])
    return ids


def check_calls(output: Output) -> None:
    """Every call of a finished output is right; of a cut one, every call but the last."""
    calls = output.calls if output.complete else output.calls[:-1]
    for call in calls:
        assert call.error is None, call
        assert call.name in SCHEMAS
        # `format` stays the annotation that the standard makes it: a date may be 30 February.
        jsonschema.Draft202012Validator(SCHEMAS[call.name]).validate(call.arguments)


def random_pick(seed: int, tokenizer: Tokenizer) -> Pick:
    """Uniform over the allowed ids, leaning to JSON marks so that strings come to an end."""
    rng = random.Random(seed)
    marks = {
        i
        for i in range(tokenizer.vocab_size)
        if set(tokenizer.token_bytes(i) or b"") & set(b'"}],')
    } | set(tokenizer.control_ids)

    def pick(choices: list[int]) -> int:
        ends = [i for i in choices if i in marks]
        return rng.choice(ends if ends and rng.random() < 0.3 else choices)

    return pick


def lowest(choices: list[int]) -> int:
    return choices[0]


def highest(choices: list[int]) -> int:
    return choices[-1]
