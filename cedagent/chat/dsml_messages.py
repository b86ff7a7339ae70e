"""Conversations as lists of messages, in the shape that chat services use, to DSML pieces.

Knows the order of turns, of calls' results, and what a longer conversation forgets; no token ids.
Invariant: a message that has no place in the layout is refused, never left out.

Order of turns and the rule for dropped reasoning as in the `encoding/` folder of the
DeepSeek-V4.1 release.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cedagent.chat.control import Mark
from cedagent.chat.dsml_render import (
    Piece,
    answer_header,
    call_block,
    opening,
    tool_block,
)
from cedagent.chat.dsml_turns import TASKS, Message, Turn, read_tools, read_turns
from cedagent.chat.json_line import dumps
from cedagent.errors import ChatFormatError


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
    turns = _merged(read_turns(messages))
    functions = read_tools(tools)
    if functions:
        if not turns or turns[0].role != "system":
            turns.insert(0, Turn("system", []))
        turns[0].tools[:0] = functions
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


def _body(turn: Turn, *, first: bool, template: str, reasons: bool) -> list[Piece]:
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


def _header(turn: Turn, *, first: bool, thinking: bool) -> list[Piece]:
    if turn.task == "action":
        return [*answer_header(thinking=thinking), Mark.ACTION]
    if turn.task is not None:
        return [TASKS[turn.task]]
    return answer_header(thinking=thinking) if _is_user_like(turn, first=first) else []


def _is_user_like(turn: Turn, *, first: bool) -> bool:
    return turn.role in ("user", "developer") or (turn.role == "system" and not first)


def _last_user(turns: Sequence[Turn]) -> int:
    found = [i for i, turn in enumerate(turns) if _is_user_like(turn, first=i == 0)]
    return found[-1] if found else -1


def _merged(turns: Sequence[Turn]) -> list[Turn]:
    """Join users' messages and results that follow each other; results stand in call order."""
    merged: list[Turn] = []
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
