"""Reads one ChatML output, id by id: text and calls, as events.

Knows the tags of a call and how JSON strings begin and end, nothing of tools. Invariants: the
result depends on the bytes of the ids alone, not on how they are split; no text is lost (`2 <` is
text unless it becomes a tag); no ids make it raise.
"""

from __future__ import annotations

import json
from typing import Final

from cedagent.chat.call_body import CLOSE, OPEN, CallBody
from cedagent.chat.output import (
    ArgsDelta,
    Call,
    CallEnd,
    CallStart,
    Output,
    ParserEvent,
    TextDelta,
    cut_call,
    parse_call,
)
from cedagent.chat.tokenizer import Tokenizer

_CLOSE_LINE: Final = f"\n{CLOSE}"


class ChatMLParser:
    """An `OutputParser`; see the module for its invariants."""

    def __init__(self, tokenizer: Tokenizer, stop_ids: frozenset[int]) -> None:
        self._stop_ids = stop_ids
        self._stream = tokenizer.stream()
        self._events: list[ParserEvent] = []
        self._text: list[str] = []
        self._calls: list[Call] = []
        self._body: CallBody | None = None
        # Held back: white space, which is text only if text follows it, and the part of a tag.
        self._space = ""
        self._tag = ""
        self._after_call = False
        self._complete = False
        self._ended = False

    def push(self, token: int) -> list[ParserEvent]:
        """Take the next id; return what became certain by it."""
        if self._ended:
            return []
        if token in self._stop_ids:
            self._complete = True
            return self.flush()
        self._read(self._stream.push(token))
        return self._take_events()

    def flush(self) -> list[ParserEvent]:
        """End the output: return the events for what was held back."""
        if self._ended:
            return []
        self._read(self._stream.flush())
        while self._body is not None:
            self._read(self._end_open_call(self._body))
        self._say(self._tag)
        if not self._calls:
            self._emit_text(self._space)
        self._ended = True
        return self._take_events()

    def finish(self) -> Output:
        """End the output if it has not ended, and return what it was."""
        self.flush()
        return Output(
            text="".join(self._text),
            calls=tuple(self._calls),
            malformed=tuple(call.error for call in self._calls if call.error is not None),
            complete=self._complete,
        )

    def missing_closer(self) -> str:
        """Return what an open call lacks of its closing line; empty outside a call."""
        if self._body is None:
            return ""
        written = self._body.text()
        n = next(n for n in range(len(_CLOSE_LINE), -1, -1) if written.endswith(_CLOSE_LINE[:n]))
        return _CLOSE_LINE[n:]

    def _take_events(self) -> list[ParserEvent]:
        events, self._events = self._events, []
        return events

    def _read(self, text: str) -> None:
        while text:
            if self._body is None:
                text = self._read_text(text)
            else:
                text = self._read_call(self._body, text)

    def _read_text(self, text: str) -> str:
        """Read up to an opening tag; return what stands behind it."""
        for i, char in enumerate(text):
            tag = self._tag + char
            if tag == OPEN:
                self._open_call()
                return text[i + 1 :]
            if OPEN.startswith(tag):
                self._tag = tag
                continue
            self._say(self._tag)
            self._tag = ""
            if OPEN.startswith(char):
                self._tag = char
            elif char.isspace():
                self._space += char
            else:
                self._say(char)
        return ""

    def _say(self, text: str) -> None:
        """Emit text and the white space before it; behind a call that is one line break."""
        if not text:
            return
        if self._after_call:
            self._space = "\n" if self._text else ""
        self._emit_text(self._space + text)
        self._space = ""
        self._after_call = False

    def _emit_text(self, text: str) -> None:
        if not text:
            return
        self._text.append(text)
        last = self._events[-1] if self._events else None
        if isinstance(last, TextDelta):
            self._events[-1] = TextDelta(last.text + text)
        else:
            self._events.append(TextDelta(text))

    def _open_call(self) -> None:
        self._body = CallBody()
        self._tag = self._space = ""

    def _read_call(self, body: CallBody, text: str) -> str:
        """Read up to the end of the call; return what stands behind it."""
        index = len(self._calls)
        delta = ""
        rest = ""
        for i, char in enumerate(text):
            had_name = body.name is not None
            delta += body.add(char)
            if body.name is not None and not had_name:
                self._events.append(CallStart(index, body.name))
            if body.end is not None:
                rest = text[i + 1 :]
                break
        if delta:
            self._events.append(ArgsDelta(index, delta))
        if body.end is not None:
            return self._end_call(body) + rest
        return ""

    def _end_call(self, body: CallBody) -> str:
        """Close a call at the tag that ended it; return text that was read past that tag."""
        raw, tag, rest = body.split()
        if tag == CLOSE:
            self._add_call(body, parse_call(raw, name=body.name or ""))
        else:
            self._add_call(body, cut_call(body.name or "", raw, f"{CLOSE} before the next {OPEN}"))
            self._open_call()
        return rest

    def _end_open_call(self, body: CallBody) -> str:
        """End the output inside a call; return text that belongs behind the call, if any."""
        body.break_string()
        if body.end is not None:
            return self._end_call(body)
        self._add_call(body, cut_call(body.name or "", body.text(), f"{CLOSE} before the end"))
        return ""

    def _add_call(self, body: CallBody, call: Call) -> None:
        index = len(self._calls)
        if body.name is None:
            self._events.append(CallStart(index, call.name))
            if call.arguments is not None:
                written = json.dumps(call.arguments, ensure_ascii=False)
                self._events.append(ArgsDelta(index, written))
        self._events.append(CallEnd(index, call))
        self._calls.append(call)
        self._body = None
        self._space = ""
        self._after_call = True
