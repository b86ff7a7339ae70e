"""The DSML parser loses no text, streams as it reads, and says in one line what is malformed."""

from __future__ import annotations

import pytest

from cedagent.chat import (
    ArgsDelta,
    CallStart,
    Output,
    ParserEvent,
    TextDelta,
    ThinkingDelta,
    Tokenizer,
)
from cedagent.chat.control import Mark
from cedagent.chat.dsml import Dsml
from cedagent.chat.dsml_render import call_block
from cedagent.errors import ChatFormatError
from tests.chat.reading import check_events, marked, read

D = Mark.DSML
TWO = "".join(call_block([("f", {"a": "x", "n": [1, None]}), ("g", {})]))


def parsed(tokenizer: Tokenizer, fmt: Dsml, text: str, *, ended: bool = True) -> Output:
    output, events = read(fmt, marked(tokenizer, text + Mark.END * ended))
    assert output.complete == ended
    check_events(output, events)
    return output


def invoke(body: str) -> str:
    """A block with one call of these characters between its tags, and a second, good one."""
    good = f'<{D} invoke name="ok">\n\n</{D} invoke>'
    return f"\n\n<{D} calls>\n<{D} invoke{body}</{D} invoke>\n{good}\n</{D} calls>"


def test_reasoning_text_and_parallel_calls(tiny_dsml: Tokenizer, reasoning: Dsml) -> None:
    output = parsed(tiny_dsml, reasoning, f"Two.\n\n</think>So:{TWO}")
    assert (output.reasoning, output.text) == ("Two.\n\n", "So:")
    assert [(c.name, c.arguments) for c in output.calls] == [
        ("f", {"a": "x", "n": [1, None]}),
        ("g", {}),
    ]
    assert output.calls[0].raw.startswith(f'<{D} invoke name="f">\n')
    assert output.calls[0].raw.endswith(f"</{D} invoke>")
    assert output.calls[1].raw == f'<{D} invoke name="g">\n\n</{D} invoke>'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("2 <", "2 <"),
        ("a\n\n<", "a\n\n<"),
        ("a\n\n\n< calls>", "a\n\n\n< calls>"),
        (" plain \n\n", " plain \n\n"),
        (TWO, ""),
        (f"a\n{TWO}", "a\n"),
        (f"a{TWO}\n", "a"),
        (f"a{TWO} \n b", "a\nb"),
        (f"{TWO}b\n", "b\n"),
        (f"a{TWO[2:]}", "a"),
        (f"a{TWO}{TWO}b", "a\nb"),
        ("tool_calls </think_> <|DSML|>", "tool_calls </think_> <|DSML|>"),
    ],
)
def test_text_is_what_stands_outside_blocks(
    tiny_dsml: Tokenizer, dsml: Dsml, text: str, said: str
) -> None:
    output = parsed(tiny_dsml, dsml, text)
    assert output.text == said
    assert output.malformed == ()
    assert len(output.calls) == 2 * text.count(f"<{D} calls>")


def test_events_come_as_soon_as_they_are_certain(tiny_dsml: Tokenizer, reasoning: Dsml) -> None:
    parser = reasoning.parser()

    def push(text: str) -> list[ParserEvent]:
        return [event for token in marked(tiny_dsml, text) for event in parser.push(token)]

    assert push("hm") == [ThinkingDelta("h"), ThinkingDelta("m")]
    assert push("\n\n<") == []
    assert push("</think>") == [ThinkingDelta("\n\n<")]
    assert push("\n") == []
    assert push("\n\na") == [TextDelta("\n"), TextDelta("\n\na")]
    assert push(f"\n\n<{D} calls>\n<{D}") == []
    assert push(' invoke name="f">\n') == [CallStart(0, "f")]
    assert push(f'<{D} parameter name="k" string="true">') == [ArgsDelta(0, '{"k": "')]
    assert push('"<') == [ArgsDelta(0, '\\"')]
    assert push("/") == []
    assert push("x") == [ArgsDelta(0, "</x")]
    assert push(f"</{D} parameter>\n<{D}") == [ArgsDelta(0, '"')]
    assert push(' parameter name="n" string="false">') == [ArgsDelta(0, ', "n": ')]
    assert push("12") == [ArgsDelta(0, "1"), ArgsDelta(0, "2")]
    args, end = push(f"</{D} parameter>\n</{D} invoke>")
    assert args == ArgsDelta(0, "}")
    assert end.call.arguments == {"k": '"</x', "n": 12}
    assert parser.finish().calls == (end.call,)


