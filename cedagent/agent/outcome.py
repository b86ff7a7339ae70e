"""What a run gives back: the answer, the calls on the way, why it stopped, what it cost.

Plain frozen values; knows neither engine nor log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cedagent.events import StopReason, Usage


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One answered call."""

    name: str
    arguments: dict[str, Any]
    """As the model wrote them; empty where they could not be read."""
    result: str
    """What the model reads, perhaps cut."""
    error: bool
    seconds: float
    trace: str | None = None
    """The traceback, when the tool raised something else than ToolError or Abort."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run."""

    text: str
    """Text of the last output."""
    tool_calls: tuple[ToolCall, ...]
    """All calls of the run, in the order in which the model wrote them."""
    stop_reason: StopReason
    usage: Usage
    message: str = ""
    """One line: why the run stopped early and what to do; empty after a plain end."""


@dataclass(frozen=True, slots=True)
class WarmReport:
    """What `Agent.warm` did for the system prompt and tools."""

    tokens: int
    """Length of the warm prefix; what is beyond its last whole block is never encoded here."""
    hit: bool
    """True when all its whole blocks were known already."""
    reused: int
    """Tokens of whole blocks that were known."""
    encoded: int
    """Tokens of whole blocks that were encoded."""
    seconds: float
