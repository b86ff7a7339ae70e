"""Templates in words, and conversations put together from scenes."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random
from typing import Any

import pytest

from cedagent.chat.tokenizer import Tokenizer
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.data.builtin import BUILTIN, MORE
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.examples import conversations
from cedagent.upcycle.data.fields import FIELDS, Field
from cedagent.upcycle.data.listing import conversation
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.phrasing import expand, joined, names_in, noisy, say, sentence, tidy
from cedagent.upcycle.data.restyle import restyled
from cedagent.upcycle.data.scenes import single
from cedagent.upcycle.data.skills import known, named
from cedagent.upcycle.data.systems import system_prompt
from cedagent.upcycle.data.transcripts import MIX, of_kind, skill_scene
from cedagent.upcycle.data.unfit import refused


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_tiny().to_str())


@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        ("a {x} b", {"x": 3}, "a 3 b"),
        ("a< {x}> b", {}, "a b"),
        ("a< {x}< and {y}>> b", {"x": "u"}, "a u b"),
        ("{x?}<{y=true?}yes><{y=false?}no>", {"x": 1, "y": False}, "no"),
        ("{x:high=urgent,low=idle}", {"x": "low"}, "idle"),
        ("{on:true=on,false=off}", {"on": True}, "on"),
        ("{p.a.0} {p.b}", {"p": {"a": [5], "b": True}}, "5 true"),
        ("{l}", {"l": ["a", "b", "c"]}, "a, b and c"),
        ("a {x}", {"x": "apple"}, "an apple"),
        ("<{x=null?}nobody><for {x}>", {"x": None}, "nobody"),
        ("wait< {y}>.", {}, "wait."),
    ],
)
def test_a_template_says(template, values, expected) -> None:
    assert say(template, values, rng=Random(1)) == expected


def test_a_template_that_needs_more_says_nothing() -> None:
    assert expand("a {x}", {}, rng=Random(1)) is None
    assert expand("{x=1?}", {"x": 2}, rng=Random(1)) is None
    assert expand("{x}", {"x": None}, rng=Random(1)) is None
    assert expand("{x:a=b}", {"x": "c"}, rng=Random(1)) is None


def test_alternatives_are_all_said_and_nest() -> None:
    said = {say("[a|b[c|d]|]!", {}, rng=Random(i)) for i in range(60)}
    assert said == {"a!", "bc!", "bd!", "!"}


def test_what_was_said_is_known() -> None:
    wording = expand("{a}< {b}>< {c}>{d?}", {"a": 1, "c": 2, "d": 3}, rng=Random(1))
    assert wording is not None
    assert wording.used == {"a", "c", "d"}
    assert names_in("{a.b} <{c?}x> {d:1=2}") == {"a", "c", "d"}


def test_a_sentence_has_a_capital_unless_it_begins_with_a_value() -> None:
    assert sentence("it is {x}.", {"x": 1}, rng=Random(1)) == "It is 1."
    assert sentence("{x} is it.", {"x": "notes.txt"}, rng=Random(1)) == "notes.txt is it."
    assert tidy("a  b  .") == "a b."
    assert joined(["a"]) == "a"


def test_noise_never_touches_a_value() -> None:
    for i in range(300):
        wording = expand("please send {x} to the office of {y} now", {"x": "AbcDef", "y": "Ghijk"},
                         rng=Random(i))  # fmt: skip
        assert wording is not None
        text = noisy(wording, rng=Random(i)).text()
        assert "AbcDef" in text
        assert "Ghijk" in text
    texts = {noisy(wording, rng=Random(i)).text() for i in range(50)}
    assert len(texts) > 20


def test_moods_frame_what_is_asked() -> None:
    draw = Draw("m", split="train")
    wordings = [ask("!close door {n}", {"n": 3}, draw=draw, around=0, noise=0) for _ in range(80)]
    texts = {wording.text() for wording in wordings if wording is not None}
    assert {"Close door 3.", "Can you close door 3?", "Please close door 3."} <= texts
    assert ask("=the {x}", {}, draw=draw) is None
    other = Draw("m", split="heldout")
    wordings = [ask("!close door {n}", {"n": 3}, draw=other, around=0, noise=0) for _ in range(80)]
    others = {wording.text() for wording in wordings if wording is not None}
    assert {"Will you close door 3?", "Kindly close door 3."} <= others
    assert not texts & others


def test_a_tool_that_is_needed_is_listed_and_none_twice(tokenizer) -> None:
    for made in itertools.islice(conversations(tokenizer, split="train", seed=31), 120):
        names = [spec.name for spec in made.tools]
        assert len(set(names)) == len(names)
        called = {n for t in made.turns for said in t.outputs for n, _ in said.calls}
        assert called <= set(names)


def test_a_list_of_more_than_eight_tools_has_only_needed_and_built_in_ones() -> None:
    built_in = {spec.name for spec in (*BUILTIN, MORE)}
    sizes = set()
    for i in range(300):
        draw = Draw(f"listed {i}", split="train")
        scenes = [skill_scene(draw, known()) for _ in range(draw.pick((1, 1, 4, 9)))]
        needed = {spec.name for scene in scenes for spec in scene.specs}
        made = conversation(draw, "x", scenes, others=known())
        listed = {spec.name for spec in made.tools}
        assert needed <= listed
        assert len(listed) <= 8 or listed - needed <= built_in
        sizes.add(len(listed))
    assert set(range(1, 9)) < sizes


def test_what_is_refused_is_not_listed() -> None:
    areas = {skill.spec.name: skill.area for skill in known()}
    for i in range(60):
        draw = Draw(f"refuse {i}", split="train")
        skill = draw.pick([skill for skill in known() if skill.wish])
        made = conversation(draw, "refused", [refused(draw, skill)], others=known())
        assert skill.area not in {areas.get(spec.name) for spec in made.tools}
        (said,) = made.turns[0].outputs
        assert not said.calls
        assert skill.wish in said.text


def test_two_tools_that_do_the_same_are_never_listed_together() -> None:
    for i in range(30):
        draw = Draw(f"rivals {i}", split="train")
        made = conversation(draw, "x", [single(draw, named("get_weather"))], others=known())
        assert "weather_at" not in {spec.name for spec in made.tools}


def test_tools_in_other_clothes_mean_the_same(tokenizer) -> None:
    changed = 0
    fixed = {spec.name for spec in (*BUILTIN, MORE)}
    for i in range(60):
        draw = Draw(f"style {i}", split="train")
        made = of_kind(draw, draw.pick(("invented", "made_up", "chain")), count=len)
        other = restyled(made, draw)
        for before, after in zip(made.tools, other.tools, strict=True):
            changed += before.name not in fixed and before != after
            pairs = zip(
                before.parameters["properties"], after.parameters["properties"], strict=True
            )
            renamed = dict(pairs)
            required = [renamed[name] for name in before.parameters["required"]]
            assert after.parameters["required"] == required
            for one, two in zip(calls(made), calls(other), strict=True):
                if one[0] == before.name:
                    assert two[0] == after.name
                    assert two[1] == {renamed[key]: v for key, v in one[1].items()}
        assert [turn.user for turn in made.turns] == [turn.user for turn in other.turns]
    assert changed > 30


def calls(made):
    return [call for turn in made.turns for said in turn.outputs for call in said.calls]


def test_system_prompts_are_short_and_long() -> None:
    sizes = []
    for i in range(200):
        text = system_prompt(Draw(f"system {i}", split="train")).text
        sizes.append(-1 if text is None else len(text))
    assert sizes.count(-1) > 50
    assert 0 in sizes
    assert any(0 < size < 200 for size in sizes)
    assert any(3_000 < size < 9_000 for size in sizes)


def test_what_a_system_prompt_knows_stands_in_it(tokenizer) -> None:
    for i in range(15):
        made = of_kind(Draw(f"know {i}", split="train"), "knowledge", count=len)
        (said,) = made.turns[0].outputs
        assert said.contains[0] in made.system
        assert said.contains[0] in said.text
        assert not said.calls


def test_the_mix_is_whole(tokenizer) -> None:
    assert sum(MIX.values()) == pytest.approx(1)
    seen = Counter(
        made.kind for made in itertools.islice(conversations(tokenizer, split="train", seed=8), 500)
    )
    assert set(seen) == set(MIX)
    for kind, share in MIX.items():
        assert seen[kind] / 500 == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.names.split()[0])
def test_a_made_up_parameter_is_said_so_that_its_value_can_be_told(field: Field) -> None:
    """Also what is optional inside of it: a call that leaves it out has to be wrong, or right."""
    draw = Draw("values", split="train")
    for phrase in field.says.split("|"):
        said: dict[str, Any] = {}
        for _ in range(200):
            value = field.value(draw)
            wording = expand(phrase, {"x": value}, rng=draw.rng)
            if wording is not None:
                assert said.setdefault(wording.text(), value) == value
        assert said
