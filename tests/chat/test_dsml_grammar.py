"""What the grammar of a DSML output admits, what it forces, and which tools it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from cedagent.chat import CallGrammar, Constraint, Tokenizer, ToolSpec, chat_format
from cedagent.chat.control import Mark
from cedagent.chat.dsml import Dsml
from cedagent.chat.dsml_render import call_block
from cedagent.errors import ToolDefinitionError
from tests.chat.reading import marked, result, shown
from tests.chat.sampling import SCHEMAS, TOOLS, allowed, lowest, obj, sample

D = Mark.DSML
OPEN = f"\n\n<{D} calls>\n<{D} invoke name="


def fmt_of(tokenizer: Tokenizer, *, thinking: bool = False) -> Dsml:
    return chat_format("dsml", tokenizer=tokenizer, thinking=thinking)


def follow(constraint: Constraint, tokenizer: Tokenizer, text: str) -> Constraint:
    for token in marked(tokenizer, text):
        constraint.advance(token)
    return constraint


def controls(constraint: Constraint, tokenizer: Tokenizer) -> set[str]:
    """Names of the control tokens that may come next."""
    return {tokenizer.token_name(i) for i in set(allowed(constraint)) & tokenizer.control_ids}


def grammar_of(tool: ToolSpec, tokenizer: Tokenizer) -> CallGrammar:
    return CallGrammar(fmt_of(tokenizer), tokenizer, [tool], choice=tool.name)


def can(
    tool: ToolSpec, tokenizer: Tokenizer, body: str, grammar: CallGrammar | None = None
) -> bool:
    """Whether a call may have these parameters, written between its tags."""
    constraint = (grammar or grammar_of(tool, tokenizer)).start()
    text = f'{OPEN}"{tool.name}">\n{body}</{D} invoke>\n</{D} calls>{Mark.END}'
    for token in marked(tokenizer, text):
        if token not in allowed(constraint):
            return False
        constraint.advance(token)
    return constraint.is_finished()


def texts(tool: ToolSpec, tokenizer: Tokenizer, *values: str) -> list[bool]:
    """For each value, whether the tool's parameter `x` may be that text."""
    grammar = grammar_of(tool, tokenizer)
    head, tail = f'<{D} parameter name="x" string="true">', f"</{D} parameter>\n"
    return [can(tool, tokenizer, f"{head}{value}{tail}", grammar) for value in values]


def test_marks_are_allowed_where_they_belong_alone(awkward_dsml: Tokenizer) -> None:
    grammar = CallGrammar(fmt_of(awkward_dsml), awkward_dsml, TOOLS[:2])
    constraint = grammar.start()
    end = {str(Mark.END)}
    for part, expected in (
        ("Let me see", end),
        (".\n\n", end),
        ("<", {*end, str(D)}),
        ("|", end),
        ("\n\n<", {*end, str(D)}),
        (D, set()),
        (" calls>\n<", {str(D)}),
        (D, set()),
        (' invoke name="scalars">\n<', {str(D)}),
        (f'{D} parameter name="text" string="true">a<b', set()),
        ("</", {str(D)}),
        (f"{D} parameter>\n<", {str(D)}),
        (f'{D} parameter name="whole" string="false">1', set()),
        (f"</{D} parameter>\n", set()),
    ):
        follow(constraint, awkward_dsml, part)
        assert controls(constraint, awkward_dsml) == expected, part
    # Required parameters are missing: the call cannot end here.
    assert all(awkward_dsml.token_bytes(i) in (b"<", b"\n<") for i in allowed(constraint))


