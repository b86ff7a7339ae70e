"""The mix of conversations that training sees, and the same kinds on the held-out side.

Knows scenes, skills and the shares of each kind; no chat format. Invariant: a conversation is a
function of its seed, its split and the function that counts tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from cedagent.upcycle.data.asks import more_asks
from cedagent.upcycle.data.chain import Chain, chain_turn
from cedagent.upcycle.data.chains_days import day_chains
from cedagent.upcycle.data.chains_files import file_chains
from cedagent.upcycle.data.chains_people import people_chains
from cedagent.upcycle.data.chains_shop import shop_chains
from cedagent.upcycle.data.chains_values import value_chains
from cedagent.upcycle.data.conversation import Conversation, Said, Turn
from cedagent.upcycle.data.documents import Count
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.listing import conversation
from cedagent.upcycle.data.lookups import lookups
from cedagent.upcycle.data.made_up_chain import made_up_chain
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.needle import cut_needle, needle
from cedagent.upcycle.data.restyle import restyled
from cedagent.upcycle.data.scenes import Scene, alike, follow_up, mixed, repeated, single
from cedagent.upcycle.data.skill import Skill
from cedagent.upcycle.data.skills import builtin, invented, known
from cedagent.upcycle.data.synthesis import made_up_skills
from cedagent.upcycle.data.systems import system_prompt
from cedagent.upcycle.data.talk import talk_turn
from cedagent.upcycle.data.trouble import corrected, missing_file, reported, tried_again, wrong_zone
from cedagent.upcycle.data.unfit import asked_back, refused

MIX: Final = {
    "builtin": 0.12,
    "invented": 0.10,
    "made_up": 0.17,
    "chain": 0.08,
    "chains": 0.10,
    "made_up_chain": 0.06,
    "refused": 0.03,
    "asked_back": 0.02,
    "recovery": 0.03,
    "talk": 0.03,
    "talk_bare": 0.01,
    "lookups": 0.19,
    "needle": 0.04,
    "cut_needle": 0.01,
    "knowledge": 0.01,
}
"""Share of each kind among training conversations."""

_MOST_SCENES: Final = 8
_GOES_ON: Final = 0.75
_WITH_CHAINS: Final = ("builtin", "invented", "chain")


def train_conversation(seed: str, *, count: Count) -> Conversation:
    """Return one conversation of the training mix."""
    draw = Draw(seed, split="train")
    kind = draw.rng.choices(tuple(MIX), tuple(MIX.values()))[0]
    made = of_kind(draw, kind, count=count)
    return restyled(made, draw) if draw.chance(0.4) else made


def of_kind(draw: Draw, kind: str, *, count: Count) -> Conversation:
    """Return a conversation of one kind of the mix, of either split."""
    match kind:
        case "builtin":
            return _several(draw, kind, builtin(), known())
        case "invented":
            return _several(draw, kind, invented(), known())
        case "made_up":
            skills = made_up_skills(draw, draw.whole(2, 7))
            return _several(draw, kind, skills, skills if draw.chance(0.6) else known())
        case "chain":
            return _several(draw, kind, known(), known(), first=chain_scene(draw))
        case "chains":
            scenes = [chain_scene(draw) for _ in range(draw.whole(2, 5))]
            return conversation(draw, kind, scenes, others=known())
        case "made_up_chain":
            others = made_up_skills(draw, draw.whole(1, 4))
            scene = made_up_chain(draw)
            areas = {spec.name for spec in scene.specs}
            others = [skill for skill in others if skill.spec.name not in areas]
            return _several(draw, kind, others, others, first=scene)
        case "refused":
            return refusal(draw, kind)
        case "asked_back":
            return conversation(draw, kind, [asked_back(draw)], others=known())
        case "recovery":
            scene = missing_file(draw) if draw.chance(0.7) else wrong_zone(draw)
            return conversation(draw, kind, [scene], others=known())
        case "talk" | "talk_bare":
            return talk(draw, kind, bare=kind == "talk_bare")
        case "needle":
            n_tokens = round(500 * 6 ** draw.rng.random())
            scene = needle(draw, n_tokens, depth=draw.rng.random(), count=count)
            return conversation(draw, kind, [scene], others=known())
        case "lookups":
            scene = lookups(draw, count=count)
            bare = not scene.specs and draw.chance(0.6)
            return conversation(draw, kind, [scene], others=known(), no_tools=bare)
        case "cut_needle":
            scene = cut_needle(draw, draw.whole(500, 1500), count=count)
            return conversation(draw, kind, [scene], others=known())
        case _:
            return _knowledge(draw, kind)


def skill_scene(draw: Draw, skills: Sequence[Skill]) -> Scene:
    """Return a scene with some of the skills, mostly a single request."""
    joins = [skill for skill in skills if skill.joins]
    varies = [skill for skill in skills if skill.vary]
    kinds: list[tuple[float, Callable[[], Scene]]] = [
        (0.56, lambda: single(draw, draw.pick(skills))),
        (0.10, lambda: mixed(draw, [draw.pick(skills) for _ in range(draw.pick((2, 2, 2, 3, 4)))])),
        (0.04, lambda: repeated(draw, draw.pick(skills))),
        (0.05, lambda: tried_again(draw, draw.pick(skills))),
        (0.04, lambda: reported(draw, draw.pick(skills))),
        (0.05, lambda: corrected(draw, draw.pick(skills))),
    ]
    if joins:
        kinds.append((0.10, lambda: alike(draw, draw.pick(joins))))
    if varies:
        kinds.append((0.10, lambda: follow_up(draw, draw.pick(varies))))
    make = draw.rng.choices([kind[1] for kind in kinds], [kind[0] for kind in kinds])[0]
    return make()


@lru_cache(maxsize=1)
def all_chains() -> tuple[Chain, ...]:
    """Return all kinds of tasks of several steps."""
    chains = (*shop_chains(), *day_chains(), *people_chains(), *file_chains(), *value_chains())
    added = more_asks(chain.name for chain in chains)
    return tuple(
        replace(chain, asks=(*chain.asks, *more)) for chain, more in zip(chains, added, strict=True)
    )


def chain_scene(draw: Draw) -> Scene:
    """Return a task of several steps; the held-out side has combinations that training has not."""
    chain = draw.pick([c for c in all_chains() if c.asks or draw.split == "heldout"])
    return Scene((chain_turn(chain, draw),), chain.specs)


def refusal(draw: Draw, kind: str, skills: Sequence[Skill] = ()) -> Conversation:
    """Return a request for a tool that is not listed, sometimes after one that is."""
    made_up = made_up_skills(draw, 5) if draw.split == "train" and draw.chance(0.3) else []
    pool = [skill for skill in made_up or skills or known() if skill.wish]
    scene = refused(draw, draw.pick(pool))
    others = [s for s in (made_up or skills or known()) if s.area not in scene.avoids]
    if others and draw.chance(0.3):
        before = single(draw, draw.pick(others))
        return conversation(draw, kind, [before, scene], others=others)
    # Without any tool there is no choice to judge.
    no_tools = draw.split == "train" and draw.chance(0.08)
    return conversation(draw, kind, [scene], others=others, no_tools=no_tools)


def talk(draw: Draw, kind: str, *, bare: bool) -> Conversation:
    """Return a conversation without a call, with tools listed unless it is `bare`."""
    skills = made_up_skills(draw, 4) if draw.split == "train" and draw.chance(0.2) else known()
    frame = conversation(draw, kind, [Scene(())], others=skills, no_tools=bare)
    n = draw.pick((1, 1, 1, 2, 3) if draw.split == "heldout" else (1, 2, 3, 4, 5))
    turns = tuple(talk_turn(draw, frame.tools) for _ in range(n))
    return Conversation(kind, frame.system, frame.tools, turns)


def _several(
    draw: Draw,
    kind: str,
    skills: Sequence[Skill],
    others: Sequence[Skill],
    first: Scene | None = None,
) -> Conversation:
    """Return one to eight scenes with the same tools, plain talk and longer tasks among them.

    Many scenes are cheap to learn from: their system prompt is read once.
    """
    scenes = [first or skill_scene(draw, skills)]
    while skills and len(scenes) < _MOST_SCENES and draw.chance(_GOES_ON):
        listed = {spec.name for scene in scenes for spec in scene.specs}
        same = [skill for skill in skills if skill.spec.name in listed]
        roll = draw.rng.random()
        if roll < 0.2:
            scenes.append(Scene((talk_turn(draw, ()),)))
        elif roll < 0.35 and kind in _WITH_CHAINS:
            scenes.append(chain_scene(draw))
        else:
            scenes.append(skill_scene(draw, same if same and draw.chance(0.3) else skills))
    return conversation(draw, kind, scenes, others=others)


def _knowledge(draw: Draw, kind: str) -> Conversation:
    """Return a question whose answer stands in the system prompt."""
    system = system_prompt(draw, needs_knowledge=True)
    document = system.knowledge
    assert document is not None
    wording = ask(
        draw.pick(document.asks(heldout=draw.split == "heldout")), document.target, draw=draw
    )
    assert wording is not None
    said = Said(text=document.answer(draw), contains=(document.target["value"],))
    turn = Turn(wording.text(), (said,))
    return conversation(draw, kind, [Scene((turn,))], others=known(), system=system.text)
