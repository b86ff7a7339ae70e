"""The grammar of one output: free text, calls of the listed tools, then the stop token.

Knows tools and a format's call syntax; hands out masks as plain bytes and knows no tensor.
Invariant: whatever is sampled under a mask, a finished output parses, its calls name listed tools
and their arguments validate; no control token but the stop token is ever allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from cedagent.chat.number_limit import NumberLimit, NumberTracker
from cedagent.chat.template import CallSyntax, ChatFormat, ToolSpec
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import ChatFormatError, ToolDefinitionError

_CHOICES: Final = ("auto", "none", "required")


class CallGrammar:
    """What one output may be, compiled once for a list of tools and a choice.

    - `auto`: text, then any number of calls; from an opening tag on, nothing but calls.
    - `none`: text without an opening tag.
    - `required`: one call or more, no text.
    - the name of a tool: exactly one call of it.
    """

    def __init__(
        self,
        fmt: ChatFormat,
        tokenizer: Tokenizer,
        tools: Sequence[ToolSpec],
        *,
        choice: str = "auto",
        vocab_size: int | None = None,
    ) -> None:
        """Compile; `vocab_size` is the number of logits if that is not the tokenizer's.

        Raises ToolDefinitionError for a schema that cannot be enforced, ChatFormatError for an
        unknown choice.
        """
        n_ids = tokenizer.vocab_size if vocab_size is None else vocab_size
        self._tokenizer = tokenizer
        self._stop_ids = fmt.stop_ids
        self._vocabulary = tokenizer.matcher_vocabulary(fmt.stop_ids, n_ids)
        self._n_bytes = -(-n_ids // 8)
        syntax = fmt.call_syntax
        rules = _call_rules(tools, syntax, self._vocabulary)
        names = [tool.name for tool in tools]
        # Text can precede calls only if the model may choose; numbers count from the first call on.
        self._opener = syntax.opener.encode() if choice in ("auto", "none") else None
        self._limit = NumberLimit(tokenizer) if tools and choice != "none" else None
        lark = _lark(rules, names, syntax, choice)
        self._matcher = LLMatcher(self._vocabulary, lark, log_level=0)
        if self._matcher.is_error():
            raise ToolDefinitionError(
                "expected tools whose calls fit one grammar, got: "
                f"{_one_line(self._matcher.get_error())}; offer fewer or simpler tools"
            )

    def start(self) -> Constraint:
        """Return a fresh constraint for one output."""
        return Constraint(
            self._matcher.deep_copy(),
            self._tokenizer,
            self._stop_ids,
            n_bytes=self._n_bytes,
            limit=self._limit,
            tracker=NumberTracker(self._opener),
        )


class Constraint:
    """Which ids may come next in one output."""

    def __init__(
        self,
        matcher: LLMatcher,
        tokenizer: Tokenizer,
        stop_ids: frozenset[int],
        *,
        n_bytes: int,
        limit: NumberLimit | None,
        tracker: NumberTracker,
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._n_bytes = n_bytes
        self._limit = limit
        self._tracker = tracker
        self._mask: bytes | None = None
        self._finished = False

    def mask(self) -> bytes:
        """Return the allowed ids, one bit each: id i is bit i % 8 of byte i // 8.

        Raises ChatFormatError if the output has ended.
        """
        if self._finished:
            raise ChatFormatError("expected no more ids, the output has ended; start another one")
        if self._mask is None:
            mask = self._matcher.compute_bitmask()[: self._n_bytes]
            if self._matcher.is_error():
                raise ChatFormatError(
                    "expected a grammar that can go on, got: "
                    f"{_one_line(self._matcher.get_error())}; use simpler tool schemas"
                )
            if self._limit is not None and self._tracker.number:
                mask = self._limited(mask, self._limit)
            self._mask = mask
        return self._mask

    def forced(self) -> int | None:
        """Return the only allowed id, or None if there is a choice."""
        bits = int.from_bytes(self.mask(), "little")
        return bits.bit_length() - 1 if bits.bit_count() == 1 else None

    def advance(self, token: int) -> None:
        """Take the next id; raises ChatFormatError if it is not allowed."""
        if self._finished or not self._matcher.consume_token(token):
            raise ChatFormatError(
                f"expected an id that the call grammar allows, got {token} "
                f"({self._tokenizer.token_name(token)!r})"
            )
        self._mask = None
        if token in self._stop_ids:
            self._finished = True
        elif self._limit is not None:
            self._tracker.feed(self._tokenizer.token_bytes(token) or b"")

    def is_finished(self) -> bool:
        """Whether the stop token was taken."""
        return self._finished

    def _limited(self, mask: bytes, limit: NumberLimit) -> bytes:
        excluded = limit.too_long(self._tracker.number)
        if not excluded:
            return mask
        bits = int.from_bytes(mask, "little") & ~excluded
        # A number that the schema fixes may be longer than the limit; it is finite by itself.
        return bits.to_bytes(len(mask), "little") if bits else mask


def _lark(rules: list[str], names: list[str], syntax: CallSyntax, choice: str) -> str:
    """Return the whole grammar; rule `call_I` is the call of tool I without its opener."""
    if choice not in (*_CHOICES, *names):
        raise ChatFormatError(
            f"expected a tool choice of {', '.join((*_CHOICES, *names))}, got {choice!r}"
        )
    if choice == "required" and not names:
        raise ChatFormatError("expected at least one tool for the tool choice required, got none")
    opener = json.dumps(syntax.opener)
    again = json.dumps(syntax.separator + syntax.opener)
    any_call = " | ".join(f"call_{i}" for i in range(len(names)))
    calls = [f"calls: call ({again} call)*", f"call: {any_call}", *rules]
    match choice:
        case "auto" if names:
            # The lazy lexeme ends at the first opener; from there on only calls can follow.
            text = [
                "start: TEXT | opening calls",
                "TEXT: /(?s:.*)/",
                f"opening[lazy]: /(?s:.*){syntax.opener}/",
            ]
            return "\n".join([*text, *calls])
        case "auto" | "none":
            return "\n".join(
                [
                    "start: TEXT",
                    f"TEXT: /(?s:.*)/ & ~/(?s:.*){syntax.opener}(?s:.*)/",
                ]
            )
        case "required":
            return "\n".join([f"start: {opener} calls", *calls])
        case _:
            i = names.index(choice)
            return "\n".join([f"start: {opener} call_{i}", rules[i]])


def _call_rules(
    tools: Sequence[ToolSpec], syntax: CallSyntax, vocabulary: LLTokenizer
) -> list[str]:
    rules: list[str] = []
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        if tool.name in seen or not tool.name:
            raise ToolDefinitionError(
                f"expected tools with distinct names, got {tool.name!r} twice or empty; rename one"
            )
        seen.add(tool.name)
        schema = _schema(tool, syntax)
        problem = LLMatcher.validate_grammar(f"start: %json {schema}", vocabulary)
        if problem and not problem.startswith("WARNING"):
            raise ToolDefinitionError(
                f"tool {tool.name!r}: expected a parameter schema that can be enforced, got: "
                f"{_one_line(problem)}; remove that keyword or describe it in words"
            )
        head = f"{syntax.before_name}{syntax.dumps(tool.name)}{syntax.before_arguments}"
        rules.append(f"call_{i}: {_literal(head)} %json {schema} {_literal(syntax.closer)}")
    return rules


def _schema(tool: ToolSpec, syntax: CallSyntax) -> str:
    """Return the tool's schema as JSON, with separators fixed and no other white space."""
    if tool.parameters.get("type") != "object":
        raise ToolDefinitionError(
            f'tool {tool.name!r}: expected parameters of "type": "object", '
            f"got {tool.parameters.get('type')!r}"
        )
    _check_counts(tool.name, tool.parameters)
    layout = {
        "whitespace_flexible": False,
        "item_separator": syntax.item_separator,
        "key_separator": syntax.key_separator,
    }
    return syntax.dumps({**tool.parameters, "x-guidance": layout})


def _check_counts(name: str, schema: object) -> None:
    """Refuse what the grammar cannot count: a free key may be sampled twice."""
    if isinstance(schema, list | tuple):
        for part in schema:
            _check_counts(name, part)
    elif isinstance(schema, Mapping):
        least = schema.get("minProperties", 0)
        if isinstance(least, int) and least > max(1, len(schema.get("required") or ())):
            raise ToolDefinitionError(
                f"tool {name!r}: expected at most one in minProperties beyond the required keys, "
                f"got {least}; remove that keyword or describe it in words"
            )
        for part in schema.values():
            _check_counts(name, part)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _one_line(text: str) -> str:
    return " ".join(text.split())
