"""DSML outputs, read from token ids as they come, or from a whole text.

Knows how ids and texts become text and marks. From ids everything is read, malformed or not; a
text is read to the letter or refused. Invariant: no ids make the parser raise, and no control
token becomes text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from cedagent.chat.control import Mark
from cedagent.chat.dsml_reader import DsmlReader
from cedagent.chat.output import ArgsDelta, CallStart, Output, ParserEvent
from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import ChatFormatError

_MARKS: Final = re.compile(
    "("
    + "|".join(
        map(re.escape, (Mark.BEGIN, Mark.END, Mark.THINK, Mark.END_THINK, Mark.DSML)),
    )
    + ")"
)


class DsmlParser:
    """An `OutputParser`; see the module for its invariants."""

    def __init__(
        self, tokenizer: Tokenizer, marks: Mapping[int, Mark], *, thinking: bool = False
    ) -> None:
        """Begin behind an answer header; `marks` are the ids that the layout knows."""
        self._stream = tokenizer.stream()
        self._marks = marks
        self._reader = DsmlReader(thinking=thinking)
        self._ended = False

    @property
    def is_reasoning(self) -> bool:
        """Whether the reasoning has not ended."""
        return self._reader.is_reasoning

    def push(self, token: int) -> list[ParserEvent]:
        """Take the next id; return what became certain by it."""
        if self._ended:
            return []
        self._reader.text(self._stream.push(token))
        mark = self._marks.get(token)
        if mark is not None:
            self._reader.mark(mark)
            self._ended = self._reader.complete
        return self._reader.take()

    def flush(self) -> list[ParserEvent]:
        """End the output: return the events for what was held back."""
        if self._ended:
            return []
        self._reader.text(self._stream.flush())
        self._reader.flush()
        self._ended = True
        return self._reader.take()

    def finish(self) -> Output:
        """End the output if it has not ended, and return what it was."""
        self.flush()
        return self._reader.output()


def marked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text in which the names of marks stand for the marks.

    For texts that are known to come from a model; in content such names are content.
    """
    ids: list[int] = []
    for i, piece in enumerate(_MARKS.split(text)):
        ids += [tokenizer.control_id(piece)] if i % 2 else tokenizer.encode(piece)
    return ids


def parse_message(text: str, *, thinking: bool) -> dict[str, Any]:
    """Return a completion as a message: `role`, `content`, `reasoning_content`, `tool_calls`.

    The text begins behind the answer header and ends with the end mark. Arguments are JSON text,
    in the order and spelling in which they were written. Raises ChatFormatError, with what was
    expected and what came, for a text that is not to the letter what the layout has.
    """
    reader = DsmlReader(thinking=thinking)
    pieces = _MARKS.split(text)
    for i, piece in enumerate(pieces):
        if reader.complete and piece:
            raise ChatFormatError(f"expected nothing behind {Mark.END}, got {piece[:60]!r}")
        if i % 2:
            reader.mark(Mark(piece))
        else:
            reader.text(piece)
    if not reader.complete:
        reader.flush()
    if reader.fault is not None:
        raise ChatFormatError(f"expected {reader.fault}")
    if not reader.complete:
        raise ChatFormatError(f"expected {Mark.END} at the end, got {text[-60:]!r}")
    output = reader.output()
    names: list[str] = []
    arguments: list[str] = []
    for event in reader.take():
        if isinstance(event, CallStart):
            names.append(event.name)
            arguments.append("")
        elif isinstance(event, ArgsDelta):
            arguments[event.index] += event.text
    return {
        "role": "assistant",
        "content": output.text,
        "reasoning_content": output.reasoning,
        "tool_calls": [
            {"type": "function", "function": {"name": name, "arguments": written}}
            for name, written in zip(names, arguments, strict=True)
        ],
    }
