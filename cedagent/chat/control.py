"""The control tokens of each chat format, by name.

Knows names only; a tokenizer knows their ids. Invariant: a control token enters a sequence by its
id, never by encoding its name as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ControlNames:
    """Which control tokens a chat format uses."""

    turn_start: str
    """Opens a turn; the role follows as plain text."""
    turn_end: str
    """Closes a turn; the only control token that a model may sample."""


CHATML = ControlNames(turn_start="<|im_start|>", turn_end="<|im_end|>")

_BAR = "\N{FULLWIDTH VERTICAL LINE}"


class Mark(StrEnum):
    """A control token of DSML; between marks there is nothing but content.

    `▁` is U+2581.
    """

    BEGIN = f"<{_BAR}begin▁of▁sentence{_BAR}>"
    END = f"<{_BAR}end▁of▁sentence{_BAR}>"
    SYSTEM = f"<{_BAR}System{_BAR}>"
    USER = f"<{_BAR}User{_BAR}>"
    ASSISTANT = f"<{_BAR}Assistant{_BAR}>"
    THINK = "<think>"
    END_THINK = "</think>"
    DSML = f"{_BAR}DSML{_BAR}"
    REMINDER = f"<{_BAR}latest_reminder{_BAR}>"
    ACTION = f"<{_BAR}action{_BAR}>"
    QUERY = f"<{_BAR}query{_BAR}>"
    AUTHORITY = f"<{_BAR}authority{_BAR}>"
    DOMAIN = f"<{_BAR}domain{_BAR}>"
    TITLE = f"<{_BAR}title{_BAR}>"
    READ_URL = f"<{_BAR}read_url{_BAR}>"
