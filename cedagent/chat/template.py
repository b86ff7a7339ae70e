"""The door to chat formats: turns in, token ids out.

Knows which formats exist, not how they look. Invariant: every method returns ids to append;
nothing that was appended is ever rendered again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from cedagent.chat.number_limit import NumberWatch
from cedagent.chat.output import OutputParser
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import ConfigError

if TYPE_CHECKING:
    from cedagent.chat.dsml import Dsml

Problem = Callable[[str], str | None]
"""Tells in one line what is wrong with a Lark grammar, or None."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object; rendered and enforced in its key order."""
    examples: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Worked calls: (question, arguments), for formats that show them."""


class CallSyntax(Protocol):
    """How a format spells calls: the rules that the call grammar compiles."""

    def lark(self, tools: Sequence[ToolSpec], *, choice: str, problem_of: Problem) -> str:
        """Return the Lark grammar of one output; tools and choice are checked already.

        Raises ToolDefinitionError for a schema that cannot be enforced.
        """
        ...

    def opening_id(self, tokenizer: Tokenizer) -> int | None:
        """Return the id that begins an output which calls at once; None if text comes first."""
        ...

    def numbers(self, tokenizer: Tokenizer, *, choice: str) -> NumberWatch:
        """Return what follows the JSON numbers in one output's calls."""
        ...


class ChatFormat(Protocol):
    """How the turns of a conversation become token ids."""

    @property
    def name(self) -> str:
        """The name in config.json."""
        ...

    @property
    def thinking(self) -> bool:
        """Whether each output begins with reasoning."""
        ...

    @property
    def effort(self) -> int | None:
        """How thorough the reasoning is, 1 to 100; None without thinking."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an output."""
        ...

    @property
    def call_syntax(self) -> CallSyntax:
        """What the call grammar enforces and the parser reads."""
        ...

    def begin(self, system: str | None, tools: Sequence[ToolSpec]) -> list[int]:
        """Return the system turn with the tools: the warm prefix, nothing volatile in it.

        `system` None takes the format's own text if it has one; an empty text means none.
        """
        ...

    def user(self, text: str) -> list[int]:
        """Return a user turn and the header of the model's answer."""
        ...

    def results(self, results: Sequence[str]) -> list[int]:
        """Return the results of calls, in call order, and the header of the model's answer."""
        ...

    def closing(self, output_ids: Sequence[int]) -> list[int]:
        """Return the ids that close an output, wherever it was cut, so that a turn can follow."""
        ...

    def parser(self) -> OutputParser:
        """Return a fresh parser for one output."""
        ...


def check_template(template: object, field: str) -> str:
    """Return a tools template with one `field` to be filled; raises ConfigError."""
    if not isinstance(template, str) or template.count(field) != 1:
        got = "another text" if isinstance(template, str) else f"{template!r:.60}"
        raise ConfigError(f"expected a tools template with one {field} in it, got {got}")
    return template


@overload
def chat_format(
    name: Literal["dsml"],
    *,
    tokenizer: Tokenizer | None = None,
    tools_template: str | None = None,
    thinking: bool = False,
    effort: int | str | None = None,
) -> Dsml: ...


@overload
def chat_format(
    name: str,
    *,
    tokenizer: Tokenizer | None = None,
    tools_template: str | None = None,
    thinking: bool = False,
    effort: int | str | None = None,
) -> ChatFormat: ...


def chat_format(
    name: str,
    *,
    tokenizer: Tokenizer | None = None,
    tools_template: str | None = None,
    thinking: bool = False,
    effort: int | str | None = None,
) -> ChatFormat:
    """Return the chat format of a model.

    `dsml` works without a tokenizer too, for texts: `render` and `parse`. `tools_template` replaces
    the wording around the list of tools; `{tools}` (chatml) or `{tool_schemas}` (dsml) in it stands
    for the list. `thinking` and `effort` (1 to 100, or `low`, `high`, `max`) are dsml's alone.
    Raises ConfigError for an unknown name, a template without its place, or settings that the
    format does not have; ChatFormatError if the tokenizer lacks the format's control tokens.
    """
    if name == "dsml":
        from cedagent.chat.dsml import Dsml

        return Dsml(tokenizer, tools_template=tools_template, thinking=thinking, effort=effort)
    if name != "chatml":
        raise ConfigError(
            f'expected the chat format "chatml" or "dsml" in config.json, got {name!r}'
        )
    if thinking or effort is not None:
        asked = "thinking" if thinking else f"effort {effort}"
        raise ConfigError(f"{asked}: expected none of it, the chat format chatml does not reason")
    if tokenizer is None:
        raise ConfigError("chat format chatml: expected a tokenizer, got none; it has no texts")
    from cedagent.chat.chatml import ChatML

    return ChatML(tokenizer, tools_template=tools_template)


def load_chat_format(
    model_dir: Path,
    name: str,
    *,
    tokenizer: Tokenizer,
    tools_template: str | None = None,
    thinking: bool = False,
    effort: int | str | None = None,
) -> ChatFormat:
    """Return the chat format of a model directory; raises as `chat_format` does.

    Without a `tools_template` it takes the wording that the checkpoint brings, if it brings one.
    """
    if name == "dsml" and tools_template is None:
        from cedagent.chat.release_template import load_tools_template

        tools_template = load_tools_template(model_dir)
    return chat_format(
        name,
        tokenizer=tokenizer,
        tools_template=tools_template,
        thinking=thinking,
        effort=effort,
    )
