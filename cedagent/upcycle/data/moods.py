"""Ways to ask for the same thing: imperatives, questions, wishes, greetings around them.

A template that begins with `!` is an imperative, with `?` a question, with `=` the name of what is
wanted; any other is a message as it stands. Knows no tools. Invariant: the two sides of the split
share no frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cedagent.upcycle.data.conversation import Split
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import Wording, capital, expand, noisy

FRAMES: Final[dict[str, dict[Split, tuple[str, ...]]]] = {
    "!": {
        "train": (
            "@.", "@.", "@", "Please @.", "@, please.", "Can you @?", "Could you @?",
            "Could you please @?", "I need you to @.", "I want to @.", "I would like to @.",
            "Would you @?", "Go ahead and @.", "Help me @.", "You should @ now.",
            "I'd like you to @, thanks.", "Time to @.", "Let's @.", "I have to @.",
        ),
        "heldout": (
            "Will you @?", "Kindly @.", "Would you be able to @?", "Now @.", "Today we have to @.",
            "Would you mind helping me? I need to @.", "I was hoping you could @.",
            "Be so kind as to @.", "My next step is to @.", "Somebody has to @.",
        ),
    },
    "?": {
        "train": (
            "@?", "@?", "@", "Hey, @?", "Tell me, @?", "One question: @?", "So @?", "@ please?",
            "I wonder: @?", "Quick question, @?",
        ),
        "heldout": (
            "And now, @?", "Sorry to bother you, but @?", "Here is my question: @?", "Well, @?",
            "By the way, @?", "Remind me, @?", "@, exactly?",
        ),
    },
    "=": {
        "train": (
            "What is @?", "What's @?", "Tell me @.", "I need @.", "Give me @.", "@?", "@",
            "Please give me @.", "Can you tell me @?", "Could you look up @?", "Do you know @?",
            "Show me @, please.", "I'd like to know @.", "Find out @ for me.", "I want to know @.",
        ),
        "heldout": (
            "May I have @?", "Would you find @ for me?", "I am looking for @.", "Let me know @.",
            "Could I get @, please?", "Fetch @.", "I have to find out @.", "Get me @.",
        ),
    },
}  # fmt: skip

_AROUND: Final[dict[Split, tuple[str, ...]]] = {
    "train": (
        "Hi! @", "Hello. @", "Good morning. @", "@ Thanks!", "@ Thank you.", "Hi there. @ Thanks.",
        "I'm in a hurry. @", "It's for a colleague. @", "@ It's urgent.", "@ No rush.",
        "I have a small request. @", "OK, next thing. @", "My boss is asking. @", "Alright. @",
        "Good evening! @", "@ I need it for a report.", "We are about to leave. @",
        "@ Keep it short.",
    ),
    "heldout": (
        "Good afternoon. @", "@ Many thanks in advance.", "A friend wants to know. @", "Hey you. @",
        "I just got to my desk. @", "@ I'll wait.", "@ That would help me a lot.", "Okay then. @",
        "Hope you are well. @", "@ Sorry for the trouble.", "Back again. @", "@ It is for later.",
    ),
}  # fmt: skip


def ask(
    template: str,
    values: Mapping[str, Any],
    *,
    draw: Draw,
    around: float = 0.3,
    noise: float = 0.15,
) -> Wording | None:
    """Return a template as somebody would type it; None if it needs a value that is not there.

    `around` and `noise` are the shares that get a greeting and the like, and typos.
    """
    mood = template[:1] if template[:1] in FRAMES else ""
    body = template.removeprefix(mood)
    if mood:
        body = draw.pick(FRAMES[mood][draw.split]).replace("@", body)
    wording = expand(body, values, rng=draw.rng)
    if wording is None:
        return None
    wording = capital(wording)
    if draw.chance(around):
        before, after = draw.pick(_AROUND[draw.split]).split("@")
        pieces = wording.pieces
        if after and pieces[-1][0][-1:] not in (".", "?", "!"):
            after = "." + after
        wording = Wording(((before, False), *pieces, (after, False)), wording.used)
    return noisy(wording, rng=draw.rng) if draw.chance(noise) else wording
