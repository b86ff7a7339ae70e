"""What the generators make: conversations, and the examples and cases that are read off them.

Knows chat formats by their door alone; no tokens, no tools. Invariant: an example and a case of
the same conversation hold the same turns in the same order, so what is judged is what is taught.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cedagent.chat.template import ToolSpec

Split = Literal["train", "heldout"]
SpokenCall = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids to learn from."""

    ids: tuple[int, ...]
    trained: tuple[float, ...]
    """For each id, how much predicting it counts, 0 .. 1."""


@dataclass(frozen=True, slots=True)
class Said:
    """One output of the model: calls with the results that they get, or an answer."""

    calls: tuple[SpokenCall, ...] = ()
    results: tuple[str, ...] = ()
    """One per call, as the runtime would append them."""
    text: str = ""
    contains: tuple[str, ...] = ()
    """What a right answer has in it (`contains`), whatever its wording."""
    trained: bool = True
    """False for a wrong turn that is there to be recovered from."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the user and all outputs up to the answer."""

    user: str
    outputs: tuple[Said, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation from its system turn to its last answer."""

    kind: str
    system: str | None
    """None stands for the chat format's own text."""
    tools: tuple[ToolSpec, ...]
    turns: tuple[Turn, ...]
    depth: float | None = None
    """Where in a long result the answer stands: 0 at its start, 1 at its end."""


@dataclass(frozen=True, slots=True)
class Step:
    """What the model should do at one point of a conversation."""

    calls: tuple[SpokenCall, ...]
    """The calls to make here, in the user's order; empty where it should answer."""
    results: tuple[str, ...]
    """What to append after them."""
    answer_contains: tuple[str, ...]
    """What the answer must contain; nothing where any answer will do."""
    may_call: bool
    """Whether calling is right here; False where the model should answer in words."""
    given: bool = False
    """Whether it is put there without asking the model: a wrong turn to recover from."""


@dataclass(frozen=True, slots=True)
class Case:
    """Enough to drive an engine through a conversation and to judge what it does."""

    kind: str
    system: str | None
    """None stands for the chat format's own text."""
    tools: tuple[ToolSpec, ...]
    user: tuple[str, ...]
    """The user's messages."""
    steps: tuple[tuple[Step, ...], ...]
    """For each message, what the model should do until the next one."""
    depth: float | None = None
    """Of needles: where in the long result the answer stands, from 0 to 1."""


def case_of(conversation: Conversation) -> Case:
    """Return the conversation as a case, its answers replaced by what they must contain."""
    return Case(
        kind=conversation.kind,
        system=conversation.system,
        tools=conversation.tools,
        user=tuple(turn.user for turn in conversation.turns),
        steps=tuple(tuple(map(_step, turn.outputs)) for turn in conversation.turns),
        depth=conversation.depth,
    )


def contains(said: str, expected: str) -> bool:
    """Tell whether what was said has a text as words of its own, whatever case and white space.

    A number must stand there whole: 12 is not in 312, 12a, 12.5, 12,500 or -12; but 4,711 is 4711.
    """
    wanted = _folded(expected)
    before = r"(?<!\w)" if wanted[:1].isalnum() else ""
    after = r"(?!\w)" if wanted[-1:].isalnum() else ""
    if wanted[:1].isdigit():
        before += r"(?<!\d[.,])(?<! -)"
    if wanted[-1:].isdigit():
        after += r"(?![.,]\d)"
    shape = re.compile(before + re.escape(wanted) + after)
    text = f" {_folded(said)}"
    return any(shape.search(one) for one in (text, re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)))


def _step(said: Said) -> Step:
    return Step(said.calls, said.results, said.contains, bool(said.calls), not said.trained)


def _folded(text: str) -> str:
    return " ".join(text.replace("\u2212", "-").casefold().split())
