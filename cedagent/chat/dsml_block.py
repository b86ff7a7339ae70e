"""One block of DSML calls, read piece by piece; each piece is text or the DSML mark.

Knows the tags of calls and which may follow which, nothing of tools. Invariants: tags are read as
the layout has them, to the character; what is not is one malformed call, which ends at the next
call's opening tag or at the block's end, and nothing makes it raise.
"""

from __future__ import annotations

import json
from typing import Any

from cedagent.chat.control import Mark
from cedagent.chat.dsml_tags import (
    CALLS,
    FIXED,
    INVOKE,
    INVOKE_HEAD,
    JSON_END,
    LONGEST_NAME,
    NAME_END,
    NEXT,
    PARAMETER_HEAD,
    TEXT_END,
    Tag,
)
from cedagent.chat.output import (
    ArgsDelta,
    Call,
    CallEnd,
    CallStart,
    ParserEvent,
    malformed_call,
    strict_json,
)


class CallBlock:
    """The calls behind one `<` and DSML mark."""

    def __init__(self, events: list[ParserEvent], *, first: int, opened: bool) -> None:
        """Begin behind the mark, which a `<` led if `opened`; report calls from index `first`."""
        self.calls: list[Call] = []
        self.fault: str | None = None
        """The first thing that the layout does not have."""
        self.is_closed = False
        self._events = events
        self._first = first
        self._tag: Tag = "calls"
        self._head = ""  # text of the tag, and of what led the next one
        self._lead = ""  # where lost: what led the tag that may be the way back
        self._raw = ["<" if opened else "", str(Mark.DSML)]
        self._name: str | None = None  # of the call that is open
        self._arguments: dict[str, Any] = {}
        self._key = ""
        self._value: list[str] | None = None
        self._is_text = False
        self._expected = ""
        self._got = ""
        if not opened:
            self._lose("a tag that begins with <", self._raw[-1])

    def text(self, text: str) -> str:
        """Read text; return what of it stands behind the block."""
        for i, char in enumerate(text):
            if self.is_closed:
                return text[i:]
            if self._value is not None or (self._tag == "lost" and not self._lead):
                self._read_freely(text[i:])
                break
            # Tags are read by the character, so that a fault is the same however they are split.
            self._raw.append(char)
            self._head += char
            if self._tag == "lost":
                self._look_back()
            elif self._tag in FIXED:
                self._read_fixed(FIXED[self._tag])
            else:
                self._read_named()
        return ""

    def mark(self) -> None:
        """Read a DSML mark: the tag behind it begins."""
        lead = self._head
        if self._tag in FIXED:
            lead = lead.removeprefix(FIXED[self._tag])
        tag = NEXT.get((self._tag, lead))
        if self._tag == "parameter" and tag is not None:
            self._end_value()
        elif tag is None and self._tag != "lost":
            self._lose("one tag after the other", self._head[-20:] + Mark.DSML)
        if self._tag == "lost":
            self._lead = "</" if lead.endswith("</") else "<" if lead.endswith("<") else ""
        elif tag is not None:
            self._tag = tag
        self._head = ""
        if self._tag == "invoke":
            self._raw = ["<"]
        self._raw.append(str(Mark.DSML))

    def end(self) -> None:
        """End an output inside the block."""
        what = f"</{Mark.DSML}{INVOKE}> before the end"
        if self._tag == "lost":
            self._end_lost("".join(self._raw))
        elif self._tag == "calls" or self._name is not None or self._tag == "invoke":
            self._fail(what)
            self._end_call(malformed_call(self._name or "", "".join(self._raw), what))
        else:
            self._fail(f"</{Mark.DSML}{CALLS}> before the end")

    def _read_freely(self, text: str) -> None:
        """Take text whose end alone matters: it may lead the next tag."""
        self._raw.append(text)
        if self._value is not None:
            self._read_value(self._value, text)
        else:
            self._head = (self._head + text)[-2:]

    def _read_fixed(self, tag: str) -> None:
        head = self._head
        if self._tag == "/invoke" and head == f"{INVOKE}>":
            self._finish_call()
        if self._tag == "/calls" and head == tag:
            self.is_closed = True
        elif not f"{tag}</".startswith(head):
            self._lose(repr(tag), head)

    def _read_named(self) -> None:
        is_call = self._tag == "invoke"
        start, ends = PARAMETER_HEAD, [TEXT_END, JSON_END]
        if is_call:
            start, ends = INVOKE_HEAD, [NAME_END]
        head = self._head
        end = next((end for end in ends if head.endswith(end)), None)
        if is_call and self._name is not None:
            if head != "<" and not "</".startswith(head) and not "\n</".startswith(head):
                self._lose("a parameter or the end of the call", head)
        elif not (start.startswith(head) or head.startswith(start)):
            self._lose(repr(start), head)
        elif end is not None and len(head) >= len(start) + len(end):
            name = head[len(start) : -len(end)]
            if is_call:
                self._begin_call(name)
            else:
                self._begin_value(name, is_text=end == TEXT_END)
        elif len(head) > LONGEST_NAME:
            self._lose("a shorter name", head)

    def _begin_call(self, name: str) -> None:
        if not name:
            self._lose("the name of a tool", self._head)
            return
        self._name, self._arguments, self._head = name, {}, ""
        self._events.append(CallStart(self._index, name))

    def _begin_value(self, key: str, *, is_text: bool) -> None:
        if key in self._arguments:
            self._lose("each parameter once", key)
            return
        self._key, self._is_text, self._value, self._head = key, is_text, [], ""
        before = ", " if self._arguments else "{"
        self._say(f"{before}{_quoted(key)}: " + ('"' if is_text else ""))

    def _read_value(self, value: list[str], text: str) -> None:
        """Take more of a value; a `<` at its end may lead the closing tag."""
        text = self._head + text
        self._head = "</" if text.endswith("</") else "<" if text.endswith("<") else ""
        text = text[: len(text) - len(self._head)]
        if text:
            value.append(text)
            self._say(_quoted(text)[1:-1] if self._is_text else text)

    def _end_value(self) -> None:
        text, self._value = "".join(self._value or ()), None
        if self._is_text:
            self._arguments[self._key] = text
            self._say('"')
            return
        try:
            self._arguments[self._key] = strict_json(text)
        except ValueError as error:
            self._lose(f"{error} as the value of {self._key!r}", text)

    def _finish_call(self) -> None:
        self._say("}" if self._arguments else "{}")
        self._end_call(Call(self._name or "", self._arguments, "".join(self._raw)))
        self._raw = []

    def _lose(self, expected: str, got: str) -> None:
        """Give up on the open call, or on what stands between calls, until a way back."""
        self._fail(f"{expected}, got {got[:60]!r}")
        self._tag, self._lead, self._value = "lost", "", None
        self._expected, self._got = expected, got
        self._head = self._head[-2:]

    def _look_back(self) -> None:
        """See whether the tag that begins here leads back to calls that can be read."""
        way = INVOKE_HEAD if self._lead == "<" else FIXED["/calls"]
        if not self._head.startswith(way):
            if not way.startswith(self._head):
                self._lead = ""
                self._head = self._head[-2:]
            return
        raw = "".join(self._raw)
        back = f"{self._lead}{Mark.DSML}{self._head}"
        self._end_lost(raw[: len(raw) - len(back)])
        self._raw = [back]
        self._tag = "invoke" if self._lead == "<" else "/calls"

    def _end_lost(self, raw: str) -> None:
        # White space between calls is no call of the model's.
        if self._name is not None or raw.strip():
            expected, got = self._expected, self._got
            self._end_call(malformed_call(self._name or "", raw.strip(), expected, got=got))

    def _end_call(self, call: Call) -> None:
        if self._name is None:
            self._events.append(CallStart(self._index, call.name))
        self._events.append(CallEnd(self._index, call))
        self.calls.append(call)
        self._name = None

    @property
    def _index(self) -> int:
        return self._first + len(self.calls)

    def _say(self, text: str) -> None:
        self._events.append(ArgsDelta(self._index, text))

    def _fail(self, what: str) -> None:
        self.fault = self.fault or what


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
