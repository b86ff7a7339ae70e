"""DSML turns as pieces: marks and the content between them.

Knows the layout of turns, tools and calls, and no token ids: joined, the pieces are the text of a
prompt; with a tokenizer each mark is one id and each content is encoded by itself. Invariant: a
mark stands in the result only where the layout puts it; what a text says is always content.

Layout as in the `encoding/` folder of the DeepSeek-V4.1 release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cedagent.chat.control import Mark
from cedagent.chat.dsml_tags import (
    CALLS,
    INVOKE,
    INVOKE_HEAD,
    JSON_END,
    NAME_END,
    PARAMETER,
    PARAMETER_HEAD,
    TEXT_END,
)
from cedagent.chat.json_line import dumps
from cedagent.errors import ConfigError

Piece = str | Mark

ALIASES: Final[Mapping[str, int]] = {"low": 50, "high": 75, "max": 100}
"""What the release calls levels of effort since 2026-09-10; only the number is ever stored."""
DEFAULT_EFFORT: Final = 75

SCHEMAS_FIELD: Final = "{tool_schemas}"
_FIELDS: Final[Mapping[str, Piece]] = {
    "dsml_token": Mark.DSML,
    "thinking_start_token": Mark.THINK,
    "thinking_end_token": Mark.END_THINK,
    "tc_block_name": CALLS,
    "tool_call_tag_name": INVOKE,
    "tool_parameter_tag_name": PARAMETER,
}
_FIELD: Final = re.compile(r"\{(" + "|".join([*_FIELDS, "tool_schemas"]) + r")\}")

TOOLS_TEMPLATE: Final = """## Tools

The tools listed below are yours to call. Calls stand at the end of what you write, all of them in \
one block of this form:

<{dsml_token}{tc_block_name}>
<{dsml_token}{tool_call_tag_name} name="$TOOL_NAME">
<{dsml_token}{tool_parameter_tag_name} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE\
</{dsml_token}{tool_parameter_tag_name}>
...
</{dsml_token}{tool_call_tag_name}>
<{dsml_token}{tool_call_tag_name} name="$TOOL_NAME2">
...
</{dsml_token}{tool_call_tag_name}>
</{dsml_token}{tc_block_name}>

A text is written as it is, without quotes or escapes, and marked string="true". Any other value \
(number, boolean, null, list, object) is written as JSON and marked string="false". What the \
calls return comes back in their order, each in a <tool_result>. Reasoning, where there is any, \
ends with {thinking_end_token} before the first call.

### Available Tool Schemas

{tool_schemas}

Call these tools only, with the parameters of their schemas.
"""
"""Our own wording around the list of tools, for weights that bring none of theirs."""


def effort_of(effort: int | str | None) -> int:
    """Return a level of effort as a number from 1 to 100; raises ConfigError."""
    if effort is None:
        return DEFAULT_EFFORT
    if isinstance(effort, str) and effort in ALIASES:
        return ALIASES[effort]
    if isinstance(effort, int) and not isinstance(effort, bool) and 1 <= effort <= 100:
        return effort
    raise ConfigError(
        f"effort: expected a whole number from 1 to 100 or one of {', '.join(ALIASES)}, "
        f"got {effort!r}"
    )


def effort_line(effort: int) -> str:
    """Return what stands at the very beginning of a conversation with thinking."""
    return (
        f"Reasoning Effort: {effort} "
        "(range 1-100, the higher the value, the more thorough the reasoning)\n\n"
    )


def opening(*, thinking: bool, effort: int, system: bool) -> list[Piece]:
    """Return what precedes the content of the first turn, a system turn or another one."""
    pieces: list[Piece] = [Mark.BEGIN]
    if thinking or system:
        pieces.append(Mark.SYSTEM)
    if thinking:
        pieces.append(effort_line(effort))
    return pieces


def tool_block(functions: Sequence[Mapping[str, Any]], template: str) -> list[Piece]:
    """Return the template with one compact JSON per function; other braces in it stay as they are.

    The template's own fields become marks; a mark's name inside a schema is content.
    """
    pieces: list[Piece] = []
    at = 0
    for match in _FIELD.finditer(template):
        pieces.append(template[at : match.start()])
        if match[1] == "tool_schemas":
            pieces.append("\n".join(dumps(function) for function in functions))
        else:
            pieces.append(_FIELDS[match[1]])
        at = match.end()
    return [*pieces, template[at:]]


def result_part(result: str) -> str:
    """Return a call's result as a part of a user turn; parts are joined by a blank line."""
    return f"<tool_result>{result}</tool_result>"


def answer_header(*, thinking: bool) -> list[Piece]:
    """Return what the model's output follows on."""
    return [Mark.ASSISTANT, Mark.THINK if thinking else Mark.END_THINK]


def call_block(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Piece]:
    """Return a block of calls, the blank line before it included; nothing for no calls."""
    if not calls:
        return []
    pieces: list[Piece] = ["\n\n<", Mark.DSML, f"{CALLS}>\n"]
    for name, arguments in calls:
        pieces += ["<", Mark.DSML, f"{INVOKE_HEAD}{name}{NAME_END}"]
        for i, (key, value) in enumerate(arguments.items()):
            is_text = isinstance(value, str)
            end = TEXT_END if is_text else JSON_END
            pieces += ["\n<" if i else "<", Mark.DSML, f"{PARAMETER_HEAD}{key}{end}"]
            pieces += [value if is_text else dumps(value), *_end_tag(PARAMETER)]
        pieces += ["\n", *_end_tag(INVOKE), "\n"]
    return [*pieces, *_end_tag(CALLS)]


def _end_tag(name: str) -> list[Piece]:
    return ["</", Mark.DSML, f"{name}>"]
