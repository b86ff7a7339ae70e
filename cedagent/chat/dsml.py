"""DSML, DeepSeek-V4.1's format: turns to token ids, and conversations to text and back.

Knows the layout only through its neighbours. Invariants: control tokens enter by id only, all else
is encoded with added tokens disabled; ids are only ever appended, with their reasoning, and what
was rendered is never rendered again. Without a tokenizer it serves texts alone.

Layout as in the `encoding/` folder of the DeepSeek-V4.1 release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, Final

from cedagent.chat.call_schema import check_writable
from cedagent.chat.control import Mark
from cedagent.chat.dsml_calls import DsmlSyntax
from cedagent.chat.dsml_messages import render_messages
from cedagent.chat.dsml_parser import DsmlParser, parse_message
from cedagent.chat.dsml_render import (
    SCHEMAS_FIELD,
    TOOLS_TEMPLATE,
    Piece,
    answer_header,
    effort_of,
    opening,
    result_part,
    tool_block,
)
from cedagent.chat.template import ToolSpec, check_template
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import ChatFormatError, ConfigError

_NEEDED: Final = (
    *(Mark.BEGIN, Mark.END, Mark.SYSTEM, Mark.USER, Mark.ASSISTANT),
    *(Mark.THINK, Mark.END_THINK, Mark.DSML),
)


class Dsml:
    """Turns between marks, reasoning before answers, calls as tags around their parameters."""

    name = "dsml"

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        tools_template: str | None = None,
        thinking: bool = False,
        effort: int | str | None = None,
    ) -> None:
        """Take the ids of a tokenizer, if there is one; raises as `chat_format` does."""
        if effort is not None and not thinking:
            raise ConfigError(f"effort {effort}: expected thinking with it; turn thinking on")
        self.thinking = thinking
        self.effort = effort_of(effort) if thinking else None
        self._template = check_template(
            TOOLS_TEMPLATE if tools_template is None else tools_template, SCHEMAS_FIELD
        )
        self._given = tokenizer
        self._ids: dict[Mark, int] = {}
        if tokenizer is not None:
            self._ids = {mark: tokenizer.control_id(mark) for mark in _NEEDED}

    @property
    def stop_ids(self) -> frozenset[int]:
        """The end mark alone; it follows calls too."""
        return frozenset({self._id(Mark.END)})

    @cached_property
    def call_syntax(self) -> DsmlSyntax:
        """What the call grammar enforces and the parser reads."""
        end_think = self._id(Mark.END_THINK)
        return DsmlSyntax(dsml=self._id(Mark.DSML), end_think=end_think, thinking=self.thinking)

    def begin(self, system: str | None, tools: Sequence[ToolSpec]) -> list[int]:
        """Return the beginning mark and the system turn, if there is anything to say in it."""
        check_writable(tools)
        content, functions = system or "", [_function(tool) for tool in tools]
        has_turn = bool(content or functions)
        pieces = opening(thinking=self.thinking, effort=self.effort or 0, system=has_turn)
        pieces.append(content)
        if functions:
            pieces += ["\n\n", *tool_block(functions, self._template)]
        return self._encode(pieces)

    def user(self, text: str) -> list[int]:
        """Return a user turn and the header of the model's answer."""
        return self._encode([Mark.USER, text, *answer_header(thinking=self.thinking)])

    def results(self, results: Sequence[str]) -> list[int]:
        """Return results as one user turn and the header of the model's answer."""
        return self.user("\n\n".join(map(result_part, results)))

    def closing(self, output_ids: Sequence[int]) -> list[int]:
        """Return the end of the reasoning, if it is open, and the end mark.

        A call that was cut stays cut: completing it would put words into the model's mouth.
        An output that already ended needs nothing.
        """
        if self._id(Mark.END) in output_ids:
            return []
        parser = self.parser()
        for token in output_ids:
            parser.push(token)
        end_think = [self._id(Mark.END_THINK)] if parser.is_reasoning else []
        return [*end_think, self._id(Mark.END)]

    def parser(self) -> DsmlParser:
        """Return a fresh parser for one output."""
        marks = {token: mark for mark, token in self._ids.items()}
        return DsmlParser(self._tokenizer, marks, thinking=self.thinking)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        thinking: bool | None = None,
        effort: int | str | None = None,
        drop_thinking: bool = False,
    ) -> str:
        """Return the text of a conversation, up to where the model goes on.

        Messages and tools are those of chat services; tools may also stand in a system message
        (`tools`), with or without the wrapper `{"type": "function", "function": ...}`. `thinking`
        and `effort` None take the format's own. `drop_thinking` leaves out the reasoning before the
        last user turn unless there are tools. Raises ChatFormatError and ConfigError.
        """
        thinking = self.thinking if thinking is None else thinking
        level = effort_of(self.effort if effort is None else effort)
        pieces = render_messages(
            messages,
            tools=tools,
            template=self._template,
            thinking=thinking,
            effort=level,
            drop_thinking=drop_thinking,
        )
        text = "".join(pieces)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ChatFormatError(
                "messages: expected text that UTF-8 can hold, got half a surrogate pair, "
                f"{text[error.start]!r}, behind {text[: error.start][-20:]!r}"
            ) from None
        return text

    def parse(self, text: str, *, thinking: bool | None = None) -> dict[str, Any]:
        """Return the message in a completion: what stands behind the answer header, to the end.

        Raises ChatFormatError for what is not to the letter what the layout has.
        """
        if not isinstance(text, str):
            raise ChatFormatError(f"expected a text to parse, got {text!r:.60}")
        return parse_message(text, thinking=self.thinking if thinking is None else thinking)

    @property
    def _tokenizer(self) -> Tokenizer:
        if self._given is None:
            raise ChatFormatError(
                "chat format dsml: expected a tokenizer for token ids, got none; "
                "without one there are only texts: render and parse"
            )
        return self._given

    def _id(self, mark: Mark) -> int:
        return self._ids[mark] if self._ids else self._tokenizer.control_id(mark)

    def _encode(self, pieces: Sequence[Piece]) -> list[int]:
        encode = self._tokenizer.encode
        ids: list[int] = []
        for is_mark, group in groupby(pieces, key=lambda piece: isinstance(piece, Mark)):
            if is_mark:
                ids += [self._id(Mark(piece)) for piece in group]
            else:
                # One segment, so that its pieces merge as they would in the whole text.
                ids += encode("".join(group))
        return ids


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