@pytest.mark.parametrize(
    ("body", "name", "expected"),
    [
        ("", "", "' invoke name="),
        (' name="">\n', "", "the name of a tool"),
        (' name=">\n', "", "one tag after the other"),
        (' name="f"', "", "' invoke name=|one tag"),
        (' name="f">', "", "one tag after the other"),
        (' name="f">\nx', "f", "a parameter or the end"),
        (f' name="f">\n<{D}parameter name="a" string="true">1</{D} parameter>\n', "f", "parameter"),
        (f' name="f">\n<{D} parameter name="a">1</{D} parameter>\n', "f", "one tag"),
        (f' name="f">\n<{D} parameter name=" string="true">1</{D} parameter>\n', "f", "one tag"),
        (f' name="f">\n<{D} parameter name="a" string="yes">1</{D} parameter>\n', "f", "one tag"),
        (f' name="f">\n<{D} parameter name="a" string="true">1<{D} parameter>\n', "f", "one tag"),
        (f' name="f">\n<{D} parameter name="a" string="true">1</{D} parameter>', "f", "parameter>"),
        (f' name="f">\n<{D} parameter name="a" string="true">1</{D} param>\n', "f", "parameter>"),
        (f' name="f">\n<{D} parameter name="a" string="false">x</{D} parameter>\n', "f", "JSON"),
        (f' name="f">\n<{D} parameter name="a" string="false">NaN</{D} parameter>\n', "f", "NaN"),
        (f' name="f">\n<{D} parameter name="a" string="false">1e999</{D} parameter>\n', "f",
         "overflows"),
        (f' name="f">\n<{D} parameter name="a" string="false">"\\ud800"</{D} parameter>\n', "f",
         "surrogates"),
        (f' name="f">\n<{D} parameter name="a" string="false">{"[" * 9999}</{D} parameter>\n', "f",
         "nested less deeply"),
        (' name="f">\n' + 2 * f'<{D} parameter name="a" string="true">1</{D} parameter>\n', "f",
         "each parameter once, got 'a'"),
        (f' name="{"x" * 2000}">\n', "", "a shorter name"),
        (' name="f">\n</', "f", "a parameter or the end"),
    ],
)  # fmt: skip
def test_malformed_calls_are_one_line_each_and_the_next_call_is_read(
    tiny_dsml: Tokenizer, dsml: Dsml, body: str, name: str, expected: str
) -> None:
    text = f"Hm.{invoke(body)}"
    output, events = read(dsml, marked(tiny_dsml, text + Mark.END))
    check_events(output, events)
    bad, good = output.calls
    assert (good.name, good.arguments, good.error) == ("ok", {}, None)
    assert output.text == "Hm."
    assert bad.name == name
    assert bad.arguments is None
    assert bad.error is not None
    assert bad.error.startswith("malformed call: expected ")
    assert any(part in bad.error for part in expected.split("|"))
    assert "\n" not in bad.error
    assert len(bad.error) < 300
    with pytest.raises(ChatFormatError):
        dsml.parse(text + Mark.END)


@pytest.mark.parametrize(
    "text",
    [
        f'\n\n<{D}tool_calls>\n<{D}invoke name="f">\n</{D}invoke>\n</{D}tool_calls>',
        f"\n\n<{D}function_calls>",
        f"\n\n<{D} calls>\n</{D} calls>",
        f"\n\n{D}",
        D,
    ],
)
def test_a_block_without_a_call_is_one_malformed_call(
    tiny_dsml: Tokenizer, dsml: Dsml, text: str
) -> None:
    output = parsed(tiny_dsml, dsml, f"Hm.{text}")
    assert len(output.calls) == len(output.malformed) == 1
    assert output.calls[0].name == ""
    with pytest.raises(ChatFormatError):
        dsml.parse(f"Hm.{text}{Mark.END}")


