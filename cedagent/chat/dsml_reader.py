"""Reads one DSML output as pieces, text and marks: reasoning, text and calls, as events.

Knows no token ids. Invariants: the result depends on the text between marks alone, not on how it
is split; no text is lost (`2 <` is text unless a DSML mark follows); nothing makes it raise. What
the layout does not have is read as well as it can be, and noted in `fault`.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from cedagent.chat.control import Mark
from cedagent.chat.dsml_block import CallBlock
from cedagent.chat.output import Call, Output, ParserEvent, TextDelta, ThinkingDelta

# What may belong to the block of calls that follows: the blank line and the `<` of its tag.
_LEAD: Final = re.compile(r"\n{0,2}<?\Z")


class DsmlReader:
    """The state of one output."""

    def __init__(self, *, thinking: bool) -> None:
        self.fault: str | None = None
        """The first thing that the layout does not have: what was expected, and what came."""
        self.complete = False
        """Whether the end mark was read."""
        self._stage: Literal["reasoning", "text", "behind"] = "reasoning" if thinking else "text"
        self._held = ""
        self._block: CallBlock | None = None
        self._events: list[ParserEvent] = []
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._calls: list[Call] = []

    @property
    def is_reasoning(self) -> bool:
        """Whether the reasoning has not ended."""
        return self._stage == "reasoning"

    def take(self) -> list[ParserEvent]:
        """Return the events since the last call."""
        # A block reports into the same list.
        events = self._events.copy()
        self._events.clear()
        return events

    def text(self, text: str) -> None:
        """Read text."""
        if self._block is not None:
            text = self._block.text(text)
            self._leave_if_closed(self._block)
        if not text:
            return
        if self._stage == "behind":
            self._fail("nothing behind the calls", text)
            text = text.lstrip()
            if not text:
                return
            self._stage = "text"
            text = f"\n{text}" if self._text else text
        text = self._held + text
        lead = _LEAD.search(text)
        self._held = lead[0] if lead else ""
        self._say(text[: len(text) - len(self._held)])

    def mark(self, mark: Mark) -> None:
        """Read a mark; one that has no place here is only noted."""
        match mark:
            case Mark.END:
                self.complete = True
                self.flush()
            case Mark.DSML if self._block is not None:
                self._block.mark()
            case Mark.DSML:
                self._open_block()
            case Mark.END_THINK if self.is_reasoning:
                self._release()
                self._stage = "text"
            case _:
                self._fail("no such mark here", mark)

    def flush(self) -> None:
        """End the output: what was held back is text after all."""
        if self._block is not None:
            self._block.end()
            self._leave(self._block)
        if self.is_reasoning:
            self._fail(f"{Mark.END_THINK} behind the reasoning", "the end")
        self._release()

    def output(self) -> Output:
        """Return what the output was, after `flush`."""
        return Output(
            text="".join(self._text),
            calls=tuple(self._calls),
            malformed=tuple(call.error for call in self._calls if call.error is not None),
            complete=self.complete,
            reasoning="".join(self._reasoning),
        )

    def _open_block(self) -> None:
        held, self._held = self._held, ""
        if self.is_reasoning:
            self._fail(f"{Mark.END_THINK} before calls", held + Mark.DSML)
        if held != "\n\n<":
            self._fail("a blank line and < before calls", held + Mark.DSML)
        opened = held.endswith("<")
        if not opened:
            self._say(held)
        self._stage = "behind"
        self._block = CallBlock(self._events, first=len(self._calls), opened=opened)

    def _leave_if_closed(self, block: CallBlock) -> None:
        if block.is_closed:
            self._leave(block)

    def _leave(self, block: CallBlock) -> None:
        self._calls += block.calls
        self.fault = self.fault or block.fault
        self._block = None

    def _release(self) -> None:
        """Say what was held back."""
        held, self._held = self._held, ""
        self._say(held)

    def _say(self, text: str) -> None:
        if not text:
            return
        kind: type[ThinkingDelta] | type[TextDelta]
        kind, parts = TextDelta, self._text
        if self.is_reasoning:
            kind, parts = ThinkingDelta, self._reasoning
        parts.append(text)
        last = self._events[-1] if self._events else None
        if isinstance(last, kind):
            self._events[-1] = kind(last.text + text)
        else:
            self._events.append(kind(text))

    def _fail(self, expected: str, got: str) -> None:
        self.fault = self.fault or f"{expected}, got {got[:60]!r}"
