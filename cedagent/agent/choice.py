"""Tool choices: three words, or the name of a tool. A leaf that both tools and sessions know."""

from __future__ import annotations

from collections.abc import Sequence

from cedagent.errors import UsageError

CHOICES = ("auto", "none", "required")
"""Tool choices that are no tool's name."""


def check_choice(choice: object, names: Sequence[str]) -> None:
    """Raise UsageError for a tool choice that a session with these tools does not have."""
    if not isinstance(choice, str) or choice not in (*CHOICES, *names):
        expected = ", ".join((*CHOICES, *names))
        raise UsageError(f"tool_choice: expected one of {expected}, got {choice!r}")
    if choice == "required" and not names:
        raise UsageError("tool_choice: expected a tool to be there for required, got none")