def test_reasoning_comes_first_and_ends_by_its_mark_alone(awkward_dsml: Tokenizer) -> None:
    fmt = fmt_of(awkward_dsml, thinking=True)
    end = {str(Mark.END_THINK)}
    for choice in ("auto", "none", "required", "nothing"):
        constraint = CallGrammar(fmt, awkward_dsml, TOOLS[:1], choice=choice).start()
        for part in ("", "hm\n\n<", "x </thi", "nk>"):
            follow(constraint, awkward_dsml, part)
            assert controls(constraint, awkward_dsml) == end
        follow(constraint, awkward_dsml, Mark.END_THINK)
        assert Mark.END_THINK not in controls(constraint, awkward_dsml)
        must_call = choice in ("required", "nothing")
        assert (Mark.END in controls(constraint, awkward_dsml)) != must_call
    chat = CallGrammar(fmt_of(awkward_dsml), awkward_dsml, TOOLS).start()
    assert controls(chat, awkward_dsml) == {str(Mark.END)}


def test_without_choice_or_tools_the_dsml_mark_never_comes(awkward_dsml: Tokenizer) -> None:
    fmt = fmt_of(awkward_dsml)
    for tools, choice in ((TOOLS, "none"), ([], "auto"), ([], "none")):
        constraint = CallGrammar(fmt, awkward_dsml, tools, choice=choice).start()
        follow(constraint, awkward_dsml, "a\n\n<")
        assert controls(constraint, awkward_dsml) == {str(Mark.END)}


def test_behind_the_block_the_end_mark_is_forced(awkward_dsml: Tokenizer) -> None:
    fmt = fmt_of(awkward_dsml)
    text = "".join(call_block([("nothing", {})]))
    for choice in ("auto", "required", "nothing"):
        constraint = CallGrammar(fmt, awkward_dsml, TOOLS, choice=choice).start()
        follow(constraint, awkward_dsml, text)
        assert constraint.forced() == awkward_dsml.control_id(Mark.END)
        constraint.advance(awkward_dsml.control_id(Mark.END))
        assert constraint.is_finished()


def test_what_is_rendered_is_what_is_allowed(awkward_dsml: Tokenizer) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("scalars", {"text": "a\n</x>", "whole": -3, "real": 0.5, "flag": True, "none": None}),
        ("nothing", {}),
        ("optional", {"c": 1, "b": False}),
        ("anything", {"größe": {"a": [1, "é"]}, "x": 'raw "text"'}),
    ]
    grammar = CallGrammar(fmt_of(awkward_dsml), awkward_dsml, TOOLS)
    constraint = follow(grammar.start(), awkward_dsml, "So.")
    follow(constraint, awkward_dsml, "".join(call_block(calls)))
    assert constraint.forced() == awkward_dsml.control_id(Mark.END)


def test_the_structure_is_forced_in_the_tokenizers_own_spelling(
    tiny_dsml: Tokenizer, dsml: Dsml
) -> None:
    constraint = CallGrammar(dsml, tiny_dsml, TOOLS[2:3], choice="required").start()
    forced: list[int] = []
    while (token := constraint.forced()) is not None:
        forced.append(token)
        constraint.advance(token)
    text = f'{OPEN}"ranges">\n<{D} parameter name="'
    assert forced == marked(tiny_dsml, text)


