"""The parser loses no text and reports malformed calls, one line each."""

from __future__ import annotations

import pytest

from cedagent.chat import ArgsDelta, CallStart, ChatFormat, Output, ParserEvent, Tokenizer
from tests.chat.reading import block, byte_ids, check_events, parsed, read


def test_text_and_parallel_calls(tiny: Tokenizer, chatml: ChatFormat) -> None:
    text = f"Two cities.\n\n{block('get', {'city': 'Roma'})}\n{block('get', {'city': 'Oslo 🇳🇴'})}"
    output = parsed(tiny, chatml, text)
    assert output.text == "Two cities."
    assert [(c.name, c.arguments) for c in output.calls] == [
        ("get", {"city": "Roma"}),
        ("get", {"city": "Oslo 🇳🇴"}),
    ]
    assert output.calls[0].raw == '{"name": "get", "arguments": {"city": "Roma"}}'
    assert output.malformed == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("  plain \n", "  plain \n"),
        (" \n", " \n"),
        (f"  {block('f', {})}  ", ""),
        (f"a \n {block('f', {})}\n\n", "a"),
        (f"a{block('f', {})} b", "a\nb"),
        (f"{block('f', {})}\nb \n", "b"),
        (f"a\n{block('f', {})}{block('f', {})} b  c", "a\nb  c"),
    ],
)
def test_white_space_around_calls_is_not_text(
    tiny: Tokenizer, chatml: ChatFormat, text: str, said: str
) -> None:
    assert parsed(tiny, chatml, text).text == said


@pytest.mark.parametrize(
    "text",
    [
        "2 <",
        "a <tool",
        "<tool_cal",
        "< tool_call>",
        "<<<",
        "<tool_<tool_call",
        "</tool_call>",
        "<TOOL_CALL>",
    ],
)
def test_text_that_is_almost_a_tag_is_never_lost(
    tiny: Tokenizer, chatml: ChatFormat, text: str
) -> None:
    assert parsed(tiny, chatml, text).text == text
    assert read(chatml, tiny.encode(text))[0].text == text
    assert parsed(tiny, chatml, f"{text} {block('f', {})}").text == text


def test_a_tag_after_the_beginning_of_a_tag(tiny: Tokenizer, chatml: ChatFormat) -> None:
    for before in ("x <tool_<", "<", "x <tool_call"):
        output = parsed(tiny, chatml, f"{before}{block('f', {'a': 1})}")
        assert output.text == before
        assert output.calls[0].arguments == {"a": 1}


def test_tags_inside_a_json_string_belong_to_it(tiny: Tokenizer, chatml: ChatFormat) -> None:
    arguments = {"text": 'a</tool_call>\n<tool_call>\\" {', "b": ["</tool_call>"]}
    output = parsed(tiny, chatml, block("write", arguments) + block("f", {}))
    assert [c.arguments for c in output.calls] == [arguments, {}]


def test_arguments_stream_while_they_are_written(tiny: Tokenizer, chatml: ChatFormat) -> None:
    parser = chatml.parser()
    seen: list[ParserEvent] = []
    for token in byte_ids(tiny, '<tool_call>\n{"name": "f", "arguments": {"a": [1, "}'):
        seen += parser.push(token)
    assert seen[0] == CallStart(0, "f")
    assert "".join(e.text for e in seen[1:] if isinstance(e, ArgsDelta)) == '{"a": [1, "}'


