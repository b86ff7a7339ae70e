"""The control tokens of each chat format, by name.

Knows names only; a tokenizer knows their ids. Invariant: a control token enters a sequence by its
id, never by encoding its name as text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControlNames:
    """Which control tokens a chat format uses."""

    turn_start: str
    """Opens a turn; the role follows as plain text."""
    turn_end: str
    """Closes a turn; the only control token that a model may sample."""


CHATML = ControlNames(turn_start="<|im_start|>", turn_end="<|im_end|>")
