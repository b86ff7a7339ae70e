"""Whether a model directory holds what a chat needs: weights by name and shape, tokenizer, format.

It reads headers alone and loads no weights, so a good answer here takes milliseconds; what it
cannot see is a flipped bit in the numbers themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cedagent.errors import CedError, WeightsError

if TYPE_CHECKING:
    from cedagent.model.llama.config import LlamaConfig
    from cedagent.model.v41_config import V41Config


def read_problems(model_dir: Path) -> list[str]:
    """Return one line per thing that keeps a chat from running on the model; none if it can."""
    from cedagent.chat.template import load_chat_format
    from cedagent.chat.tokenizer import Tokenizer
    from cedagent.model.config import load_config
    from cedagent.model.engram_map import load_token_map
    from cedagent.model.llama.config import LlamaConfig

    try:
        config = load_config(model_dir)
    except CedError as error:
        return [str(error)]
    problems = []
    if isinstance(config, LlamaConfig) and config.weights_dtype != "int8":
        problems.append(f"{model_dir} has {config.weights_dtype} weights alone; convert it again")
    else:
        try:
            if isinstance(config, LlamaConfig):
                _check_llama_weights(model_dir, config)
            else:
                _check_release(model_dir, config)
        except CedError as error:
            problems.append(str(error))
    try:
        tokenizer = Tokenizer.load(model_dir)
        if not isinstance(config, LlamaConfig) and config.engram_layer_ids:
            # Behind the tokenizer, from which it may be derived: what is wrong is told once.
            load_token_map(model_dir, config)
        load_chat_format(model_dir, config.chat_format, tokenizer=tokenizer)
    except CedError as error:
        problems.append(str(error))
    return problems


def _check_release(model_dir: Path, config: V41Config) -> None:
    from cedagent.model.release import ReleaseCheckpoint

    ReleaseCheckpoint(model_dir, config, weights="keep")


def _check_llama_weights(model_dir: Path, config: LlamaConfig) -> None:
    from safetensors import safe_open

    from cedagent.model.llama.weights import SCALE_SUFFIX, Checkpoint, tensor_shapes

    # Tells of a file that is missing, unreadable, cut short or of another kind.
    path = Checkpoint(model_dir, config, dtype="int8").path
    expected = tensor_shapes(config, "int8")
    scales = {name + SCALE_SUFFIX: shape[:1] for name, shape in expected.items() if len(shape) > 1}
    with safe_open(path, framework="pt") as file:
        names = frozenset(file.keys())
        for name, shape in (expected | scales).items():
            if name not in names:
                raise WeightsError(f"{path}: tensor {name} is missing")
            found = tuple(file.get_slice(name).get_shape())
            if found != shape:
                raise WeightsError(
                    f"{path}: tensor {name}: expected {list(shape)}, got {list(found)}"
                )
