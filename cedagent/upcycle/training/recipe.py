"""Recipe and Budget: what decides the trained weights, and how long a run may take.

A run goes on from a checkpoint only under the same recipe. A step's learning rate follows from the
share of the budget that is used: 5% warm-up, then a cosine down to a tenth. Invariant: with steps
and no minutes the weights are a function of the recipe and the examples.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from cedagent.errors import UsageError

StageName = Literal["heal", "teach"]
Precision = Literal["bfloat16", "float32"]

_WARM_UP = 0.05
_LEAST = 0.1
"""Learning rate at the end, as a share of the highest."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Every setting that the trained weights depend on, besides model and examples."""

    stage: StageName
    steps: int | None
    """Length of the schedule; None where minutes decide it."""
    rank: int = 16
    """r of new adapters."""
    lr: float = 1e-3
    """Highest learning rate of adapters."""
    lr_global: float = 1e-3
    """Highest learning rate of global norms, keys and values."""
    batch_tokens: int = 8192
    """Tokens of one step."""
    pass_tokens: int = 4096
    """Most tokens that run at once."""
    seed: int = 0
    replay_share: float = 0.5
    """Share of texts that run as a bounded replay and what is decoded after it."""
    precision: Precision = "bfloat16"
    """Type in which matrices are multiplied; everything between is float32."""
    fake_int8: float = 0.0
    """Share of steps whose trained matrices are rounded as int8 serving rounds them."""
    hidden_weight: float = 1.0
    """heal: weight of the distance between last hidden states, beside the divergence."""
    encoder_adapters: bool = False
    """heal: adapters on the windowed encoder layers, too (teach: always on all)."""
    plain_share: float = 0.25
    """teach: share of tokens that are plain text, scored against the parent."""
    answers: str | None = None
    """teach: SHA-256 of the parent's own answers among the transcripts; None without them."""
    answers_share: float = 0.15
    """teach: share of transcripts that are such answers."""

    def __post_init__(self) -> None:
        """Refuse settings out of range; raises UsageError."""
        for name, least in (("rank", 1), ("batch_tokens", 2), ("pass_tokens", 2), ("seed", 0)):
            self._expect(name, getattr(self, name) >= least, f"at least {least}")
        self._expect("steps", self.steps is None or self.steps >= 1, "at least 1")
        for name in ("lr", "lr_global"):
            self._expect(name, 0 < getattr(self, name) < math.inf, "a number above 0")
        for name in ("replay_share", "fake_int8", "plain_share", "answers_share"):
            self._expect(name, 0 <= getattr(self, name) <= 1, "a share, 0 .. 1")
        self._expect("hidden_weight", 0 <= self.hidden_weight < math.inf, "a number of at least 0")

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a mapping."""
        return asdict(self)

    def _expect(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise UsageError(f"{name}: expected {what}, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Budget:
    """When a run ends: after so many steps or minutes, whichever comes first."""

    steps: int | None
    minutes: float | None

    def __post_init__(self) -> None:
        """Refuse a budget without an end; raises UsageError."""
        if self.steps is None and self.minutes is None:
            raise UsageError("expected a number of steps or of minutes, got neither")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise UsageError(f"minutes: expected a number above 0, got {self.minutes}")

    def used(self, steps: int, seconds: float) -> float:
        """Return the share of the budget that is used; 1 and more: the run is over."""
        by_steps = 0.0 if self.steps is None else steps / self.steps
        by_time = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return max(by_steps, by_time)


def rate_at(used: float) -> float:
    """Return the learning rate, as a share of the highest, when this share of a budget is used."""
    if used < _WARM_UP:
        # Not from zero, which would waste the first step.
        return max(used / _WARM_UP, 0.1)
    left = min(1.0, (used - _WARM_UP) / (1 - _WARM_UP))
    return _LEAST + (1 - _LEAST) * (1 + math.cos(math.pi * left)) / 2
