"""The door to chat formats: turns in, token ids out.

Knows which formats exist, not how they look. Invariant: every method returns ids to append;
nothing that was appended is ever rendered again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cedagent.chat.output import OutputParser
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object; rendered and enforced in its key order."""
    examples: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Worked calls: (question, arguments)."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How a format spells a call whose name and arguments are JSON.

    A call is opener, before_name, JSON name, before_arguments, JSON arguments, closer.
    """

    opener: str
    """The text after which nothing but a call can come."""
    before_name: str
    before_arguments: str
    closer: str
    separator: str
    """Between two calls of one output."""
    item_separator: str = ", "
    key_separator: str = ": "

    def dumps(self, value: Any) -> str:
        """Return JSON on one line in this syntax's separators, key order as given."""
        separators = (self.item_separator, self.key_separator)
        return json.dumps(value, ensure_ascii=False, separators=separators, default=_plain)


class ChatFormat(Protocol):
    """How the turns of a conversation become token ids."""

    @property
    def name(self) -> str:
        """The name in config.json."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an output; the only control tokens that may be sampled."""
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


def chat_format(
    name: str, *, tokenizer: Tokenizer, tools_template: str | None = None
) -> ChatFormat:
    """Return the chat format of a model.

    `tools_template` replaces the wording around the list of tools; `{tools}` in it stands for the
    list. Raises ConfigError for an unknown name or a template without `{tools}`, ChatFormatError
    if the tokenizer lacks the format's control tokens.
    """
    if name == "chatml":
        from cedagent.chat.chatml import ChatML

        return ChatML(tokenizer, tools_template=tools_template)
    raise ConfigError(f'expected the chat format "chatml" in config.json, got {name!r}')


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"expected JSON values in a tool, got {type(value).__name__}")
