"""The grammar of one DSML output: reasoning, text, a block of calls, each where it belongs.

Knows tools, tags and the ids of three marks. Invariants: a mark is allowed only where the layout
has it; parameters come in any order, each at most once and all required ones; a call is spelled as
`dsml_render` spells it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cedagent.chat.call_schema import NOTES, check_rule, check_tool, json_rule, literal
from cedagent.chat.dsml_tags import (
    CALLS,
    INVOKE,
    INVOKE_HEAD,
    JSON_END,
    PARAMETER,
    PARAMETER_HEAD,
    TEXT_END,
    name_problem,
)
from cedagent.chat.dsml_values import forms_of
from cedagent.chat.json_line import dumps
from cedagent.chat.number_limit import JsonNumbers
from cedagent.chat.template import Problem, ToolSpec
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import ToolDefinitionError

_BITS: Final = 64
"""Parameters of one call that the grammar library can tell apart in any order."""
_ENFORCED: Final = NOTES | {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "minProperties",
}


@dataclass(frozen=True, slots=True)
class DsmlSyntax:
    """A `CallSyntax`; the numbers are ids of one tokenizer."""

    dsml: int
    end_think: int
    thinking: bool

    def lark(self, tools: Sequence[ToolSpec], *, choice: str, problem_of: Problem) -> str:
        """Return the grammar of one output."""
        rules = [line for i, tool in enumerate(tools) for line in self._rules(i, tool, problem_of)]
        mark = f"<[{self.dsml}]>"
        first, last = literal(f"{CALLS}>\n<"), f'"\\n</" {mark} {literal(f"{CALLS}>")}'
        any_call = " | ".join(f"call_{i}" for i in range(len(tools)))
        calls = f'{mark} {first} {mark} call ("\\n<" {mark} call)* {last}'
        match choice:
            case "auto" if tools:
                answer = [f"answer: TEXT | LEAD {calls}", "LEAD: /(?s:.*)\\n\\n</"]
            case "auto" | "none":
                answer, rules = ["answer: TEXT"], []
            case "required":
                answer = [f'answer: "\\n\\n<" {calls}']
            case _:
                any_call = f"call_{[tool.name for tool in tools].index(choice)}"
                answer = [f'answer: "\\n\\n<" {mark} {first} {mark} call {last}']
        start = "start: answer"
        if self.thinking:
            start = f"start: TEXT <[{self.end_think}]> answer"
        named = [f"call: {any_call}", *rules] if rules else []
        return "\n".join([start, *answer, "TEXT: /(?s:.*)/", *named])

    def opening_id(self, tokenizer: Tokenizer) -> None:
        """Return None: calls begin with the empty line that may end a paragraph, too."""
        return None

    def numbers(self, tokenizer: Tokenizer, *, choice: str) -> DsmlNumbers:
        """Return what follows the numbers in JSON values."""
        return DsmlNumbers(tokenizer, self.dsml)

    def _rules(self, i: int, tool: ToolSpec, problem_of: Problem) -> list[str]:
        """Return the rules of one tool's call, from behind its mark to its last character."""
        check_tool(tool, problem_of)
        _check_name(tool.name, tool.name)
        properties = _properties(tool)
        mark = f"<[{self.dsml}]>"
        head = literal(f'{INVOKE_HEAD}{tool.name}">')
        tail = f"{mark} {literal(f'{INVOKE}>')}"
        required = [key in tool.parameters.get("required", ()) for key in properties]
        bare = ['"\\n\\n</"'] if not any(required) else []
        if not properties:
            return [f"call_{i}: {head} {bare[0]} {tail}"]
        rules = []
        for n, (key, schema) in enumerate(properties.items()):
            rules += self._parameter(f"p_{i}_{n}", tool, key, schema, problem_of)
        among = [f"p_{i}_{n}" for n in range(len(properties))]
        body = f'some_{i}::0x0 "\\n</"'
        if len(among) <= _BITS:
            done = "not(is_zeros(_))"
            for n, is_required in enumerate(required):
                done = f"and({done}, bit_set({n}))" if is_required else done
            rules.append(f'some_{i}::_ : "" %if {done}')
            rules += [f"| {p} some_{i}::set_bit({n}) %if bit_clear({n})"
                      for n, p in enumerate(among)]  # fmt: skip
        else:
            # In the schema's order, then; without parameters the empty line is left out.
            body = " ".join(p if required[n] else f"{p}?" for n, p in enumerate(among))
            body, bare = f'{body} "\\n</"', []
        return [f"call_{i}: {head} ({' | '.join([*bare, body])}) {tail}", *rules]

    def _parameter(
        self, name: str, tool: ToolSpec, key: str, schema: Any, problem_of: Problem
    ) -> list[str]:
        """Return the rules of one parameter and the line break before it."""
        _check_name(tool.name, key)
        try:
            forms = forms_of(schema, tool.parameters)
        except ToolDefinitionError as error:
            raise ToolDefinitionError(
                f"tool {tool.name!r}: parameter {key!r}: {error}; describe it in words"
            ) from None
        if forms.text is None and forms.json is None:
            raise ToolDefinitionError(
                f"tool {tool.name!r}: parameter {key!r}: expected a schema that some value fits, "
                f"got {dumps(schema)[:60]}; leave the parameter out"
            )
        mark = f"<[{self.dsml}]>"
        before, after = f'"\\n<" {mark}', f"{mark} {literal(f'{PARAMETER}>')}"
        head = f"{PARAMETER_HEAD}{key}"
        ways, rules = [], []
        if forms.text is not None:
            terminal = f'{name.upper()}: ({forms.text}) "</"'
            check_rule(tool.name, f"{name.upper()}\n{terminal}", problem_of)
            ways.append(f"{before} {literal(head + TEXT_END)} {name.upper()} {after}")
            rules.append(terminal)
        if forms.json is not None:
            json = json_rule(forms.json)
            check_rule(tool.name, json, problem_of)
            ways.append(f'{before} {literal(head + JSON_END)} {json} "</" {after}')
        return [f"{name}: {' | '.join(ways)}", *rules]


