"""What a parser makes of one output: text, calls, and the events on the way there.

Knows no token ids and no chat format. Invariant: the deltas of an output joined together are the
reasoning, the text and the arguments that its result holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

_EXCERPT = 60
"""Characters of a malformed call that an error message repeats."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the model wrote it; `error` says in one line why it cannot be run."""

    name: str
    """Name of the tool; empty if it could not be read."""
    arguments: dict[str, Any] | None
    """The arguments; None exactly when `error` is set."""
    raw: str
    """What stood between the tags, without surrounding white space."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One parsed output."""

    text: str
    """What the model said outside its calls."""
    calls: tuple[Call, ...]
    """All calls in the order written, malformed ones among them: every call gets a result."""
    malformed: tuple[str, ...]
    """The `error` lines of `calls`, in order."""
    complete: bool
    """Whether the output ended with its stop token; False when it was cut."""
    reasoning: str = ""
    """What the model thought before it spoke, in formats that have it."""


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; the name is known (empty if it cannot be read)."""

    index: int
    """Position of the call in the output, from 0."""
    name: str


@dataclass(frozen=True, slots=True)
class ArgsDelta:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is complete, or known to be malformed."""

    index: int
    call: Call


ParserEvent = ThinkingDelta | TextDelta | CallStart | ArgsDelta | CallEnd


class OutputParser(Protocol):
    """Turns the ids of one output into events; never raises, whatever the ids."""

    def push(self, token: int) -> list[ParserEvent]:
        """Take the next id; return what became certain by it."""
        ...

    def flush(self) -> list[ParserEvent]:
        """End an output that was cut: return the events for what was held back."""
        ...

    def finish(self) -> Output:
        """End the output if it has not ended, and return what it was."""
        ...


def parse_call(raw: str, *, name: str = "") -> Call:
    """Read one call, a JSON object with `name` and `arguments` and no other key; never raises.

    `name` is what the call is reported under if its JSON cannot be read. What `strict_json`
    refuses is malformed, so that arguments can always be written out again.
    """
    raw = raw.strip()
    n_keys = 0

    def count_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # The outermost object is the last to be complete.
        nonlocal n_keys
        n_keys = len(pairs)
        return dict(pairs)

    try:
        value = strict_json(raw, object_pairs_hook=count_keys)
    except ValueError as error:
        return malformed_call(name, raw, str(error))
    if not isinstance(value, dict):
        return malformed_call("", raw, 'an object with "name" and "arguments"')
    written, arguments = value.get("name"), value.get("arguments")
    if not isinstance(written, str) or not written:
        return malformed_call("", raw, 'a "name" that is a string')
    if not isinstance(arguments, dict):
        return malformed_call(written, raw, '"arguments" that are an object')
    if n_keys != 2:
        return malformed_call(written, raw, '"name" and "arguments" once each and no other key')
    return Call(written, arguments, raw)


def cut_call(name: str, raw: str, expected: str) -> Call:
    """Return the call for a text that ended before its closing tag."""
    return malformed_call(name, raw.strip(), expected)


def strict_json(
    text: str, *, object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Return the value of JSON that can be written out again.

    Raises ValueError, which says what was expected, also for what JSON does not have (NaN,
    Infinity), numbers that overflow, and text that is not valid Unicode.
    """
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=object_pairs_hook,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("JSON nested less deeply") from None
    except UnicodeEncodeError:
        raise ValueError("text without lone surrogates") from None
    except ValueError as error:
        raise ValueError(f"JSON ({error})") from None
    return value


def malformed_call(name: str, raw: str, expected: str, *, got: str | None = None) -> Call:
    """Return a call that cannot be run, with the line that says what was expected of it.

    `got` is the part of it that is wrong; None takes its beginning.
    """
    shown = raw if got is None else got
    excerpt = shown if len(shown) <= _EXCERPT else f"{shown[:_EXCERPT]}..."
    return Call(name, None, raw, f"malformed call: expected {expected}, got {excerpt!r}")


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:20]} overflows")
    return value
