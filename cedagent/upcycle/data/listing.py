"""From scenes to a conversation: which tools are listed, in which order, under which system prompt.

Knows skills and scenes. Invariants: every tool that a scene needs is listed, none that could do its
work in another way is, and no list has two tools of one name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.builtin import BUILTIN, MORE
from cedagent.upcycle.data.conversation import Conversation, Turn
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.scenes import Scene
from cedagent.upcycle.data.skill import Skill, make_task
from cedagent.upcycle.data.skills import builtin
from cedagent.upcycle.data.systems import system_prompt

_SIZES: Final = (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 6, 7, 8)
"""How many tools are listed, where no more are needed and these are not the built-in ones."""
_BUILTIN_NAMES: Final = frozenset(spec.name for spec in BUILTIN)
# Two tools that do the same: only one of them is listed.
_RIVALS: Final = (frozenset({"get_weather", "weather_at"}),)


def conversation(
    draw: Draw,
    kind: str,
    scenes: Sequence[Scene],
    *,
    others: Sequence[Skill] = (),
    system: str | bool | None = True,
    no_tools: bool = False,
) -> Conversation:
    """Return the scenes as one conversation; `others` are skills whose tools may be listed, too.

    `system` True draws a system prompt; `no_tools` lists none at all.
    """
    turns: tuple[Turn, ...] = tuple(turn for scene in scenes for turn in scene.turns)
    needed = {spec.name: spec for scene in scenes for spec in scene.specs}
    avoids = frozenset(area for scene in scenes for area in scene.avoids)
    own = isinstance(system, bool)
    default = own and draw.chance(0.3) and _can_be_default(needed, avoids)
    if default:
        tools: list[ToolSpec] = list(BUILTIN)
    elif no_tools:
        tools = []
    else:
        tools = _listed(draw, needed, avoids, others)
    text = None if default else system_prompt(draw).text if own else system
    assert not isinstance(text, bool)
    depth = next((scene.depth for scene in scenes if scene.depth is not None), None)
    return Conversation(kind, text, tuple(tools), turns, depth)


def _can_be_default(needed: dict[str, ToolSpec], avoids: frozenset[str]) -> bool:
    return _BUILTIN_NAMES.issuperset(needed) and not _builtin_areas() & avoids


def _builtin_areas() -> set[str]:
    return {skill.area for skill in builtin()}


def _listed(
    draw: Draw, needed: dict[str, ToolSpec], avoids: frozenset[str], others: Sequence[Skill]
) -> list[ToolSpec]:
    chosen = dict(needed)
    if not _builtin_areas() & avoids and draw.chance(0.12):
        # As in a chat that was given more tools: the built-in ones come first.
        first = {spec.name: spec for spec in BUILTIN}
        more = {MORE.name: MORE} if draw.chance(0.7) or MORE.name in needed else {}
        return list({**first, **needed, **more}.values())
    size = draw.pick(_SIZES)
    for skill in draw.rng.sample(list(others), len(others)):
        if len(chosen) >= size:
            break
        name = skill.spec.name
        is_rival = any(name in pair and pair & chosen.keys() for pair in _RIVALS)
        if skill.area not in avoids and name not in chosen and not is_rival:
            chosen[name] = _with_example(draw, skill)
    tools = list(chosen.values())
    draw.rng.shuffle(tools)
    return tools


def _with_example(draw: Draw, skill: Skill) -> ToolSpec:
    """Return the tool, now and then with a worked example of its use."""
    if skill.spec.examples or not draw.chance(0.08):
        return skill.spec
    if draw.split == "train" and not (skill.asks or skill.made_up):
        return skill.spec
    task = make_task(skill, draw, plain=True)
    return replace(skill.spec, examples=((task.message, task.arguments),))
