"""Conversations as lists of messages, in the shape that chat services use, to DSML pieces.

Knows roles, tool calls and their results, and what a longer conversation forgets; no token ids.
Invariant: a message that has no place in the layout is refused, never left out.

Order of turns and the rule for dropped reasoning as in the `encoding/` folder of the
DeepSeek-V4.1 release.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cedagent.chat.control import Mark
from cedagent.chat.dsml_render import (
    Piece,
    answer_header,
    call_block,
    opening,
    result_part,
    tool_block,
)
from cedagent.chat.json_line import dumps
from cedagent.errors import ChatFormatError

Message = Mapping[str, Any]

_ROLES: Final = ("system", "developer", "user", "tool", "assistant", "latest_reminder")
_TASKS: Final = {
    "action": Mark.ACTION,
    "query": Mark.QUERY,
    "authority": Mark.AUTHORITY,
    "domain": Mark.DOMAIN,
    "title": Mark.TITLE,
    "read_url": Mark.READ_URL,
}


@dataclass(slots=True)
class _Part:
    text: str
    result_of: str | None = None
    """Id of the call that this is the result of; empty if none is named."""


@dataclass(slots=True)
class _Turn:
    role: str
    parts: list[_Part]
    reasoning: str = ""
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    call_ids: list[str] = field(default_factory=list)
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    response_format: Any = None
    task: str | None = None

    @property
    def content(self) -> str:
        return "\n\n".join(
            part.text if part.result_of is None else result_part(part.text) for part in self.parts
        )


def render_messages(
    messages: Sequence[Message],
    *,
    tools: Sequence[Message] = (),
    template: str,
    thinking: bool,
    effort: int,
    drop_thinking: bool,
) -> list[Piece]:
    """Return a conversation up to where the model goes on; raises ChatFormatError.

    `tools` are added to the first system turn, which is made if there is none. `drop_thinking`
    leaves out the reasoning before the last user turn, unless there are tools.
    """
    turns = _merged([_turn(i, message) for i, message in enumerate(messages)])
    if tools:
        if not turns or turns[0].role != "system":
            turns.insert(0, _Turn("system", []))
        turns[0].tools[:0] = [_function(tool) for tool in tools]
    if not turns:
        raise ChatFormatError("messages: expected at least one, got none")
    drop = thinking and drop_thinking and not any(turn.tools for turn in turns)
    if drop:
        last = _last_user(turns)
        turns = [
            replace(turn, reasoning="") if i < last else turn
            for i, turn in enumerate(turns)
            if turn.role != "developer" or i >= last
        ]
    last = _last_user(turns)
    pieces = opening(thinking=thinking, effort=effort, system=turns[0].role == "system")
    for i, turn in enumerate(turns):
        follows = turns[i + 1].role if i + 1 < len(turns) else None
        before = turns[i - 1] if i else None
        reasons = thinking and (not drop or i > last) and (before is None or before.task is None)
        pieces += _body(turn, first=i == 0, template=template, reasons=reasons)
        if follows is None or follows in ("assistant", "latest_reminder"):
            pieces += _header(turn, first=i == 0, thinking=thinking and (not drop or i >= last))
    return pieces


def _body(turn: _Turn, *, first: bool, template: str, reasons: bool) -> list[Piece]:
    pieces: list[Piece] = []
    match turn.role:
        case "assistant":
            if reasons:
                pieces += [turn.reasoning, Mark.END_THINK]
            return [*pieces, turn.content, *call_block(turn.calls), Mark.END]
        case "latest_reminder":
            return [Mark.REMINDER, turn.content]
        case "system":
            # The mark of the first one stands before the effort line.
            pieces += [] if first else [Mark.SYSTEM]
        case _:
            pieces.append(Mark.USER)
    pieces.append(turn.content)
    if turn.tools:
        pieces += ["\n\n", *tool_block(turn.tools, template)]
    if turn.response_format:
        schema = dumps(turn.response_format)
        pieces.append(f"\n\n## Response Format:\n\nReply with JSON of this schema alone:\n{schema}")
    return pieces


def _header(turn: _Turn, *, first: bool, thinking: bool) -> list[Piece]:
    if turn.task == "action":
        return [*answer_header(thinking=thinking), Mark.ACTION]
    if turn.task is not None:
        return [_TASKS[turn.task]]
    return answer_header(thinking=thinking) if _is_user_like(turn, first=first) else []


def _is_user_like(turn: _Turn, *, first: bool) -> bool:
    return turn.role in ("user", "developer") or (turn.role == "system" and not first)


def _last_user(turns: Sequence[_Turn]) -> int:
    found = [i for i, turn in enumerate(turns) if _is_user_like(turn, first=i == 0)]
    return found[-1] if found else -1


def _merged(turns: Sequence[_Turn]) -> list[_Turn]:
    """Join users' messages and results that follow each other; results stand in call order."""
    merged: list[_Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if turn.role == "user" and last is not None and last.role == "user" and last.task is None:
            last.parts += turn.parts
            last.task = turn.task
        else:
            merged.append(turn)
    order: dict[str, int] = {}
    for turn in merged:
        if turn.call_ids:
            order = {call_id: i for i, call_id in enumerate(turn.call_ids) if call_id}
        elif turn.role == "user":
            places = [i for i, part in enumerate(turn.parts) if part.result_of is not None]
            results = [turn.parts[i] for i in places]
            results.sort(key=lambda part: order.get(part.result_of or "", 0))
            for i, part in zip(places, results, strict=True):
                turn.parts[i] = part
    return merged


def _turn(i: int, message: Message) -> _Turn:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in _ROLES:
        raise ChatFormatError(f"message {i}: expected a role of {', '.join(_ROLES)}, got {role!r}")
    where = f"message {i} ({role})"
    parts = _parts(message.get("content"), where)
    if role == "tool":
        text = "\n\n".join(part.text for part in parts)
        return _Turn("user", [_Part(text, str(message.get("tool_call_id") or ""))])
    turn = _Turn(role, parts, response_format=message.get("response_format"))
    tools, task = message.get("tools"), message.get("task")
    if (tools or turn.response_format) and role not in ("system", "developer"):
        raise ChatFormatError(f"{where}: expected tools and formats in system messages alone")
    turn.tools = [_function(tool) for tool in tools or ()]
    if task is not None:
        if task not in _TASKS:
            raise ChatFormatError(f"{where}: expected a task of {', '.join(_TASKS)}, got {task!r}")
        turn.task = task
    reasoning = message.get("reasoning_content") or ""
    calls = message.get("tool_calls") or ()
    if not isinstance(reasoning, str) or ((reasoning or calls) and role != "assistant"):
        raise ChatFormatError(f"{where}: expected reasoning and calls in assistant messages alone")
    turn.reasoning = reasoning
    for call in calls:
        function = _function(call)
        turn.calls.append((str(function["name"]), _arguments(function, where)))
        turn.call_ids.append(str(call.get("id") or function.get("id") or ""))
    return turn


def _parts(content: Any, where: str) -> list[_Part]:
    if content is None:
        return [_Part("")]
    if isinstance(content, str):
        return [_Part(content)]
    if isinstance(content, Sequence):
        parts = [p.get("text") if isinstance(p, Mapping) else None for p in content]
        if all(isinstance(text, str) for text in parts):
            return [_Part(str(text)) for text in parts]
    raise ChatFormatError(f"{where}: expected content that is a text or a list of texts")


def _function(tool: Any) -> Mapping[str, Any]:
    """Return the function of a tool or a call, with or without the wrapper around it."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ChatFormatError(f"expected a function with a name, got {tool!r:.60}")
    return function


def _arguments(function: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ChatFormatError(f"{where}: expected arguments in JSON, got: {error}") from None
    if not isinstance(arguments, Mapping):
        raise ChatFormatError(f"{where}: expected arguments that are an object")
    return arguments