def test_parameters_come_in_any_order_once_and_none_is_missing(awkward_dsml: Tokenizer) -> None:
    schema = obj({"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"enum": ["x"]}}, "b")
    tool = ToolSpec("f", "", schema)
    a, b, c = (
        f'<{D} parameter name="{key}" string="{flag}">{value}</{D} parameter>\n'
        for key, flag, value in (("a", "false", 1), ("b", "false", "true"), ("c", "true", "x"))
    )
    for body in (b, a + b, b + a, c + b, b + c + a, c + a + b, a + b + c):
        assert can(tool, awkward_dsml, body)
    for body in ("", "\n", a, c, a + c, b + b, a + b + a, b + "\n"):
        assert not can(tool, awkward_dsml, body)
    optional = ToolSpec("g", "", obj({"a": {"type": "integer"}}))
    assert [can(optional, awkward_dsml, body) for body in ("\n", a, "", a + a)] == [
        *(True, True, False, False)
    ]


def test_more_parameters_than_have_an_order_of_their_own_come_in_the_schemas(
    awkward_dsml: Tokenizer,
) -> None:
    keys = [f"k{i}" for i in range(70)]
    tool = ToolSpec("f", "", obj({key: {"type": "boolean"} for key in keys}, "k1", "k69"))
    one = {
        key: f'<{D} parameter name="{key}" string="false">true</{D} parameter>\n' for key in keys
    }
    grammar = grammar_of(tool, awkward_dsml)
    assert can(tool, awkward_dsml, one["k1"] + one["k69"], grammar)
    assert can(tool, awkward_dsml, "".join(one.values()), grammar)
    for wrong in ("", one["k1"], one["k69"] + one["k1"], one["k1"] * 2 + one["k69"]):
        assert not can(tool, awkward_dsml, wrong, grammar)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string"}, ["", "a\n</x>\"", "</", "1", "null"], []),
        ({"enum": ["a", "ab", "a<b", "", "é\n\"", 3]}, ["a", "ab", "a<b", "", 'é\n"'], ["b", "3"]),
        ({"const": "x"}, ["x"], ["", "xx"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "äöü", "</\n"], ["a", "abcd"]),
        ({"type": "string", "pattern": "^[a-z]{2}$"}, ["ab"], ["abc", "xabx", "A"]),
        ({"type": "string", "pattern": "b"}, ["b", "abc"], ["a", ""]),
        ({"type": "string", "pattern": "^a|b$|^/[|]$"}, ["ax", "xb", "/|"], ["xa", "bx", "|"]),
        ({"type": "string", "pattern": r"^\^\$\/\\$"}, ["^$/\\"], ["^$/"]),
        ({"type": "string", "pattern": "a", "maxLength": 2, "enum": ["a", "ba", "cab"]},
         ["a", "ba"], ["cab", "b"]),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2024-13-01", "x"]),
        ({"type": "string", "format": "uuid"}, ["0f" * 4 + "-aaaa" * 3 + "-" + "1" * 12], ["1"]),
        ({"anyOf": [{"type": "string", "maxLength": 1}, {"const": "yes"}, {"type": "null"}]},
         ["a", "yes", ""], ["no", "null"]),
        ({"$ref": "#/$defs/Unit"}, ["C", "F"], ["K"]),
        ({"allOf": [{"$ref": "#/$defs/Unit"}], "description": "one"}, ["C"], ["K"]),
        ({}, ["", "anything"], []),
        (True, ["x"], []),
    ],
)  # fmt: skip
def test_texts_are_what_the_schema_says(
    awkward_dsml: Tokenizer, schema: Any, right: list[str], wrong: list[str]
) -> None:
    defs = {"Unit": {"enum": ["C", "F"], "type": "string"}}
    tool = ToolSpec("f", "", obj({"x": schema}, "x", **{"$defs": defs}))
    assert texts(tool, awkward_dsml, *right) == [True] * len(right)
    assert texts(tool, awkward_dsml, *wrong) == [False] * len(wrong)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": ["string", "null"]}, ["null"], ['"a"', "1"]),
        ({"enum": ["a", 3, None]}, ["3", "null"], ['"a"', "a"]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, ["7"], ['"7"', "7.5"]),
        ({"$ref": "#/$defs/Tree"}, ['{"v": 1}', '{"v": 1, "n": {"v": 2}}'], ['{"n": {"v": 2}}']),
        ({"minLength": 2, "minimum": 3}, ["5", "[]", "true"], ['"abc"', "1"]),
        ({"type": "string"}, [], ['"a"', "a", "1"]),
    ],
)
def test_all_else_is_json_and_never_a_text(
    awkward_dsml: Tokenizer, schema: Any, right: list[str], wrong: list[str]
) -> None:
    tree = obj({"v": {"type": "integer"}, "n": {"$ref": "#/$defs/Tree"}}, "v")
    tool = ToolSpec("f", "", obj({"x": schema}, "x", **{"$defs": {"Tree": tree}}))
    for values, expected in ((right, True), (wrong, False)):
        for value in values:
            tag = f'<{D} parameter name="x" string="false">{value}</{D} parameter>\n'
            assert can(tool, awkward_dsml, tag) == expected, value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "format": "path"}, "path"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"type": "string", "pattern": "(^a|b)"}, "at the ends alone|lookaround"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
        ({"type": "string", "enum": ["a"], "pattern": "b"}, "unsatisfiable"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "minLength": 1}, "at a time"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        (False, "false"),
    ],
)
@pytest.mark.parametrize("choice", ["none", "broken"])
def test_a_schema_that_cannot_be_enforced_names_the_tool_and_the_fault(
    awkward_dsml: Tokenizer, schema: Any, fault: str, choice: str
) -> None:
    tools = [*TOOLS, ToolSpec("broken", "", obj({"x": schema}, "x"))]
    with pytest.raises(ToolDefinitionError, match=f"^tool 'broken': .*({fault})") as error:
        CallGrammar(fmt_of(awkward_dsml), awkward_dsml, tools, choice=choice)
    assert "\n" not in str(error.value)


