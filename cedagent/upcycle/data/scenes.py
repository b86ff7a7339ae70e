"""Short stretches of a conversation in which all goes well: one call, several, a follow-up.

Knows skills; no system prompts, no other tools. Invariant: a scene names the tools that it needs,
and its calls follow from the messages and results before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.conversation import Said, Turn
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.phrasing import lines, names_in, surface, tidy
from cedagent.upcycle.data.schemas import in_order
from cedagent.upcycle.data.skill import Skill, Task, finish, make_task

AGAIN = {
    "train": lines("""
        and {x}?
        And {x}?
        What about {x}?
        How about {x}?
        And for {x}?
        the same for {x}, please
        Now {x}.
        And what is it for {x}?
        OK, and {x}?
        Now do it for {x}
    """),
    "heldout": lines("""
        And what about {x}?
        Next one: {x}.
        I need the same thing with {x}.
    """),
}
_ALSO = {
    "train": (
        "{a} {b}", "{a} And {b}", "{a} Also: {b}", "{a}\n{b}", "{a} Then {b}", "1. {a}\n2. {b}"
    ),
    "heldout": ("{a} Besides that: {b}", "First: {a} Second: {b}", "{a} One more thing: {b}"),
}  # fmt: skip
_SAY_AGAIN = {
    "train": lines("""
        Sorry, what was that?
        Can you repeat that?
        What did you say?
        Say that again, please.
        Can you tell me once more?
    """),
    "heldout": lines("""
        One more time, please, what was the answer?
        I did not catch that, could you say it again?
    """),
}


@dataclass(frozen=True, slots=True)
class Scene:
    """Turns, and the tools that they need."""

    turns: tuple[Turn, ...]
    specs: tuple[ToolSpec, ...] = ()
    avoids: frozenset[str] = frozenset()
    """Areas of tools that must not be listed beside these."""
    depth: float | None = None


def single(draw: Draw, skill: Skill) -> Scene:
    """Return one request and its answer."""
    task = make_task(skill, draw)
    return Scene((Turn(task.message, task.outputs()),), (skill.spec,))


def alike(draw: Draw, skill: Skill) -> Scene:
    """Return one request that needs two or three calls of the same tool."""
    tasks = _spread(draw, skill, draw.pick((2, 2, 3)))
    return Scene((Turn(tasks[0].message, _together(tasks)),), (skill.spec,))


def mixed(draw: Draw, skills: list[Skill]) -> Scene:
    """Return one message with several requests, of one tool or of several."""
    tasks = [make_task(skill, draw, plain=True) for skill in skills]
    message = tasks[0].message
    for task in tasks[1:]:
        frame = draw.pick(_ALSO[draw.split])
        message = frame.replace("{a}", _ended(message)).replace("{b}", task.message)
    specs = {skill.spec.name: skill.spec for skill in skills}
    return Scene((Turn(tidy(message), _together(tasks)),), tuple(specs.values()))


def follow_up(draw: Draw, skill: Skill) -> Scene:
    """Return a request and the same again for another value."""
    first = make_task(skill, draw)
    second = _varied(draw, first)
    turns = (Turn(first.message, first.outputs()), Turn(second.message, second.outputs()))
    return Scene(turns, (skill.spec,))


def repeated(draw: Draw, skill: Skill) -> Scene:
    """Return a request, and a question whose answer stands above."""
    task = make_task(skill, draw)
    again = Turn(draw.pick(_SAY_AGAIN[draw.split]), (task.outputs()[-1],))
    return Scene((Turn(task.message, task.outputs()), again), (skill.spec,))


def _together(tasks: list[Task]) -> tuple[Said, ...]:
    calls = Said(
        calls=tuple(task.call for task in tasks), results=tuple(task.result for task in tasks)
    )
    answer = " ".join(_ended(task.answer) for task in tasks)
    contains = tuple(item for task in tasks for item in task.contains)
    return (calls, Said(text=answer, contains=contains))


def _ended(text: str) -> str:
    return text if text[-1:] in (".", "?", "!", ":") else text + "."


def _spread(draw: Draw, skill: Skill, n: int) -> list[Task]:
    """Return tasks that one message asks for, different in the argument that varies."""
    own = skill.asks if draw.split == "train" else skill.heldout_asks
    templates = [template for template in own if skill.vary in names_in(template)]
    if draw.split == "heldout":
        # Two values in one pair of quotation marks could be meant as one.
        templates = [template for template in templates if f'"{{{skill.vary}}}"' not in template]
    while True:
        base = make_task(skill, draw, templates=tuple(templates), plain=True)
        if skill.vary not in base.arguments:
            continue
        variants = [base.arguments]
        for _ in range(n * 20):
            value = skill.draw(draw)[skill.vary]
            arguments = in_order(skill.spec, {**base.arguments, skill.vary: value})
            if arguments not in variants and draw.allows(skill.spec.name, arguments):
                variants.append(arguments)
        variants = variants[:n]
        named = {**base.values, skill.vary: [arguments[skill.vary] for arguments in variants]}
        wording = ask(draw.pick(templates), named, draw=draw)
        said_all = wording is not None and set(base.arguments) <= wording.used
        if wording is not None and said_all and len(variants) == n:
            return [finish(skill, a, draw=draw, wording=wording) for a in variants]


def _varied(draw: Draw, first: Task) -> Task:
    """Return the task that repeats the first one for another value."""
    skill = first.skill
    while True:
        values: dict[str, Any] = skill.draw(draw)
        arguments = in_order(skill.spec, {**first.arguments, skill.vary: values[skill.vary]})
        if arguments != first.arguments and draw.allows(skill.spec.name, arguments):
            break
    # A zone is named by its city.
    said = values["city"] if skill.vary == "timezone" else surface(values[skill.vary])
    wording = ask(draw.pick(AGAIN[draw.split]), {"x": said}, draw=draw, around=0, noise=0.05)
    assert wording is not None
    # What the first message said beside the arguments still holds, except for what varied; what
    # the first call found out does not.
    kept = {name: value for name, value in first.values.items() if name in values}
    kept = {k: v for k, v in kept.items() if k not in ("zone", "city") or k in arguments}
    kept |= {k: values[k] for k in ("zone", "city") if k in values}
    return finish(skill, arguments, draw=draw, wording=wording, values=kept)
