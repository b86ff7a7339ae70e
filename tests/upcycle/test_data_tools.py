"""The tools that are taught: right schemas, right results, arguments that can be copied."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest

from cedagent.agent.builtin import builtin_tools
from cedagent.agent.calculator import evaluate
from cedagent.agent.results import make_more, render
from cedagent.upcycle.data.builtin import BUILTIN, MORE
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.numbers import exact, plain, shown, square_root
from cedagent.upcycle.data.schemas import in_order
from cedagent.upcycle.data.skill import Skill, Task, compact, make_task
from cedagent.upcycle.data.skills import builtin, invented, known, unseen
from cedagent.upcycle.data.synthesis import made_up_skills


def tasks(skills: tuple[Skill, ...], *, split: str, n: int) -> Iterator[Task]:
    for i, skill in itertools.product(range(n), skills):
        yield make_task(skill, Draw(f"{split}/{i}/{skill.spec.name}", split=split))


def made_up(n: int) -> Iterator[Task]:
    for i in range(n):
        draw = Draw(f"made up {i}", split="train")
        for skill in made_up_skills(draw, draw.whole(1, 6)):
            yield make_task(skill, draw)


@pytest.fixture(scope="module")
def all_tasks() -> list[Task]:
    return [
        *tasks(known(), split="train", n=3),
        *tasks((*known(), *unseen()), split="heldout", n=1),
        *made_up(40),
    ]


def test_the_built_in_tools_are_the_real_ones() -> None:
    assert [tool.spec for tool in builtin_tools()] == list(BUILTIN)
    assert make_more().spec == MORE
    for mine, real in zip(BUILTIN, builtin_tools(), strict=True):
        # Key order is rendered and enforced.
        assert json.dumps(mine.parameters) == json.dumps(real.spec.parameters)


def test_there_are_enough_tools() -> None:
    own = {skill.spec.name for skill in invented()}
    others = {skill.spec.name for skill in unseen()}
    assert len(own) >= 40
    assert len(others) >= 15
    assert not own & others
    assert not (own | others) & {spec.name for spec in (*BUILTIN, MORE)}


@pytest.mark.parametrize("skills", [invented(), unseen()], ids=["known", "unseen"])
def test_schemas_have_every_kind_of_value(skills) -> None:
    text = json.dumps([skill.spec.parameters for skill in skills])
    kinds = {"string", "integer", "number", "boolean", "null", "array", "object"}
    assert kinds <= set(re.findall(r'"type": "(\w+)"', text))
    wanted = {'"enum"', '"default"', '"anyOf"', '"$ref"', '"minimum"', '"maximum"', '"minItems"'}
    assert not [word for word in wanted if word not in text]
    if skills is invented():
        assert '"const"' in text
        assert '"pattern"' in text


def test_arguments_fit_their_schema_in_its_order(all_tasks) -> None:
    for task in all_tasks:
        spec = task.skill.spec
        # The schemas themselves are checked by the call grammar.
        validator = jsonschema.Draft202012Validator(dict(spec.parameters))
        validator.validate(task.arguments)
        assert json.dumps(task.arguments) == json.dumps(in_order(spec, task.arguments))
        # Nobody's schema says that 3.0 is an integer here, and a grammar would not write it.
        assert not [v for v in leaves(task.arguments) if isinstance(v, float) and v == int(v)]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


# What a message says in words of its own: fixed values, patterns, zones, formulas, weekdays.
IN_OTHER_WORDS = {"pattern", "timezone", "expression", "days", "kind", "mode", "reason"}


def in_words(skill: Skill, name: str, said: str) -> tuple[str, ...]:
    """What the skill's own templates say in place of a value."""
    tables = re.findall(rf"\{{{name}:([^}}]*)\}}", "\n".join(skill.asks))
    rows = [row.partition("=") for table in tables for row in table.split(",")]
    return tuple(word for key, _, words in rows if key == said for word in words.split("/"))


def test_what_the_message_says_can_be_copied(all_tasks) -> None:
    n_copied = 0
    for task in all_tasks:
        for name, value in task.arguments.items():
            if name in IN_OTHER_WORDS and task.skill.spec.name not in ("add_days",):
                continue
            if name in task.skill.spec.parameters["properties"] and name not in task.wording.used:
                # Told by the whole of a made-up name or by a list in words, checked below.
                assert not task.skill.made_up, (task.skill.spec.name, name)
            for leaf in leaves(value):
                if isinstance(leaf, bool) or leaf is None or leaf in ("circle", "box"):
                    continue
                said = leaf if isinstance(leaf, str) else json.dumps(leaf)
                spoken = (said, *in_words(task.skill, name, said))
                assert any(words in task.message for words in spoken), (
                    task.message,
                    task.arguments,
                )
                n_copied += said in task.message
    assert n_copied > 600


def test_copied_formulas_stand_in_the_message() -> None:
    sums = [skill for skill in builtin() if skill.spec.name == "calculator"]
    assert len(sums) >= 10
    for i in range(40):
        task = make_task(sums[0], Draw(f"f{i}", split="train"))
        assert task.arguments["expression"] in task.message


def test_results_of_sums_are_the_calculators() -> None:
    sums = [skill for skill in builtin() if skill.spec.name == "calculator"]
    for i, skill in itertools.product(range(8), sums):
        for split in ("train", "heldout"):
            task = make_task(skill, Draw(f"{i}{split}", split=split))
            assert evaluate(task.arguments["expression"]) == task.result


def test_numbers_are_shown_as_the_calculator_shows_them() -> None:
    for text in ("7/3", "1/8", "10/4", "123456789/1000", "1/7000000000", "5000000/3", "-1/3"):
        a, b = text.split("/")
        assert shown(exact(a) / exact(b)) == evaluate(text)
    for n in (2, 16, 50, 3136, 4999):
        assert square_root(n) == evaluate(f"sqrt({n})")
    assert plain(exact("2.50") * 2) == 5
    assert isinstance(plain(exact("2.50") * 2), int)


def test_answers_hold_what_they_must(all_tasks) -> None:
    for task in all_tasks:
        for item in task.contains:
            assert item.casefold() in task.answer.casefold(), (task.skill.spec.name, task.answer)
        if task.skill.needed and task.contains:
            said = f"{task.result}\n{json.dumps(task.arguments, ensure_ascii=False)}"
            for item in task.contains:
                assert any(word in said for word in item.split()), (task.result, item)


def test_results_are_rendered_as_the_runtime_does(all_tasks) -> None:
    for value in ({"a": 1, "b": [True, None, "é"], "c": 2.5}, ["x"], 3):
        assert compact(value) == render(value)
    for task in all_tasks:
        if task.result.startswith("{"):
            first = task.result.splitlines()[0]
            json.loads(first)
