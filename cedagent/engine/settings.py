"""Settings: what `Engine.load` is told beside the model's name, checked before a file is opened.

Knows the values there are. Which of them a family can meet is its own affair: families.py and the
families refuse what does not apply to them. "auto" leaves a choice to the family.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from cedagent.engine.family import Mode
from cedagent.engine.kernel_choice import KernelChoice
from cedagent.errors import UsageError
from cedagent.model.config import WeightsDtype
from cedagent.model.weights_choice import WeightsChoice

Precision = Literal["auto"] | WeightsDtype


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model runs, how its weights are held, and where its prefix store is."""

    kv: str | Path | None = None
    """Folder of the prefix store; None goes without."""
    max_kv_bytes: int | None = None
    precision: Precision = "auto"
    """int8 or float32 for ced_llama, where auto takes int8; deepseek_v41 has one arithmetic."""
    mode: Mode = "bounded"
    replay_windows: int | None = None
    """R of a bounded replay; None takes the config's."""
    kernels: KernelChoice = "auto"
    weights: WeightsChoice = "auto"
    """How deepseek_v41 holds its weights; the bits of the answers are the same."""

    def __post_init__(self) -> None:
        """Raise UsageError for a value that no family knows."""
        _one_of("mode", self.mode, get_args(Mode))
        _one_of("precision", self.precision, ("auto", *get_args(WeightsDtype)))
        _one_of("kernels", self.kernels, get_args(KernelChoice))
        _one_of("weights", self.weights, get_args(WeightsChoice))
        if self.replay_windows is not None and self.replay_windows < 1:
            raise UsageError(f"replay_windows must be at least 1, got {self.replay_windows}")
        if self.kv is not None and not str(self.kv):
            raise UsageError("kv must name a folder, got an empty text; None goes without a store")
        if self.max_kv_bytes is not None and self.max_kv_bytes < 0:
            raise UsageError(f"max_kv_bytes must not be negative, got {self.max_kv_bytes}")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        *rest, last = known
        raise UsageError(f"{name} must be {', '.join(rest)} or {last}, got {value!r}")
