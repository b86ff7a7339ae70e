"""Keeps the numbers that a grammar samples finite and exact enough to stay inside their bounds.

JSON allows `1e999`, which no float holds, and `0.99999999999999999`, which rounds to 1. Knows the
bytes of calls and which ids continue a number, no schema. Invariant: a number has at most
two exponent digits, fifteen significant digits if it has a fraction, and a hundred digits in all;
two decimals of fifteen digits never round to the same double.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from cedagent.chat.tokenizer import Tokenizer

_SIGNIFICANT: Final = 15
_DIGITS: Final = 100
_EXPONENT: Final = 2

_CONTINUES: Final = re.compile(rb"[0-9.eE+-]*[0-9]")
_NUMBER: Final = re.compile(rb"-?([0-9]*)(\.[0-9]*)?(?:[eE][+-]?([0-9]*))?")


class NumberLimit:
    """The ids of one tokenizer that continue a number with a digit."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._digits: list[tuple[int, bytes]] = []
        for i in range(tokenizer.vocab_size):
            data = tokenizer.token_bytes(i)
            if data is not None and _CONTINUES.match(data):
                self._digits.append((i, data))
        self._longest = max((len(data) for _, data in self._digits), default=0)
        self._exponents = [(i, data) for i, data in self._digits if b"e" in data.lower()]

    def too_long(self, number: bytes) -> int:
        """Return the set of ids, as bits, that would make the number break the limits."""
        plain = not (b"e" in number or b"E" in number)
        # A short number can only grow too long by an exponent that comes in one piece.
        is_short = plain and len(number) + self._longest <= _SIGNIFICANT
        bits = 0
        for i, data in self._exponents if is_short else self._digits:
            if not _within(number + data):
                bits |= 1 << i
        return bits


class NumberWatch(Protocol):
    """Follows the ids of one output and knows the number that is being written."""

    @property
    def number(self) -> bytes:
        """The number so far; empty outside numbers, and always in strings."""
        ...

    def feed(self, token: int) -> None:
        """Take the next id."""
        ...


class ByteNumbers:
    """A `NumberWatch` of calls that are plain text."""

    def __init__(self, tokenizer: Tokenizer, opener: bytes | None) -> None:
        """Start inside calls if `opener` is None, else at the first place where it stands."""
        self._tokenizer = tokenizer
        self._opener = opener
        self._tail = b""
        self._json = JsonNumbers()

    @property
    def number(self) -> bytes:
        """The number so far; empty outside numbers, and always in strings."""
        return self._json.number

    def feed(self, token: int) -> None:
        """Take the next id."""
        data = self._tokenizer.token_bytes(token) or b""
        if self._opener is not None:
            seen = self._tail + data
            start = seen.find(self._opener)
            if start < 0:
                self._tail = seen[-(len(self._opener) - 1) :]
                return
            data = seen[start + len(self._opener) :]
            self._opener = None
        self._json.feed(data)


class JsonNumbers:
    """Follows the bytes of JSON."""

    def __init__(self) -> None:
        self._in_string = False
        self._escaped = False
        self.number = b""
        """The number so far; empty outside numbers, and always in strings."""

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        for byte in data:
            self._add(byte)

    def _add(self, byte: int) -> None:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif byte == 0x5C:  # backslash
                self._escaped = True
            elif byte == 0x22:  # quote
                self._in_string = False
            return
        if byte in (b"0123456789.eE+-" if self.number else b"0123456789-"):
            self.number += bytes((byte,))
            return
        self.number = b""
        self._in_string = byte == 0x22


def _within(number: bytes) -> bool:
    match = _NUMBER.match(number)
    if match is None:
        return True
    whole, fraction, exponent = match.groups()
    digits = whole + (fraction or b".")[1:]
    if len(exponent or b"") > _EXPONENT or len(digits) > _DIGITS:
        return False
    return fraction is None or len(digits.lstrip(b"0")) <= _SIGNIFICANT
