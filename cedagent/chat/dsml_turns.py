"""One message of a conversation, in the shape that chat services use, as a turn of DSML.

Knows fields and their types, not the order of turns or how they look. Invariant: what a message
says is in its turn or refused with one line that names the message; so is a call whose name or keys
could not be read back, or whose values are not JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cedagent.chat.control import Mark
from cedagent.chat.dsml_render import result_part
from cedagent.chat.dsml_tags import name_problem
from cedagent.chat.json_line import dumps
from cedagent.chat.output import strict_json
from cedagent.errors import ChatFormatError

Message = Mapping[str, Any]

_ROLES: Final = ("system", "developer", "user", "tool", "assistant", "latest_reminder")
TASKS: Final[Mapping[str, Mark]] = {
    "action": Mark.ACTION,
    "query": Mark.QUERY,
    "authority": Mark.AUTHORITY,
    "domain": Mark.DOMAIN,
    "title": Mark.TITLE,
    "read_url": Mark.READ_URL,
}
"""Name of a quick task -> the mark that asks for its answer."""


@dataclass(slots=True)
class Part:
    """A part of what a turn says."""

    text: str
    result_of: str | None = None
    """Id of the call that this is the result of; empty if none is named."""


@dataclass(slots=True)
class Turn:
    """What one message says; neighbours are joined later."""

    role: str
    parts: list[Part]
    reasoning: str = ""
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    call_ids: list[str] = field(default_factory=list)
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    response_format: Any = None
    task: str | None = None

    @property
    def content(self) -> str:
        """The parts as one text."""
        return "\n\n".join(
            part.text if part.result_of is None else result_part(part.text) for part in self.parts
        )


def read_turns(messages: object) -> list[Turn]:
    """Return one turn per message; raises ChatFormatError."""
    return [_turn(i, message) for i, message in enumerate(_listed(messages, "messages"))]


def read_tools(tools: object, where: str = "tools") -> list[Mapping[str, Any]]:
    """Return the functions of tools, `where` they stand; raises ChatFormatError."""
    functions = [_function(tool, where) for tool in _listed(tools, where)]
    for function in functions:
        _check_json(function, f"{where}: {function['name']!r:.60}")
    return functions


def _turn(i: int, message: Any) -> Turn:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role not in _ROLES:
        raise ChatFormatError(
            f"message {i}: expected a role of {', '.join(_ROLES)}, got {role!r:.60}"
        )
    where = f"message {i} ({role})"
    parts = _parts(message.get("content"), where)
    if role == "tool":
        text = "\n\n".join(part.text for part in parts)
        return Turn("user", [Part(text, str(message.get("tool_call_id") or ""))])
    turn = Turn(role, parts, response_format=message.get("response_format"))
    turn.tools = read_tools(message.get("tools"), f"{where}: tools")
    if (turn.tools or turn.response_format) and role not in ("system", "developer"):
        raise ChatFormatError(f"{where}: expected tools and formats in system messages alone")
    _check_json(turn.response_format, f"{where}: response_format")
    task = message.get("task")
    if task is not None:
        if not isinstance(task, str) or task not in TASKS:
            raise ChatFormatError(
                f"{where}: expected a task of {', '.join(TASKS)}, got {task!r:.60}"
            )
        turn.task = task
    reasoning = message.get("reasoning_content") or ""
    calls = _listed(message.get("tool_calls"), f"{where}: tool_calls")
    if not isinstance(reasoning, str) or ((reasoning or calls) and role != "assistant"):
        raise ChatFormatError(f"{where}: expected reasoning and calls in assistant messages alone")
    turn.reasoning = reasoning
    for call in calls:
        function = _function(call, where)
        name = _readable(function["name"], where)
        turn.calls.append(
            (name, _arguments(function.get("arguments"), f"{where}: call of {name!r}"))
        )
        turn.call_ids.append(str(call.get("id") or function.get("id") or ""))
    return turn


def _listed(value: object, where: str) -> Sequence[Any]:
    """Return a list, an empty one for None."""
    if value is None and where != "messages":
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ChatFormatError(f"{where}: expected a list, got {value!r:.60}")
    return value


def _parts(content: Any, where: str) -> list[Part]:
    if content is None:
        return [Part("")]
    if isinstance(content, str):
        return [Part(content)]
    if isinstance(content, Sequence):
        parts = [p.get("text") if isinstance(p, Mapping) else None for p in content]
        if all(isinstance(text, str) for text in parts):
            return [Part(str(text)) for text in parts]
    raise ChatFormatError(f"{where}: expected content that is a text or a list of texts")


def _function(tool: Any, where: str) -> Mapping[str, Any]:
    """Return the function of a tool or a call, with or without the wrapper around it."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ChatFormatError(f"{where}: expected a function with a name, got {tool!r:.60}")
    return function


def _arguments(given: Any, where: str) -> Mapping[str, Any]:
    arguments = {} if given is None or given == "" else given
    if isinstance(arguments, str):
        try:
            arguments = strict_json(arguments)
        except ValueError as error:
            raise ChatFormatError(
                f"{where}: expected arguments in {error}, got {given!r:.60}"
            ) from None
    if not isinstance(arguments, Mapping):
        raise ChatFormatError(f"{where}: expected arguments that are an object, got {given!r:.60}")
    _check_json(arguments, where)
    for key in arguments:
        _readable(key, where, empty=True)
    return arguments


def _check_json(value: Any, where: str) -> None:
    try:
        dumps(value)
    except ValueError as error:
        raise ChatFormatError(f"{where}: {error}") from None


def _readable(name: Any, where: str, *, empty: bool = False) -> str:
    """Return a name that a call can be written with."""
    problem = "names that are texts"
    if isinstance(name, str):
        problem = name_problem(name) or ""
        if not name and not empty:
            problem = "the name of a tool"
        elif any(mark in name for mark in Mark):
            problem = "names without marks of the layout"
    if problem:
        raise ChatFormatError(f"{where}: expected {problem}, got {name!r:.80}")
    return str(name)
