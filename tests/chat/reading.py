"""Reads outputs in tests: texts to ids, ids to a result and its events, and what must agree."""

from __future__ import annotations

import json
import re

from cedagent.chat import (
    ArgsDelta,
    CallEnd,
    CallStart,
    ChatFormat,
    Output,
    ParserEvent,
    TextDelta,
    ThinkingDelta,
    Tokenizer,
)
from cedagent.chat.control import Mark

MARKS = re.compile("(" + "|".join(map(re.escape, Mark)) + ")")


def block(name: str, arguments: object) -> str:
    head = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{head}\n</tool_call>"


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of single bytes: the finest way to split a text."""
    of_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size - 1, -1, -1)}
    return [of_byte[bytes([b])] for b in text.encode()]


def marked(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text in which the names of DSML's marks are the marks."""
    ids: list[int] = []
    for i, piece in enumerate(MARKS.split(text)):
        ids += [tokenizer.control_id(piece)] if i % 2 else tokenizer.encode(piece)
    return ids


def shown(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of ids, control tokens by their names."""
    return b"".join(
        tokenizer.token_bytes(i) or tokenizer.token_name(i).encode() for i in ids
    ).decode(errors="replace")


def read(fmt: ChatFormat, ids: list[int]) -> tuple[Output, list[ParserEvent]]:
    parser = fmt.parser()
    events = [event for token in ids for event in parser.push(token)]
    events += parser.flush()
    return parser.finish(), events


def result(fmt: ChatFormat, ids: list[int]) -> Output:
    """Return what an output was."""
    return read(fmt, ids)[0]


def parsed(tokenizer: Tokenizer, fmt: ChatFormat, text: str) -> Output:
    """Parse an output that ended, and check that its events say the same as its result."""
    output, events = read(fmt, [*tokenizer.encode(text), *fmt.stop_ids])
    assert output.complete
    check_events(output, events)
    return output


def check_events(output: Output, events: list[ParserEvent]) -> None:
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == output.text
    assert "".join(e.text for e in events if isinstance(e, ThinkingDelta)) == output.reasoning
    ends = [e for e in events if isinstance(e, CallEnd)]
    assert [e.call for e in ends] == list(output.calls)
    assert [e.index for e in ends] == list(range(len(ends)))
    assert output.malformed == tuple(c.error for c in output.calls if c.error is not None)
    for i, call in enumerate(output.calls):
        mine = [e for e in events if not isinstance(e, TextDelta | ThinkingDelta) and e.index == i]
        start, *deltas, _ = mine
        assert isinstance(start, CallStart)
        assert isinstance(mine[-1], CallEnd)
        assert (call.arguments is None) == (call.error is not None)
        if call.arguments is not None:
            assert start.name == call.name
            assert (
                json.loads("".join(d.text for d in deltas if isinstance(d, ArgsDelta)))
                == call.arguments
            )