def test_an_empty_line_too_many_between_calls_costs_none(tiny_dsml: Tokenizer, dsml: Dsml) -> None:
    text = TWO.replace(f"</{D} invoke>\n<", f"</{D} invoke>\n\n<")
    output = parsed(tiny_dsml, dsml, text)
    assert [call.name for call in output.calls] == ["f", "g"]
    assert output.malformed == ()
    with pytest.raises(ChatFormatError, match="invoke>"):
        dsml.parse(text + Mark.END)


def test_a_call_inside_the_reasoning_ends_it(tiny_dsml: Tokenizer, reasoning: Dsml) -> None:
    output = parsed(tiny_dsml, reasoning, f"I call.{TWO}")
    assert (output.reasoning, output.text) == ("I call.", "")
    assert [call.name for call in output.calls] == ["f", "g"]
    with pytest.raises(ChatFormatError, match="</think> before calls"):
        reasoning.parse(f"I call.{TWO}{Mark.END}")


def test_a_cut_call_is_reported_with_its_name(tiny_dsml: Tokenizer, dsml: Dsml) -> None:
    ids = marked(tiny_dsml, TWO)
    for n in range(len(ids)):
        output, events = read(dsml, ids[:n])
        check_events(output, events)
        assert not output.complete
        for call in output.calls[:-1]:
            assert call.error is None
        for line in output.malformed:
            assert f"expected </{D} invoke> before the end" in line
    assert [call.error for call in read(dsml, ids)[0].calls] == [None, None]


def test_control_tokens_are_not_text_and_nothing_follows_the_end(
    tiny_dsml: Tokenizer, dsml: Dsml
) -> None:
    text = f"{Mark.USER}a{Mark.THINK}{Mark.END_THINK}b{Mark.SYSTEM}{Mark.END}c{TWO}"
    output, _ = read(dsml, [10**6, -1, *marked(tiny_dsml, text)])
    assert output == Output("ab", (), (), complete=True)


@pytest.mark.parametrize(
    ("text", "thinking", "fault"),
    [
        ("no end", False, "</?.end.*at the end, got 'no end'"),
        ("", False, "at the end"),
        ("no end of reasoning<END>", True, "</think> behind the reasoning"),
        ("a</think>b<END>", False, "no such mark here, got '</think>'"),
        ("<think>a</think>b<END>", True, "no such mark here, got '<think>'"),
        ("a<END>b", False, "nothing behind .*, got 'b'"),
        ("a<END><END>", False, "nothing behind"),
        (f"a{TWO}b<END>", False, "nothing behind the calls, got 'b'"),
        (f"a{TWO}\n<END>", False, "nothing behind the calls"),
        (f"a{TWO[1:]}<END>", False, "a blank line and < before calls"),
        (f"a{TWO[:-7]}<END>", False, "calls> before the end"),
        (TWO.replace('"false">[', '"true">[').replace('f">', 'f">\n'), False, "expected "),
        (f"a\n\n<{D} call<END>", False, "invoke> before the end"),
    ],
)
def test_a_text_is_read_to_the_letter_or_refused(
    dsml: Dsml, text: str, thinking: bool, fault: str
) -> None:
    text = text.replace("<END>", Mark.END)
    with pytest.raises(ChatFormatError, match=fault) as error:
        dsml.parse(text, thinking=thinking)
    assert "\n" not in str(error.value)


def test_arguments_keep_the_order_and_spelling_in_which_they_were_written(dsml: Dsml) -> None:
    tags = "".join(
        f'<{D} parameter name="{key}" string="{flag}">{value}</{D} parameter>\n'
        for key, flag, value in (("z", "false", "[1,2 ]"), ("ä", "true", '"\n'), ("a", "false", 2))
    )
    text = f'\n\n<{D} calls>\n<{D} invoke name="f">\n{tags}</{D} invoke>\n</{D} calls>{Mark.END}'
    (call,) = dsml.parse(text)["tool_calls"]
    assert call == {
        "type": "function",
        "function": {"name": "f", "arguments": '{"z": [1,2 ], "ä": "\\"\\n", "a": 2}'},
    }


def test_a_call_without_parameters_may_leave_out_the_empty_line(dsml: Dsml) -> None:
    for gap in ("\n", ""):
        body = f'<{D} calls>\n<{D} invoke name="f">\n{gap}</{D} invoke>\n</{D} calls>'
        message = dsml.parse(f"\n\n{body}{Mark.END}")
        assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
