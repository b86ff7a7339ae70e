"""The grammar of one output: free text, calls of the listed tools, then the stop token.

Compiles what a format's call syntax says; hands out masks as plain bytes and knows no tensor.
Invariant: whatever is sampled under a mask, a finished output parses, its calls name listed tools
and their arguments validate; a control token is allowed only where the syntax places it, and
the stop token where the output may end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llguidance import LLMatcher

from cedagent.chat.number_limit import NumberLimit, NumberWatch
from cedagent.chat.template import ChatFormat, ToolSpec
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import ChatFormatError, ToolDefinitionError

_CHOICES: Final = ("auto", "none", "required")


class CallGrammar:
    """What one output may be, compiled once for a list of tools and a choice.

    - `auto`: text, then any number of calls; from an opening tag on, nothing but calls.
    - `none`: text without an opening tag.
    - `required`: one call or more, no text.
    - the name of a tool: exactly one call of it.

    With thinking the reasoning comes first, whatever the choice.
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
        _check(tools, choice)
        n_ids = tokenizer.vocab_size if vocab_size is None else vocab_size
        self._tokenizer = tokenizer
        self._stop_ids = fmt.stop_ids
        self._vocabulary = tokenizer.matcher_vocabulary(fmt.stop_ids, n_ids)
        self._n_bytes = -(-n_ids // 8)
        self._syntax = fmt.call_syntax
        self._choice = choice
        self._limit = NumberLimit(tokenizer) if tools and choice != "none" else None
        chooses = choice == "auto" and bool(tools) and not fmt.thinking
        self._opening = self._syntax.opening_id(tokenizer) if chooses else None
        lark = self._syntax.lark(tools, choice=choice, problem_of=self._problem_of)
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
            numbers=self._syntax.numbers(self._tokenizer, choice=self._choice),
            opening=self._opening,
        )

    def _problem_of(self, grammar: str) -> str | None:
        problem = LLMatcher.validate_grammar(grammar, self._vocabulary)
        if problem and not problem.startswith("WARNING"):
            return _one_line(problem)
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0)
        matcher.compute_bitmask()
        return "a schema that no value fits" if matcher.is_error() else None


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
        numbers: NumberWatch,
        opening: int | None,
    ) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._stop_ids = stop_ids
        self._n_bytes = n_bytes
        self._limit = limit
        self._numbers = numbers
        self._opening = opening
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
            if self._limit is not None and self._numbers.number:
                mask = self._limited(mask, self._limit)
            self._mask = mask
        return self._mask

    def forced(self) -> int | None:
        """Return the only allowed id, or None if there is a choice."""
        bits = int.from_bytes(self.mask(), "little")
        return bits.bit_length() - 1 if bits.bit_count() == 1 else None

    def majority(self) -> int | None:
        """Return the id that needs half of the probability: a call's first, where text may stand.

        A call begins in one way and text in many, so that the likeliest id may call where most of
        the probability is with text.
        """
        return self._opening

    def advance(self, token: int) -> None:
        """Take the next id; raises ChatFormatError if it is not allowed."""
        if self._finished or not self._matcher.consume_token(token):
            raise ChatFormatError(
                f"expected an id that the call grammar allows, got {token} "
                f"({self._tokenizer.token_name(token)!r})"
            )
        self._mask = self._opening = None
        if token in self._stop_ids:
            self._finished = True
        elif self._limit is not None:
            self._numbers.feed(token)

    def is_finished(self) -> bool:
        """Whether the stop token was taken."""
        return self._finished

    def _limited(self, mask: bytes, limit: NumberLimit) -> bytes:
        excluded = limit.too_long(self._numbers.number)
        if not excluded:
            return mask
        bits = int.from_bytes(mask, "little") & ~excluded
        # A number that the schema fixes may be longer than the limit; it is finite by itself.
        return bits.to_bytes(len(mask), "little") if bits else mask


def _check(tools: Sequence[ToolSpec], choice: str) -> None:
    names = [tool.name for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i] or not name:
            raise ToolDefinitionError(
                f"expected tools with distinct names, got {name!r} twice or empty; rename one"
            )
    if choice not in (*_CHOICES, *names):
        raise ChatFormatError(
            f"expected a tool choice of {', '.join((*_CHOICES, *names))}, got {choice!r}"
        )
    if choice == "required" and not names:
        raise ChatFormatError("expected at least one tool for the tool choice required, got none")


def _one_line(text: str) -> str:
    """Return what the library says, without the stack that it adds where it gave up."""
    return " ".join(text.partition("<backtrace>")[0].split())