class DsmlNumbers:
    """A `NumberWatch` of JSON values between tags."""

    def __init__(self, tokenizer: Tokenizer, dsml: int) -> None:
        self._tokenizer = tokenizer
        self._dsml = dsml
        self._head: bytes | None = None
        self._json: JsonNumbers | None = None

    @property
    def number(self) -> bytes:
        """The number so far; empty outside numbers, and always in strings."""
        return b"" if self._json is None else self._json.number

    def feed(self, token: int) -> None:
        """Take the next id."""
        if token == self._dsml:
            self._head, self._json = b"", None
            return
        data = self._tokenizer.token_bytes(token) or b""
        if self._json is not None:
            self._json.feed(data)
        elif self._head is not None:
            self._head += data
            ends = [(self._head.find(end.encode()), end) for end in (TEXT_END, JSON_END)]
            found = [(at, end) for at, end in ends if at >= 0]
            if found:
                at, end = min(found)
                if end == JSON_END:
                    self._json = JsonNumbers()
                    self._json.feed(self._head[at + len(end) :])
                self._head = None


def _properties(tool: ToolSpec) -> Mapping[str, Any]:
    """Return the parameters that a call may have; required ones need no schema of their own."""
    schema = tool.parameters
    unknown = sorted(schema.keys() - _ENFORCED)
    unknown = [key for key in unknown if not key.startswith("x-")]
    if unknown or schema.get("minProperties", 0) > len(schema.get("required", ())):
        what = ", ".join(unknown) or "minProperties beyond the required ones"
        raise ToolDefinitionError(
            f"tool {tool.name!r}: expected parameters by name in properties and required, got "
            f"{what}; describe it in words"
        )
    properties = dict(schema.get("properties", {}))
    for key in schema.get("required", ()):
        properties.setdefault(key, schema.get("additionalProperties", True))
    return properties


def _check_name(tool: str, name: str) -> None:
    problem = name_problem(name)
    if problem is not None:
        raise ToolDefinitionError(
            f"tool {tool!r:.80}: expected {problem}, got {name!r:.80}; rename it"
        )
