"""Stage: what a run trains, on what, and what is to become small.

The loop knows a stage by this protocol alone; `Heal` and `Teach` are the two that there are.
Invariant: the passes of step n are a function of the recipe, the examples and n, so that a run that
goes on needs no state of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from cedagent.upcycle.training.adapters import Rounding, TrainedWeights
from cedagent.upcycle.training.batches import Batch


class Stage(Protocol):
    """What is trained, on what, and what is to be small."""

    @property
    def weights(self) -> TrainedWeights:
        """The student's tensors."""
        ...

    @property
    def rounding(self) -> Rounding | None:
        """How int8 serving rounds a matrix, where that is known."""
        ...

    def steps(self) -> Iterator[Sequence[Batch]]:
        """Yield each step's passes, from the first step on, without end."""
        ...

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Return a pass's loss and figures for the log, means over its scored rows."""
        ...

    def held_out(self) -> dict[str, float]:
        """Return figures on text that training never sees."""
        ...
