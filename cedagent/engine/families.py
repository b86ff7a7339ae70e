"""Which family serves a model directory: the one place that knows them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cedagent.engine.family import Family, Mode
from cedagent.engine.kernel_choice import KernelChoice
from cedagent.errors import EngineError
from cedagent.model.config import WeightsDtype, load_config
from cedagent.model.llama.config import LlamaConfig


def load_family(
    model_dir: Path,
    *,
    precision: WeightsDtype,
    mode: Mode,
    replay_windows: int | None,
    kernels: KernelChoice,
) -> Family[Any]:
    """Load the model with the family that its config names, with its notices.

    `replay_windows` None takes the config's. Raises ConfigError, WeightsError, and EngineError for
    kernels that cannot be had.
    """
    config = load_config(model_dir)
    if isinstance(config, LlamaConfig):
        from cedagent.engine.llama.family import LlamaFamily

        return LlamaFamily.load(
            model_dir,
            config,
            precision=precision,
            mode=mode,
            replay_windows=replay_windows,
            kernels=kernels,
        )
    if kernels == "native":
        raise EngineError("native kernels serve ced_llama; for deepseek_v41 choose auto")
    from cedagent.engine.v41.family import V41Family

    return V41Family.load(
        model_dir, config, weights="auto", mode=mode, replay_windows=replay_windows
    )
