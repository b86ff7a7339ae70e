"""What every model's config.json has in common, and which family reads the rest.

Knows no family's own fields: each family's config is a dataclass of its own, checked where it is
read. What is neither of them is refused with both names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from cedagent.errors import ConfigError
from cedagent.model.config_fields import shown

if TYPE_CHECKING:
    from cedagent.model.llama.config import LlamaConfig
    from cedagent.model.v41_config import V41Config

TILE = 128
"""Rows of one tile, tokens of one block."""

CONFIG_FILE = "config.json"

WeightsDtype = Literal["float32", "int8"]


class ModelConfig(Protocol):
    """Shape and settings of one model, as far as every family has them."""

    @property
    def model_type(self) -> str:
        """Name of the family."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Most tokens a sequence can hold."""
        ...

    @property
    def chat_format(self) -> str:
        """Name of the chat format."""
        ...

    @property
    def eos_token_id(self) -> int:
        """The token that ends an output."""
        ...

    @property
    def num_hidden_layers(self) -> int:
        """L: encoder and decoder layers together."""
        ...

    @property
    def n_encoder_layers(self) -> int:
        """E: layers 0 .. E-1 are the encoder."""
        ...

    @property
    def n_decoder_layers(self) -> int:
        """L - E."""
        ...

    @property
    def replay_windows(self) -> int:
        """R: windows that a bounded replay runs through the decoder."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Return the mapping that config.json holds."""
        ...


def read_config(model_dir: Path) -> dict[str, Any]:
    """Return the parsed MODEL_DIR/config.json of any family; raises ConfigError."""
    path = model_dir / CONFIG_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected a model directory") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path}: cannot be read as JSON: nested too deeply") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(values).__name__}")
    return values


def load_config(model_dir: Path) -> LlamaConfig | V41Config:
    """Read MODEL_DIR/config.json as its model_type says; raises ConfigError."""
    values, where = read_config(model_dir), str(model_dir / CONFIG_FILE)
    if values.get("model_type") == "ced_llama":
        from cedagent.model.llama.config import LlamaConfig

        return LlamaConfig.from_json(values, where=where)
    if values.get("model_type") == "deepseek_v41":
        from cedagent.model.v41_config import V41Config

        return V41Config.from_json(values, where=where)
    raise ConfigError(
        f"{where}: expected model_type ced_llama or deepseek_v41, got "
        f"{shown(values.get('model_type'))}; a plain Llama checkpoint is made into one of "
        "ced_llama by `cedagent model convert`"
    )
