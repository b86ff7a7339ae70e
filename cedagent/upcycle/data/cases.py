"""Held-out cases to judge a model by: other wordings, values and tools than training has.

Knows kinds of cases; no engine. Invariant: the same kind, seed and number give the same cases, and
the first cases of a longer list are those of a shorter one (needles apart, whose depths are spread
over the list).
"""

from __future__ import annotations

import re
from typing import Final

from cedagent.chat.tokenizer import Tokenizer
from cedagent.errors import UsageError
from cedagent.upcycle.data.conversation import Case, Conversation, case_of
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.listing import conversation
from cedagent.upcycle.data.needle import needle
from cedagent.upcycle.data.scenes import Scene, alike, follow_up, mixed, single
from cedagent.upcycle.data.skill import Skill
from cedagent.upcycle.data.skills import builtin, invented, known, unseen
from cedagent.upcycle.data.transcripts import chain_scene, refusal, talk
from cedagent.upcycle.data.trouble import corrected, missing_file, reported, tried_again, wrong_zone

KINDS: Final = ("known", "unseen", "multi_step", "chat", "recovery")
"""Kinds of cases, besides `needle_N` with a result of N tokens."""
_PIECES: Final = re.compile(r"[^\W\d_]+|\d|_|[^\w\s]|\n")


def tool_cases(*, kind: str, seed: int, n: int, tokenizer: Tokenizer | None = None) -> list[Case]:
    """Return `n` held-out cases of a kind: `known`, `unseen`, `multi_step`, `chat`, `recovery`, or
    `needle_N` for results of N tokens.

    Tokens of needles are counted by `tokenizer`, or estimated without one. Raises
    UsageError for another kind.
    """
    return [
        case_of(made) for made in heldout_conversations(kind, seed=seed, n=n, tokenizer=tokenizer)
    ]


def heldout_conversations(
    kind: str, *, seed: int, n: int, tokenizer: Tokenizer | None = None
) -> list[Conversation]:
    """Return the conversations that cases are read off, with answers; raises as `tool_cases`."""
    name, _, length = kind.partition("_")
    is_needle = name == "needle" and length.isdigit() and int(length) > 0
    if kind not in KINDS and not is_needle:
        raise UsageError(
            f"expected a kind of case, {', '.join(KINDS)} or needle_N with N tokens, got {kind!r}"
        )
    count = _estimate if tokenizer is None else lambda text: len(tokenizer.encode(text))
    made = []
    for i in range(n):
        draw = Draw(f"case/{kind}/{seed}/{i}", split="heldout")
        if is_needle:
            # Each case stands for its share of the depths.
            depth = (i + draw.rng.random()) / n
            scene = needle(draw, int(length), depth=depth, count=count)
            made.append(conversation(draw, kind, [scene], others=known()))
        else:
            made.append(_conversation(draw, kind))
    return made


def _conversation(draw: Draw, kind: str) -> Conversation:
    match kind:
        case "known":
            skills = builtin() if draw.chance(0.5) else invented()
            return _requests(draw, kind, skills, others=known())
        case "unseen":
            others = unseen() if draw.chance(0.6) else (*known(), *unseen())
            return _requests(draw, kind, unseen(), others=others)
        case "multi_step":
            return conversation(draw, kind, [chain_scene(draw)], others=known())
        case "recovery":
            return conversation(draw, kind, [_trouble(draw)], others=known())
        case _:
            # With tools, always: without any, nothing could be called wrongly.
            return talk(draw, kind, bare=False)


def _trouble(draw: Draw) -> Scene:
    """Return a request in which a call fails, and what can be done about it."""
    match draw.whole(0, 4):
        case 0:
            return missing_file(draw)
        case 1:
            return wrong_zone(draw)
        case 2:
            return tried_again(draw, draw.pick(known()))
        case 3:
            return reported(draw, draw.pick(known()))
    # A formula is never wrong as a name is.
    skills = [skill for skill in known() if skill.area != "sums"]
    while True:
        scene = corrected(draw, draw.pick(skills))
        # Some requests have nothing in them that could be mistyped.
        if not scene.turns[0].outputs[0].trained:
            return scene


def _requests(
    draw: Draw, kind: str, skills: tuple[Skill, ...], *, others: tuple[Skill, ...]
) -> Conversation:
    """Return one request, or several, or one that no listed tool fits."""
    which = draw.rng.random()
    if which < 0.12:
        return refusal(draw, kind, skills)
    if which < 0.74:
        scene = single(draw, draw.pick(skills))
    elif which < 0.82:
        joins = [skill for skill in known() if skill.joins]
        scene = (
            alike(draw, draw.pick(joins)) if kind == "known" else single(draw, draw.pick(skills))
        )
    elif which < 0.91:
        scene = mixed(draw, [draw.pick(skills) for _ in range(2)])
    else:
        varies = [skill for skill in skills if skill.vary]
        scene = follow_up(draw, draw.pick(varies))
    return conversation(draw, kind, [scene], others=others)


def _estimate(text: str) -> int:
    """Return about how many tokens a text has, within a fifth: words cost by length, digits one."""
    return sum(-(-len(piece) // 5) if piece.isalpha() else 1 for piece in _PIECES.findall(text))
