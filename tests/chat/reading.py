"""Reads outputs in tests: texts to ids, ids to a result and its events, and what must agree."""

from __future__ import annotations

import json

from cedagent.chat import (
    ArgsDelta,
    CallEnd,
    CallStart,
    ChatFormat,
    Output,
    ParserEvent,
    TextDelta,
    Tokenizer,
)


def block(name: str, arguments: object) -> str:
    head = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{head}\n</tool_call>"


def byte_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of single bytes: the finest way to split a text."""
    of_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size - 1, -1, -1)}
    return [of_byte[bytes([b])] for b in text.encode()]


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
    ends = [e for e in events if isinstance(e, CallEnd)]
    assert [e.call for e in ends] == list(output.calls)
    assert [e.index for e in ends] == list(range(len(ends)))
    assert output.malformed == tuple(c.error for c in output.calls if c.error is not None)
    for i, call in enumerate(output.calls):
        mine = [e for e in events if not isinstance(e, TextDelta) and e.index == i]
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
