"""ChatML, the default model's format: turns to token ids.

Knows the layout of turns and of the list of tools. Invariants: control tokens enter by id only;
the text between two of them is encoded as one segment; what was rendered is never rendered again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cedagent.chat.call_schema import check_writable
from cedagent.chat.chatml_calls import TaggedJson
from cedagent.chat.chatml_parser import ChatMLParser
from cedagent.chat.control import CHATML
from cedagent.chat.json_line import dumps
from cedagent.chat.template import ToolSpec, check_template
from cedagent.chat.tokenizer import Tokenizer

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What SmolLM2's own template says when a conversation brings no system text."""

CALLS = TaggedJson(
    opener="<tool_call>",
    before_name='\n{"name": ',
    before_arguments=', "arguments": ',
    closer="}\n</tool_call>",
    separator="\n",
)

# Chosen by what SmolLM2-135M-Instruct writes, greedily, for six sums with the built-in tools: with
# this text six right calls and six right answers. A longer explanation, or a call spelled out with
# placeholders, makes it copy those into its arguments.
TOOLS_TEMPLATE = """Tools that you can call, one per line:
{tools}
Write each call as JSON in a <tool_call>. The result comes back in a <tool_response>. \
Then answer the question in a sentence."""
"""The wording around the list of tools; `{tools}` is the list with its worked examples."""


class ChatML:
    """`<|im_start|>ROLE\\nCONTENT<|im_end|>\\n`, with tools as tagged JSON."""

    name = "chatml"
    thinking = False
    effort = None
    call_syntax = CALLS

    def __init__(self, tokenizer: Tokenizer, *, tools_template: str | None = None) -> None:
        """Take the ids of a tokenizer; raises as `chat_format` does."""
        self._tokenizer = tokenizer
        self._start = tokenizer.control_id(CHATML.turn_start)
        self._end = tokenizer.control_id(CHATML.turn_end)
        self.stop_ids = frozenset({self._end})
        self._tools_template = TOOLS_TEMPLATE if tools_template is None else tools_template
        check_template(self._tools_template, "{tools}")

    def begin(self, system: str | None, tools: Sequence[ToolSpec]) -> list[int]:
        """Return the system turn; no ids at all if there is neither text nor tool."""
        text = DEFAULT_SYSTEM if system is None else system
        parts = [text] if text else []
        if tools:
            check_writable(tools)
            parts.append(self._tools_template.replace("{tools}", _tools_block(tools)))
        return self._turn("system", "\n\n".join(parts)) if parts else []

    def user(self, text: str) -> list[int]:
        """Return a user turn and the header of the model's answer."""
        return self._turn("user", text) + self._answer_header()

    def results(self, results: Sequence[str]) -> list[int]:
        """Return one turn of role `tool` and the header of the model's answer."""
        blocks = [f"<tool_response>\n{result}\n</tool_response>" for result in results]
        return self._turn("tool", "\n".join(blocks)) + self._answer_header()

    def closing(self, output_ids: Sequence[int]) -> list[int]:
        """Return the rest of an open call's closing tag, the stop id, and the line break.

        An output that already ended gets the line break alone.
        """
        after = self._tokenizer.encode("\n")
        if self._end in output_ids:
            return after
        parser = self.parser()
        for token in output_ids:
            parser.push(token)
        return [*self._tokenizer.encode(parser.missing_closer()), self._end, *after]

    def parser(self) -> ChatMLParser:
        """Return a fresh parser for one output."""
        return ChatMLParser(self._tokenizer, self.stop_ids)

    def _turn(self, role: str, content: str) -> list[int]:
        encode = self._tokenizer.encode
        return [self._start, *encode(f"{role}\n{content}"), self._end, *encode("\n")]

    def _answer_header(self) -> list[int]:
        return [self._start, *self._tokenizer.encode("assistant\n")]


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the call block for given arguments, spelled as the grammar spells it."""
    return CALLS.call(name, arguments)


def _tools_block(tools: Sequence[ToolSpec]) -> str:
    schemas = [
        dumps({"name": t.name, "description": t.description, "parameters": t.parameters})
        for t in tools
    ]
    examples = [
        f'"{question}" is answered with\n{render_call(tool.name, arguments)}'
        for tool in tools
        for question, arguments in tool.examples
    ]
    return "\n".join(["<tools>", *schemas, "</tools>", *examples])
