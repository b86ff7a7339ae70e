"""How far a run may go before it stops by itself with the reason `limit`.

Only numbers and counters; the loop asks before each step, so that a limit never leaves a call half
done. A run that a limit stopped goes on with `run(None)`, which starts counting anew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from cedagent.errors import UsageError

_UNCAPPED = ("outputs", "tool_calls", "tokens", "seconds", "repeated_tokens")
_LONGEST_STRETCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Caps of one run; None means no cap. Raises UsageError for a cap that is no number."""

    outputs: int | None = 20
    """Most outputs (a sampled stretch, to its end or to its calls)."""
    tool_calls: int | None = 64
    """Most calls; a batch that would pass it is not begun."""
    tokens: int | None = 50_000
    """Most tokens that the model may write, calls included."""
    seconds: float | None = None
    """Most wall-clock time; tools still running then are given up."""
    result_tokens: int = 2_048
    """Most tokens of one tool result; the middle of a longer one is cut."""
    bad_calls: int = 3
    """Outputs in a row whose calls all failed to name a registered tool or to parse."""
    repeated_calls: int = 3
    """The same calls in a row with the same results: this one is refused, the next ends the run."""
    repeated_tokens: int | None = 128
    """Most tokens at the end of an output that say again what the 1 to 32 before them said."""

    def __post_init__(self) -> None:
        least = {"tool_calls": 0, "seconds": 0, "result_tokens": 64}
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None and f.name in _UNCAPPED:
                continue
            kinds = (int, float) if f.name == "seconds" else (int,)
            low = least.get(f.name, 1)
            # Written so that NaN, which compares with nothing, is refused too.
            if not isinstance(value, kinds) or isinstance(value, bool) or not value >= low:
                raise UsageError(
                    f"Limits.{f.name}: expected a number of at least {low}, got {value!r}"
                )


@dataclass(slots=True)
class Counter:
    """What one run has used of its limits."""

    limits: Limits
    outputs: int = 0
    tool_calls: int = 0
    tokens: int = 0
    bad_streak: int = 0
    same_streak: int = 0
    refused_streak: int = 0
    stuck: bool = False
    _started: float = field(default_factory=time.monotonic)
    _last: tuple[object, object] | None = None

    def seconds_left(self) -> float | None:
        """Return the seconds until the time limit, or None where there is none."""
        if self.limits.seconds is None:
            return None
        return self.limits.seconds - (time.monotonic() - self._started)

    def is_late(self) -> bool:
        """Tell whether the time limit has passed."""
        left = self.seconds_left()
        return left is not None and left <= 0

    def tokens_left(self) -> int | None:
        """Return how many tokens may still be written, or None where there is no cap."""
        return None if self.limits.tokens is None else self.limits.tokens - self.tokens

    def is_stuck(self, written: Sequence[int]) -> bool:
        """Tell whether an output of this run only repeats a stretch of itself any more."""
        most = self.limits.repeated_tokens
        if most is not None:
            self.stuck = any(
                _goes_back(written, stretch, most) for stretch in range(1, _LONGEST_STRETCH + 1)
            )
        return self.stuck

    def why_no_output(self) -> str | None:
        """Return why no further output may begin, or None when one may."""
        if self.stuck:
            return "the same words again and again (Limits.repeated_tokens)"
        if self.limits.outputs is not None and self.outputs >= self.limits.outputs:
            return f"{self.outputs} outputs (Limits.outputs)"
        if self.is_late():
            return f"{self.limits.seconds:g} seconds (Limits.seconds)"
        left = self.tokens_left()
        if left is not None and left <= 0:
            return f"{self.tokens} tokens (Limits.tokens)"
        return None

    def why_no_calls(self, n_calls: int) -> str | None:
        """Return why `n_calls` calls may not be run, or None when they may."""
        cap = self.limits.tool_calls
        if cap is not None and self.tool_calls + n_calls > cap:
            return f"{self.tool_calls} tool calls (Limits.tool_calls)"
        return self.why_no_output()

    def is_repeat(self, calls: object) -> bool:
        """Tell whether these calls were made just before, with the same results each time."""
        same = self._last is not None and self._last[0] == calls
        return same and self.same_streak >= self.limits.repeated_calls - 1

    def note_calls(self, calls: object, results: object, *, bad: bool, refused: bool) -> str | None:
        """Record an answered batch; return why the run must stop now, or None."""
        self.bad_streak = self.bad_streak + 1 if bad else 0
        if refused:
            self.refused_streak += 1
        else:
            self.same_streak = self.same_streak + 1 if self._last == (calls, results) else 1
            self._last = (calls, results)
            self.refused_streak = 0
        if self.bad_streak >= self.limits.bad_calls:
            return f"{self.bad_streak} bad calls in a row (Limits.bad_calls)"
        if self.refused_streak >= 2:
            return "the same call again and again (Limits.repeated_calls)"
        return None


def _goes_back(written: Sequence[int], stretch: int, n_tokens: int) -> bool:
    """Tell whether each of the last `n_tokens` ids is the one `stretch` ids before it."""
    end = len(written)
    if end < n_tokens + stretch:
        return False
    return all(written[i] == written[i - stretch] for i in range(end - 1, end - 1 - n_tokens, -1))
