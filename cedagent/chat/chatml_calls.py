"""How ChatML spells calls, name and arguments as one JSON, and the grammar of that spelling.

Knows tools and the tags of a call; no token ids. Invariant: from an opening tag on, nothing but
calls can follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cedagent.chat.call_schema import check_tool, json_rule, literal
from cedagent.chat.json_line import dumps
from cedagent.chat.number_limit import ByteNumbers
from cedagent.chat.template import Problem, ToolSpec
from cedagent.chat.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TaggedJson:
    """A `CallSyntax`: opener, before_name, JSON name, before_arguments, JSON arguments, closer."""

    opener: str
    """The text after which nothing but a call can come."""
    before_name: str
    before_arguments: str
    closer: str
    separator: str
    """Between two calls of one output."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the call block for given arguments, spelled as the grammar spells it."""
        return (
            f"{self.opener}{self.before_name}{dumps(name)}"
            f"{self.before_arguments}{dumps(arguments)}{self.closer}"
        )

    def lark(self, tools: Sequence[ToolSpec], *, choice: str, problem_of: Problem) -> str:
        """Return the grammar of one output; rule `call_I` is a call of tool I, opener left out."""
        rules = [self._rule(i, tool, problem_of) for i, tool in enumerate(tools)]
        opener = literal(self.opener)
        again = literal(self.separator + self.opener)
        any_call = " | ".join(f"call_{i}" for i in range(len(tools)))
        calls = [f"calls: call ({again} call)*", f"call: {any_call}", *rules]
        match choice:
            case "auto" if tools:
                # The lazy lexeme ends at the first opener; from there on only calls can follow.
                text = [
                    "start: TEXT | opening calls",
                    "TEXT: /(?s:.*)/",
                    f"opening[lazy]: /(?s:.*){self.opener}/",
                ]
                return "\n".join([*text, *calls])
            case "auto" | "none":
                return "\n".join(
                    [
                        "start: TEXT",
                        f"TEXT: /(?s:.*)/ & ~/(?s:.*){self.opener}(?s:.*)/",
                    ]
                )
            case "required":
                return "\n".join([f"start: {opener} calls", *calls])
            case _:
                i = [tool.name for tool in tools].index(choice)
                return "\n".join([f"start: {opener} call_{i}", rules[i]])

    def opening_id(self, tokenizer: Tokenizer) -> int:
        """Return the id that begins an output which calls at once."""
        return tokenizer.encode(self.opener)[0]

    def numbers(self, tokenizer: Tokenizer, *, choice: str) -> ByteNumbers:
        """Return what follows the numbers of one output: those from its first call on."""
        opener = self.opener.encode() if choice in ("auto", "none") else None
        return ByteNumbers(tokenizer, opener)

    def _rule(self, i: int, tool: ToolSpec, problem_of: Problem) -> str:
        check_tool(tool, problem_of)
        head = f"{self.before_name}{dumps(tool.name)}{self.before_arguments}"
        return f"call_{i}: {literal(head)} {json_rule(tool.parameters)} {literal(self.closer)}"
