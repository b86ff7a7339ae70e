"""Which family serves a model directory: the one place that knows them all.

A setting that the family has no use for is refused rather than ignored, before weights are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cedagent.engine.family import Family
from cedagent.engine.settings import Settings
from cedagent.errors import UsageError
from cedagent.model.config import load_config
from cedagent.model.llama.config import LlamaConfig


def load_family(model_dir: Path, settings: Settings) -> Family[Any]:
    """Load the model with the family that its config names, with its notices.

    Raises ConfigError, WeightsError, UsageError for a setting of another family, and EngineError
    for kernels that cannot be had.
    """
    config = load_config(model_dir)
    if isinstance(config, LlamaConfig):
        if settings.weights != "auto":
            raise UsageError(
                f"weights {settings.weights} is a choice for deepseek_v41 checkpoints; {model_dir} "
                "is of ced_llama, whose weights are held as stored: leave it at auto"
            )
        from cedagent.engine.llama.family import LlamaFamily

        return LlamaFamily.load(
            model_dir,
            config,
            precision="int8" if settings.precision == "auto" else settings.precision,
            mode=settings.mode,
            replay_windows=settings.replay_windows,
            kernels=settings.kernels,
        )
    if settings.precision == "int8":
        raise UsageError(
            f"precision int8 is a choice for ced_llama; {model_dir} is of deepseek_v41, which "
            "computes in float32 with its weights as stored: leave it at auto"
        )
    from cedagent.engine.v41.family import V41Family

    return V41Family.load(
        model_dir,
        config,
        weights=settings.weights,
        mode=settings.mode,
        replay_windows=settings.replay_windows,
        kernels=settings.kernels,
    )
