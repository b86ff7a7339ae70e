"""The same tools in other clothes: other names, other parameter names, sparser schemas.

So that the names of known tools have to be read, not remembered. Knows JSON schemas. Invariant: a
call means the same before and after, and its arguments stay in the schema's order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.builtin import BUILTIN, MORE
from cedagent.upcycle.data.conversation import Conversation, Said, SpokenCall, Turn
from cedagent.upcycle.data.draw import Draw

_FIXED: Final = frozenset(spec.name for spec in (*BUILTIN, MORE))
_OTHER_NAMES: Final = {
    "city": "location place_name municipality", "text": "content words body_text",
    "name": "full_name who person_name", "date": "day on_day when",
    "path": "file filename file_path",
    "product": "article item", "person": "recipient receiver to_person", "key": "entry key_name",
    "amount": "sum value", "title": "heading caption", "room": "room_name where",
    "time": "at clock_time", "word": "term token", "order": "order_id order_no",
    "parcel": "parcel_id shipment", "origin": "from_place start", "destination": "to_place goal",
    "expression": "formula sum", "folder": "directory dir", "url": "address link",
    "ticket": "ticket_id ticket_no", "numbers": "values data", "items": "entries things",
    "service": "service_name unit", "table": "table_name sheet",
}  # fmt: skip
_OTHER_VERBS: Final = {
    "get": "fetch read lookup query", "set": "change put update", "send": "deliver post write",
    "create": "add new make", "find": "lookup search get", "list": "show get all",
    "read": "open get show", "search": "find query", "book": "reserve order", "show": "get display",
    "convert": "change transform", "delete": "remove cancel", "count": "number_of measure",
    "track": "follow locate", "place": "make submit", "save": "store keep", "log": "record note",
    "play": "start", "move": "drive", "describe": "measure", "fetch": "get load",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Style:
    spec: ToolSpec
    parameters: Mapping[str, str]
    """Old name of a parameter -> its new one."""


def restyled(conversation: Conversation, draw: Draw) -> Conversation:
    """Return the conversation with some of its tools changed, calls and worked examples with them.

    Messages and results stay; a tool that one of them names keeps its name.
    """
    texts = [turn.user for turn in conversation.turns]
    texts += [said.text for turn in conversation.turns for said in turn.outputs]
    texts += [r for turn in conversation.turns for said in turn.outputs for r in said.results]
    spoken = "\n".join(texts)
    styles: dict[str, _Style] = {}
    taken = {spec.name for spec in conversation.tools}
    for spec in conversation.tools:
        if draw.chance(0.15 if spec.name in _FIXED else 0.75):
            style = _style(draw, spec, keep_name=spec.name in spoken)
            if style.spec.name == spec.name or style.spec.name not in taken:
                taken.add(style.spec.name)
                styles[spec.name] = style
    if not styles:
        return conversation
    tools = [styles[spec.name].spec if spec.name in styles else spec for spec in conversation.tools]
    turns = [
        Turn(turn.user, tuple(_said(said, styles) for said in turn.outputs))
        for turn in conversation.turns
    ]
    return replace(conversation, tools=tuple(tools), turns=tuple(turns))


def _said(said: Said, styles: Mapping[str, _Style]) -> Said:
    return replace(said, calls=tuple(_call(call, styles) for call in said.calls))


def _call(call: SpokenCall, styles: Mapping[str, _Style]) -> SpokenCall:
    name, arguments = call
    if name not in styles:
        return call
    style = styles[name]
    return style.spec.name, {style.parameters.get(key, key): v for key, v in arguments.items()}


def _style(draw: Draw, spec: ToolSpec, *, keep_name: bool) -> _Style:
    properties = spec.parameters["properties"]
    renamed = {name: name for name in properties}
    for name in properties:
        others = [new for new in _OTHER_NAMES.get(name, "").split() if new not in renamed.values()]
        if others and draw.chance(0.5):
            renamed[name] = draw.pick(others)
    if draw.chance(0.15):
        renamed = {name: _camel(new) for name, new in renamed.items()}
    if len(set(renamed.values())) < len(renamed):
        renamed = {name: name for name in properties}
    schema = {**spec.parameters}
    schema["properties"] = {renamed[name]: value for name, value in properties.items()}
    schema["required"] = [renamed[name] for name in spec.parameters.get("required", ())]
    for drop, share in (("description", 0.3), ("default", 0.25), ("pattern", 0.3)):
        if draw.chance(share):
            schema["properties"] = {
                name: {key: v for key, v in value.items() if key != drop}
                for name, value in schema["properties"].items()
            }
    if draw.chance(0.35):
        schema.pop("additionalProperties", None)
    if draw.chance(0.2):
        schema["properties"] = {
            name: _reordered(value) for name, value in schema["properties"].items()
        }
    name = spec.name if keep_name or draw.chance(0.3) else _other_name(draw, spec.name)
    examples = tuple(
        (question, {renamed.get(key, key): v for key, v in arguments.items()})
        for question, arguments in spec.examples
    )
    return _Style(ToolSpec(name, spec.description, schema, examples), renamed)


def _reordered(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its description first, as many people write them."""
    first = {key: schema[key] for key in ("description",) if key in schema}
    return {**first, **schema}


def _other_name(draw: Draw, name: str) -> str:
    verb, _, rest = name.partition("_")
    kind = draw.whole(0, 4)
    if kind == 0:
        return _camel(name)
    if kind == 1:
        return name.replace("_", "-")
    if kind == 2 and rest:
        return f"{rest}_{verb}"
    if verb in _OTHER_VERBS and rest:
        return f"{draw.pick(_OTHER_VERBS[verb].split())}_{rest}"
    return f"{name}_{draw.pick(('tool', 'v2', 'now', 'fn'))}"


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)
