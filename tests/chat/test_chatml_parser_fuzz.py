"""Whatever the ids: no exception, no leak, no loss, and no dependence on how they are split."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from cedagent.chat import ArgsDelta, ChatFormat, Output, ParserEvent, Tokenizer, chat_format
from tests.chat.reading import block, byte_ids, check_events, read

PIECES = st.lists(
    st.text(max_size=8)
    | st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", '{"name": "f", "arguments": {', "}", '"', "\\", "\n"),
            *(block("f", {"a": "b"}), block("g", {"x": [1, "</tool_call>"]}), "<", "2 <", " ", ":"),
        ]
    ),
    max_size=9,
)


def outcome(read_: tuple[Output, list[ParserEvent]]) -> tuple[Output, list[tuple[int, str]]]:
    output, events = read_
    deltas = {i: "" for i in range(len(output.calls))}
    for event in events:
        if isinstance(event, ArgsDelta):
            deltas[event.index] += event.text
    return output, list(deltas.items())


@settings(deadline=None, max_examples=60)
@given(pieces=PIECES)
def test_the_result_does_not_depend_on_how_ids_split_the_text(
    tiny: Tokenizer, awkward: Tokenizer, chatml: ChatFormat, pieces: list[str]
) -> None:
    text = "".join(pieces)
    whole = outcome(read(chatml, tiny.encode(text)))
    assert outcome(read(chatml, byte_ids(tiny, text))) == whole
    # Longest tokens first: splits that cross every boundary.
    other = chat_format("chatml", tokenizer=awkward)
    assert outcome(read(other, greedy_ids(awkward, text))) == whole


def greedy_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    table = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    data, ids = text.encode(), list[int]()
    while data:
        n = next(n for n in range(40, 0, -1) if data[:n] in table and n <= len(data))
        ids.append(table[data[:n]])
        data = data[n:]
    return ids


@settings(deadline=None, max_examples=60)
@given(pieces=PIECES, seed=st.integers(0, 2**32), n_edits=st.integers(0, 6))
def test_mutated_outputs_never_raise_and_never_leak(
    tiny: Tokenizer, chatml: ChatFormat, pieces: list[str], seed: int, n_edits: int
) -> None:
    rng = random.Random(seed)
    ids = [*tiny.encode("".join(pieces)), *chatml.stop_ids]
    for _ in range(n_edits):
        at = rng.randrange(len(ids))
        edit = rng.choice(("drop", "insert", "replace", "swap"))
        ids[at : at + 1] = {
            "drop": [],
            "insert": [rng.randrange(tiny.vocab_size + 9), ids[at]],
            "replace": [rng.randrange(-2, tiny.vocab_size + 9)],
            "swap": [ids[(at + 1) % len(ids)], ids[at]],
        }[edit]
        ids = ids or [0]
    output, events = read(chatml, ids)
    check_events(output, events)
    said = output.text + "".join(call.raw for call in output.calls)
    assert not any(tiny.token_name(i) in said for i in tiny.control_ids)
    for line in output.malformed:
        assert "\n" not in line
    chatml.closing(ids)


@settings(deadline=None, max_examples=60)
@given(pieces=PIECES)
def test_every_character_is_text_or_call_or_layout(
    tiny: Tokenizer, chatml: ChatFormat, pieces: list[str]
) -> None:
    text = "".join(pieces)
    output, _ = read(chatml, tiny.encode(text))
    kept = output.text + "".join(call.raw for call in output.calls)
    for tag in ("<tool_call>", "</tool_call>"):
        text, kept = text.replace(tag, ""), kept.replace(tag, "")
    assert sorted("".join(text.split())) == sorted("".join(kept.split()))
