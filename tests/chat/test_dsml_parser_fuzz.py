"""Whatever the pieces: no exception, no leak, no loss, and no dependence on how they are split."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedagent.chat import ArgsDelta, Output, ParserEvent, Tokenizer, chat_format
from cedagent.chat.control import Mark
from cedagent.chat.dsml import Dsml
from cedagent.chat.dsml_render import call_block
from cedagent.errors import ChatFormatError
from tests.chat.reading import MARKS, byte_ids, check_events, marked, read

D = Mark.DSML
CALL = "".join(call_block([("f", {"a": "b\n<", "n": [1, {"x": None}]}), ("g", {})]))
PIECES = st.lists(
    st.text(max_size=8)
    | st.sampled_from(
        [
            *(CALL, CALL[: len(CALL) // 2], CALL[len(CALL) // 2 :], str(D), f"<{D}", f"</{D}"),
            *("\n\n", "\n", "<", "</", " calls>\n", " invoke>\n", " parameter>\n", " calls>"),
            *(' invoke name="f">\n', ' parameter name="k" string="true">', "2 <", "{", "1e999"),
            *(' parameter name="k" string="false">', "</think>", Mark.THINK, Mark.USER, "tool_"),
            *(f"<{D} calls>\n<{D} invoke name=", '"é', "</tool_result>", "x" * 1_100),
        ]
    ),
    max_size=12,
)


def split_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids in which every byte of content is one of its own."""
    ids: list[int] = []
    for i, piece in enumerate(MARKS.split(text)):
        ids += [tokenizer.control_id(piece)] if i % 2 else byte_ids(tokenizer, piece)
    return ids


def outcome(read_: tuple[Output, list[ParserEvent]]) -> tuple[Output, list[str]]:
    output, events = read_
    deltas = [""] * len(output.calls)
    for event in events:
        if isinstance(event, ArgsDelta):
            deltas[event.index] += event.text
    return output, deltas


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(pieces=PIECES, thinking=st.booleans())
def test_the_result_does_not_depend_on_how_ids_split_the_text(
    dsml: Dsml, reasoning: Dsml, tiny_dsml: Tokenizer, pieces: list[str], thinking: bool
) -> None:
    fmt = reasoning if thinking else dsml
    text = "".join(pieces)
    output, events = read(fmt, marked(tiny_dsml, text))
    check_events(output, events)
    fine = read(fmt, split_ids(tiny_dsml, text))
    check_events(*fine)
    assert outcome(fine) == outcome((output, events))


@settings(deadline=None, max_examples=150)
@given(pieces=PIECES, thinking=st.booleans())
def test_a_text_is_refused_or_read_as_its_ids_are(
    dsml: Dsml, reasoning: Dsml, tiny_dsml: Tokenizer, pieces: list[str], thinking: bool
) -> None:
    fmt = reasoning if thinking else dsml
    text = "".join(pieces) + Mark.END
    try:
        message = fmt.parse(text)
    except ChatFormatError as caught:
        lines = str(caught).splitlines()
        message = None
    if message is None:
        assert len(lines) == 1
        assert lines[0].startswith("expected ")
        return
    output, _ = read(fmt, marked(tiny_dsml, text))
    assert output.complete
    assert output.malformed == ()
    assert message["reasoning_content"] == output.reasoning
    assert message["content"].replace(Mark.USER, "") == output.text
    assert [json.loads(c["function"]["arguments"]) for c in message["tool_calls"]] == [
        call.arguments for call in output.calls
    ]


@settings(deadline=None, max_examples=150)
@given(pieces=PIECES, seed=st.integers(0, 2**32), n_edits=st.integers(0, 6))
def test_any_ids_never_raise_and_never_leak(
    awkward_dsml: Tokenizer, pieces: list[str], seed: int, n_edits: int
) -> None:
    rng = random.Random(seed)
    fmt = chat_format("dsml", tokenizer=awkward_dsml, thinking=seed % 2 == 1)
    ids = [*marked(awkward_dsml, "".join(pieces)), *fmt.stop_ids]
    for _ in range(n_edits):
        at = rng.randrange(len(ids))
        edit = rng.choice(("drop", "insert", "replace", "swap"))
        ids[at : at + 1] = {
            "drop": [],
            "insert": [rng.randrange(awkward_dsml.vocab_size + 9), ids[at]],
            "replace": [rng.randrange(-2, awkward_dsml.vocab_size + 9)],
            "swap": [ids[(at + 1) % len(ids)], ids[at]],
        }[edit]
        ids = ids or [0]
    output, events = read(fmt, ids)
    check_events(output, events)
    plain = awkward_dsml.decode(ids)
    for said in (output.text, output.reasoning):
        assert all(said.count(mark) <= plain.count(mark) for mark in Mark)
    for line in output.malformed:
        assert line.startswith("malformed call: expected ")
        assert "\n" not in line
        assert len(line) < 300
    closed = [*ids, *fmt.closing(ids)]
    assert closed.count(min(fmt.stop_ids)) >= 1
    assert read(fmt, closed)[0].complete


@settings(deadline=None, max_examples=150)
@given(pieces=PIECES)
def test_every_character_is_text_or_call_or_layout(
    dsml: Dsml, tiny_dsml: Tokenizer, pieces: list[str]
) -> None:
    text = "".join(pieces)
    output, _ = read(dsml, marked(tiny_dsml, text))
    kept = output.text + "".join(call.raw for call in output.calls)
    for mark in Mark:
        text, kept = text.replace(mark, ""), kept.replace(mark, "")
    # Only what tags are made of may be gone.
    lost = sorted("".join(text.split()))
    for char in "".join(kept.split()):
        lost.remove(char)
    assert set(lost) <= set('<>/calsinvokeprmt"=')
