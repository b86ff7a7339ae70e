"""A tool with what people ask of it, what it returns, and how one answers: the unit of teaching.

Knows templates and values, no chat format. Invariants: arguments are in the schema's order, an
optional one is given exactly when the message says it, and the answer holds what the tool returned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.conversation import Said, SpokenCall
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.phrasing import Wording, names_in, say, sentence, surface
from cedagent.upcycle.data.schemas import in_order, optional_names

Arguments = dict[str, Any]
_TRIES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One tool and how it is used."""

    spec: ToolSpec
    area: str
    """Tools of one area can stand in for each other, so they never refuse one another's tasks."""
    draw: Callable[[Draw], Arguments]
    """Values for all parameters, and for whatever else the templates say; `_asks` and `_answers`
    among them replace the skill's own templates."""
    asks: tuple[str, ...] = ()
    """Templates of messages; empty for a tool that training never sees."""
    heldout_asks: tuple[str, ...] = ()
    result: Callable[[Draw, Arguments], Mapping[str, Any]]
    """What the tool found out, from the arguments of the call; keys with `_` are not shown."""
    shows: str = ""
    """Template of the result where it is a text; empty for JSON of what was found out."""
    answers: tuple[str, ...]
    """Templates over arguments and results; the results win."""
    needed: tuple[str, ...] = ()
    """Names of what a right answer contains."""
    vary: str = ""
    """The argument that a follow-up or a second call changes, if one makes sense."""
    joins: bool = False
    """Whether one message can name two values of `vary`."""
    made_up: bool = False
    """Whether no held-out case can know this tool, so that all its calls may be taught."""
    wish: str = ""
    """What a refusal says it cannot do; empty where no tool is needed for it."""


@dataclass(frozen=True, slots=True)
class Task:
    """One request that one call answers."""

    skill: Skill
    arguments: Arguments
    wording: Wording
    result: str
    answer: str
    contains: tuple[str, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    """Everything that was drawn, the arguments among it."""

    @property
    def call(self) -> SpokenCall:
        """Return the call."""
        return self.skill.spec.name, self.arguments

    @property
    def message(self) -> str:
        """Return what the user says."""
        return self.wording.text()

    def outputs(self) -> tuple[Said, ...]:
        """Return the call and the answer."""
        return (
            Said(calls=(self.call,), results=(self.result,)),
            Said(text=self.answer, contains=self.contains),
        )


def make_task(
    skill: Skill,
    draw: Draw,
    *,
    values: Arguments | None = None,
    templates: tuple[str, ...] = (),
    plain: bool = False,
) -> Task:
    """Return a task of a skill; `values` fixes some of what it would draw.

    `templates` replaces its own messages; `plain` asks without greetings and typos.
    """
    own = skill.asks if draw.split == "train" else skill.heldout_asks
    for _ in range(_TRIES):
        drawn = skill.draw(draw) | (values or {})
        template = draw.pick(templates or drawn.get("_asks") or own)
        given = _given(skill.spec, drawn, said=names_in(template), draw=draw, fixed=values or {})
        wording = (
            ask(template, given, draw=draw, around=0, noise=0)
            if plain
            else ask(template, given, draw=draw)
        )
        if wording is None:
            continue
        unsaid = optional_names(skill.spec) - wording.used - set(values or {})
        given = {name: value for name, value in given.items() if name not in unsaid}
        arguments = in_order(skill.spec, given)
        missing = set(skill.spec.parameters["required"]) - set(arguments)
        assert not missing, f"{skill.spec.name}: {missing} are not drawn"
        if skill.made_up or draw.allows(skill.spec.name, arguments):
            return finish(skill, arguments, draw=draw, wording=wording, values=given)
    raise AssertionError(f"{skill.spec.name}: no task on this side in {_TRIES} tries")


def finish(
    skill: Skill,
    arguments: Arguments,
    *,
    draw: Draw,
    wording: Wording,
    values: Mapping[str, Any] | None = None,
) -> Task:
    """Return the task for arguments that are settled: its result and its answer."""
    found = skill.result(draw, dict(arguments))
    everything = {**(values or {}), **arguments, **found}
    return Task(
        skill,
        arguments,
        wording,
        shown(skill, everything, found, draw=draw),
        sentence(draw.pick(everything.get("_answers", skill.answers)), everything, rng=draw.rng),
        _contained([everything[name] for name in skill.needed if name in everything]),
        everything,
    )


def shown(skill: Skill, values: Mapping[str, Any], found: Mapping[str, Any], *, draw: Draw) -> str:
    """Return the result as the runtime shows it: a text, or compact JSON."""
    if skill.shows:
        return say(skill.shows, values, rng=draw.rng)
    return compact({name: value for name, value in found.items() if name[0] != "_"})


def compact(value: Any) -> str:
    """Return JSON as the runtime renders results."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _given(
    spec: ToolSpec, drawn: Arguments, *, said: frozenset[str], draw: Draw, fixed: Arguments
) -> Arguments:
    """Leave out optional arguments that the template cannot say, and some of those it can."""
    given = dict(drawn)
    for name in sorted(optional_names(spec)):
        if name in given and name not in fixed and (name not in said or draw.chance(0.3)):
            del given[name]
    return given


def _contained(values: list[Any]) -> tuple[str, ...]:
    """Return the words of values, lists taken apart."""
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return tuple(map(surface, items))
