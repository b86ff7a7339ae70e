"""The text between the tags of a tagged JSON call, read character by character.

Knows where the call ends, its name as soon as it stands there, and which characters are its
arguments; it does not judge whether the JSON is right. Invariant: a tag inside a JSON string is
part of the string. A string that breaks JSON (a raw line break in it, or the end of the output)
loses that protection, so that one forgotten quote cannot swallow the calls that follow.
"""

from __future__ import annotations

import json
import re
from typing import Final

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"

_TAG: Final = re.compile(f"{CLOSE}|{OPEN}")
_HEAD: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:', re.DOTALL
)


class CallBody:
    """One call that is being read; ask `end` after each character."""

    def __init__(self) -> None:
        self.name: str | None = None
        """The name, once the head `{"name": ..., "arguments":` was read."""
        self.end: tuple[int, int] | None = None
        """Where in the text the tag that ends the call begins and stops."""
        self._chars: list[str] = []
        self._string_start: int | None = None
        self._escaped = False
        self._broken = False
        self._depth = 0
        self._args = "before"  # "before", "first", "inside" or "behind" the arguments

    def text(self) -> str:
        """Return all characters so far."""
        return "".join(self._chars)

    def split(self) -> tuple[str, str, str]:
        """Return the call's text, the tag that ended it, and what was read behind the tag."""
        if self.end is None:
            raise ValueError("expected a call that has ended")
        text = self.text()
        start, stop = self.end
        return text[:start], text[start:stop], text[stop:]

    def add(self, char: str) -> str:
        """Read one character; return it if it belongs to the arguments, else nothing."""
        self._chars.append(char)
        if self._string_start is not None:
            return self._add_in_string(char, self._string_start)
        if char == ">":
            self._end_at_tag()
        if self._broken:
            return ""
        depth = self._depth
        if char == '"':
            self._string_start = len(self._chars)
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        elif char == ":" and depth == 1 and self.name is None:
            self._read_head()
            return ""
        return char if self._is_argument(char, depth) else ""

    def break_string(self) -> None:
        """Give up the protection of an open string: a tag in it ends the call after all."""
        if self._string_start is None:
            return
        match = _TAG.search(self.text(), self._string_start)
        self._string_start = None
        self._broken = True
        if match is not None:
            self.end = match.span()

    def _add_in_string(self, char: str, start: int) -> str:
        if char < " ":
            self.break_string()
            return ""
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._string_start = None
        return char if self._args == "inside" else ""

    def _end_at_tag(self) -> None:
        for tag in (CLOSE, OPEN):
            if "".join(self._chars[-len(tag) :]) == tag:
                self.end = (len(self._chars) - len(tag), len(self._chars))
                return

    def _read_head(self) -> None:
        match = _HEAD.fullmatch(self.text())
        if match is None:
            return
        # The pattern admits escapes that JSON does not have; such a name is read at the end.
        try:
            self.name = str(json.loads(match.group(1)))
        except ValueError:
            return
        self._args = "first"

    def _is_argument(self, char: str, depth: int) -> bool:
        """Whether a character outside strings belongs to the arguments; `depth` is before it."""
        if self._args == "first" and not char.isspace():
            self._args = "inside"
        if self._args != "inside":
            return False
        if depth == 1 and char in ",}":
            self._args = "behind"
            return False
        if depth == 2 and self._depth == 1:
            self._args = "behind"
        return True
