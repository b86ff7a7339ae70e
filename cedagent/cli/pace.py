"""How fast an answer was written: the time between its events, without prefills and tools."""

from __future__ import annotations

import time

from cedagent.events import Done, Event, Prefill, Text, Thinking, ToolArgs, ToolStart, Usage


class Pace:
    """The time in which tokens were written, without prefills and tools."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._last = time.monotonic()
        self._writing = False

    def note(self, event: Event) -> None:
        """Count the time since the last event if it went into writing."""
        now = time.monotonic()
        is_written = isinstance(event, Thinking | Text | ToolStart | ToolArgs)
        if self._writing and (is_written or isinstance(event, Done)):
            self._seconds += now - self._last
        # An output begins when its prefill has ended and ends with its text or its last argument.
        self._writing = is_written or isinstance(event, Prefill)
        self._last = now

    def tokens_per_second(self, usage: Usage) -> float:
        """Return the speed of a run's outputs, 0 when too little was written to tell."""
        n_tokens = usage.sampled + usage.forced
        return n_tokens / self._seconds if n_tokens > 1 and self._seconds > 0 else 0.0
