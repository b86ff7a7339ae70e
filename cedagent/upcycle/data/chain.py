"""Tasks of several steps, where a later call needs what an earlier one returned.

Knows calls and results, no tool. Invariant: everything is drawn before the message is worded, so
the arguments of later calls stand in earlier results word for word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cedagent.chat.template import ToolSpec
from cedagent.upcycle.data.conversation import Said, Turn
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.phrasing import sentence, surface

Values = dict[str, Any]
Done = tuple[str, Mapping[str, Any], str]
"""Name, arguments and result of a call."""
_TRIES = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One kind of task with several steps."""

    specs: tuple[ToolSpec, ...]
    draw: Callable[[Draw], Values]
    """All that is said and all that the tools return."""
    steps: Callable[[Values], list[list[Done]]]
    """The calls of each output."""
    asks: tuple[str, ...] = ()
    """Templates; empty for a combination that training never sees."""
    heldout_asks: tuple[str, ...] = ()
    answers: tuple[str, ...]
    needed: tuple[str, ...]

    @property
    def name(self) -> str:
        """What asks.txt calls chains of these tools."""
        return "chain " + "+".join(spec.name for spec in self.specs)


def chain_turn(chain: Chain, draw: Draw) -> Turn:
    """Return a message and the outputs that it takes."""
    own = chain.asks if draw.split == "train" else chain.heldout_asks
    for _ in range(_TRIES):
        values = chain.draw(draw)
        steps = chain.steps(values)
        if not all(draw.allows(name, args) for step in steps for name, args, _ in step):
            continue
        template = draw.pick(values.get("_asks") or own)
        wording = ask(template, values, draw=draw)
        assert wording is not None, f"a value is missing: {template}"
        said = [
            Said(
                calls=tuple((name, args) for name, args, _ in step),
                results=tuple(result for _, _, result in step),
            )
            for step in steps
        ]
        answer = sentence(draw.pick(chain.answers), values, rng=draw.rng)
        contains = tuple(surface(values[name]) for name in chain.needed)
        return Turn(wording.text(), (*said, Said(text=answer, contains=contains)))
    raise AssertionError(f"{[spec.name for spec in chain.specs]}: no task on this side")