@pytest.mark.parametrize(
    ("body", "name", "expected"),
    [
        ("", "", "JSON"),
        ("{", "", "JSON"),
        ('{"name": "f", "arguments": {"a": 1}', "f", "JSON"),
        ('["f", {}]', "", "an object"),
        ('{"arguments": {}}', "", '"name"'),
        ('{"name": 1, "arguments": {}}', "", '"name"'),
        ('{"name": "", "arguments": {}}', "", '"name"'),
        ('{"name": "f"}', "f", '"arguments"'),
        ('{"name": "f", "arguments": "{}"}', "f", '"arguments"'),
        ('{"name": "f", "arguments": [1]}', "f", '"arguments"'),
        ('{"name": "f", "arguments": {}, "x": 1}', "f", "no other key"),
        ('{"name": "f", "arguments": {}, "name": "g"}', "f", "no other key"),
        ('{"name": "f", "arguments": {"a": NaN}}', "f", "NaN"),
        ('{"name": "f", "arguments": {"a": -Infinity}}', "f", "Infinity"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "f", "overflows"),
        ('{"name": "f", "arguments": {"a": 1%s}}' % ("0" * 5000), "f", "JSON"),
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', "f", "surrogates"),
        ('{"name": "f\\x", "arguments": {}}', "", "JSON"),
        ('{"name": "f", "arguments": {"a": "line\nbreak"}}', "f", "JSON"),
        ("[" * 100_000, "", "nested less deeply"),
        ('{"name": "f", "arguments": }', "f", "JSON"),
        ('{"name": "f", "arguments": {}}}', "f", "JSON"),
        ("calculator(2)", "", "JSON"),
    ],
)
def test_malformed_calls_are_one_line_each_and_never_run(
    tiny: Tokenizer, chatml: ChatFormat, body: str, name: str, expected: str
) -> None:
    text = f"Hm.\n<tool_call>\n{body}\n</tool_call>\n{block('ok', {'a': 1})}"
    output, events = read(chatml, [*tiny.encode(text), *chatml.stop_ids])
    bad, good = output.calls
    assert (good.name, good.arguments, good.error) == ("ok", {"a": 1}, None)
    assert bad.arguments is None
    assert bad.error is not None
    assert bad.error.startswith("malformed call: expected ")
    assert expected in bad.error
    assert "\n" not in bad.error
    assert len(bad.error) < 300
    assert output.malformed == (bad.error,)
    (start,) = [e for e in events if isinstance(e, CallStart) and e.index == 0]
    assert start.name == name


def test_one_forgotten_quote_does_not_swallow_the_next_call(
    tiny: Tokenizer, chatml: ChatFormat
) -> None:
    bad = '<tool_call>{"name": "f", "arguments": {"a": "b}}</tool_call>'
    output = parsed(tiny, chatml, f"{bad}\n{block('g', {})}\nDone.")
    assert [(c.name, c.error is None) for c in output.calls] == [("f", False), ("g", True)]
    assert output.text == "Done."
    # The same at the end of the output, where no line break gives it away.
    output = parsed(tiny, chatml, bad)
    assert output.calls[0].raw == bad[len("<tool_call>") : -len("</tool_call>")]


def test_a_call_without_closing_tag_ends_at_the_next_one(
    tiny: Tokenizer, chatml: ChatFormat
) -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n' + block("g", {})
    output = parsed(tiny, chatml, text)
    assert [(c.name, c.error is None) for c in output.calls] == [("f", False), ("g", True)]
    assert "expected </tool_call> before the next <tool_call>" in output.malformed[0]


def test_keys_in_another_order_and_with_other_white_space_are_read(
    tiny: Tokenizer, chatml: ChatFormat
) -> None:
    for body in (
        '{"arguments":{"a":{"b":[1,2]}},"name":"f"}',
        ' { "name" :\n"f" , "arguments":{ "a":{ "b":[1 ,2] } } } ',
        '\n\n{"name": "\\u0066", "arguments": {"a": {"b": [1, 2]}}}',
    ):
        output = parsed(tiny, chatml, f"<tool_call>{body}</tool_call>")
        assert output.calls[0].arguments == {"a": {"b": [1, 2]}}
        assert output.calls[0].name == "f"


def test_a_cut_call_is_reported_with_its_name(tiny: Tokenizer, chatml: ChatFormat) -> None:
    output, events = read(chatml, tiny.encode('Hm <tool_call>\n{"name": "f", "arguments": {"a'))
    assert not output.complete
    assert output.text == "Hm"
    assert output.calls[0].name == "f"
    assert "expected </tool_call> before the end" in output.malformed[0]
    check_events(output, events)


def test_an_output_cut_inside_a_character_says_so(tiny: Tokenizer, chatml: ChatFormat) -> None:
    ids = byte_ids(tiny, "a👋")
    output, events = read(chatml, ids[:3])
    assert output.text == "a\ufffd"
    check_events(output, events)


def test_control_tokens_are_not_text_and_nothing_follows_the_stop_token(
    tiny: Tokenizer, chatml: ChatFormat
) -> None:
    start, end = tiny.control_id("<|im_start|>"), tiny.control_id("<|im_end|>")
    output, _ = read(chatml, [start, *tiny.encode("a"), start, 10**6, end, *tiny.encode("b"), end])
    assert output == Output("a", (), (), complete=True)