def test_an_optional_parameter_that_no_text_fits_is_refused_too(awkward_dsml: Tokenizer) -> None:
    schema = {"type": "string", "pattern": "^a$", "format": "date"}
    with pytest.raises(ToolDefinitionError, match=r"^tool 'f': .*no value fits"):
        CallGrammar(fmt_of(awkward_dsml), awkward_dsml, [ToolSpec("f", "", {**obj({"x": schema})})])


@pytest.mark.parametrize(
    ("tool", "fault"),
    [
        (ToolSpec("f", "", {"type": "array"}), '"type": "object"'),
        (ToolSpec("f", "", obj({}, minProperties=1)), "minProperties"),
        (ToolSpec("f", "", obj({}, propertyNames={"pattern": "a"})), "propertyNames"),
        (ToolSpec('f">\n', "", obj({})), "rename"),
        (ToolSpec("f" * 2000, "", obj({})), "at most 9.. characters"),
        (ToolSpec("f", "", obj({'a" string="true">': {"type": "null"}})), "rename"),
    ],
)
def test_tools_that_dsml_cannot_spell_are_refused(
    awkward_dsml: Tokenizer, tool: ToolSpec, fault: str
) -> None:
    with pytest.raises(ToolDefinitionError, match=fault):
        CallGrammar(fmt_of(awkward_dsml), awkward_dsml, [tool])


@pytest.mark.parametrize(
    "name", ["a.b-c", "größe", 'quo"te', "日本", "a/b//c #d", "back\\slash", "n" * 900]
)
def test_any_tool_and_parameter_name_can_be_called(awkward_dsml: Tokenizer, name: str) -> None:
    fmt = fmt_of(awkward_dsml)
    tools = [ToolSpec("other", "", obj({})), ToolSpec(name, "", obj({name: {"const": 1}}, name))]
    marks = frozenset({awkward_dsml.control_id(D)})
    constraint = CallGrammar(fmt, awkward_dsml, tools, choice=name).start()
    ids = sample(constraint, awkward_dsml, fmt, lowest, limit=3000, marks=marks)
    assert [(call.name, call.arguments) for call in result(fmt, ids).calls] == [(name, {name: 1})]


def test_a_schema_of_many_keywords_is_described_to_the_model_as_it_is(
    tiny_dsml: Tokenizer, dsml: Dsml
) -> None:
    text = shown(tiny_dsml, dsml.begin("", [ToolSpec("strings", "", SCHEMAS["strings"])]))
    assert '"pattern": "^[a-z]{2}[0-9]+$"' in text


def test_long_outputs_do_not_exhaust_the_matcher(awkward_dsml: Tokenizer) -> None:
    fmt = fmt_of(awkward_dsml, thinking=True)
    constraint = CallGrammar(fmt, awkward_dsml, TOOLS).start()
    text = "hm \n\n< " * 300 + Mark.END_THINK + "word \n\n<|" * 300
    text += f'{OPEN}"scalars">\n<{D} parameter name="text" string="true">' + "x </ " * 800
    for token in marked(awkward_dsml, text):
        constraint.mask()
        constraint.advance(token)
    assert allowed(constraint)
