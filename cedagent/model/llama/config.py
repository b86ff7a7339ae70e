"""LlamaConfig: the fields of a `ced_llama` config.json that decide what is computed, checked once.

Knows this family alone (a Llama checkpoint turned into a CED). Fields that would change the
arithmetic in a way that is not served are refused by name; unknown descriptive fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from cedagent.errors import ConfigError
from cedagent.model.config import CONFIG_FILE, WeightsDtype, read_config


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Shape and settings of one `ced_llama` model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    """L: encoder and decoder layers together."""
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    """Most tokens a sequence can hold."""
    tie_word_embeddings: bool
    n_encoder_layers: int
    """E: layers 0 .. E-1 are the encoder; E = L is the plain decoder-only transformer."""
    decoder_window: int
    """W: keys that a decoder layer takes from its own hidden states, and all the keys of a windowed
    encoder layer; 0 is YOCO."""
    encoder_global_layers: tuple[int, ...]
    """Encoder layers that attend to all earlier tokens, in order; the others are windowed."""
    replay_windows: int = 1
    """R: windows that a bounded replay runs through the decoder."""
    weights_dtype: WeightsDtype = "float32"
    """"int8" when int8 weights are stored beside the float32 ones."""
    chat_format: str = "chatml"
    eos_token_id: int = 0
    model_type: str = "ced_llama"

    def __post_init__(self) -> None:
        """Refuse values that contradict each other; raises ConfigError."""
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim",
            "max_position_embeddings", "replay_windows",
        ):  # fmt: skip
            _expect(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        _expect(self.model_type == "ced_llama", "model_type must be ced_llama", self.model_type)
        _expect(
            self.num_attention_heads % self.num_key_value_heads == 0,
            "num_attention_heads must be a multiple of num_key_value_heads",
            f"{self.num_attention_heads} and {self.num_key_value_heads}",
        )
        _expect(self.head_dim % 2 == 0, "head_dim must be even", self.head_dim)
        _expect(
            1 <= self.n_encoder_layers <= self.num_hidden_layers,
            f"n_encoder_layers must be 1 .. {self.num_hidden_layers}",
            self.n_encoder_layers,
        )
        _expect(
            self.decoder_window >= 0, "decoder_window must not be negative", self.decoder_window
        )
        layers = self.encoder_global_layers
        _expect(
            layers == tuple(sorted(set(layers).intersection(range(self.n_encoder_layers)))),
            f"encoder_global_layers must be layers 0 .. {self.n_encoder_layers - 1}, in order and "
            "each once",
            list(layers),
        )
        _expect(
            self.decoder_window >= 1 or not self.encoder_windowed_layers,
            "encoder_global_layers must list every encoder layer where decoder_window is 0",
            list(layers),
        )
        _expect(
            self.weights_dtype in ("float32", "int8"),
            "weights_dtype must be float32 or int8",
            self.weights_dtype,
        )

    @property
    def encoder_windowed_layers(self) -> tuple[int, ...]:
        """Encoder layers that attend to the last W tokens alone, in order."""
        return tuple(
            layer
            for layer in range(self.n_encoder_layers)
            if layer not in self.encoder_global_layers
        )

    @property
    def n_decoder_layers(self) -> int:
        """L - E."""
        return self.num_hidden_layers - self.n_encoder_layers

    def replay_rows(self, n_tokens: int, *, replay_windows: int | None = None) -> int:
        """Return the decoder rows of a bounded replay: max(1, min(P, R * W))."""
        windows = self.replay_windows if replay_windows is None else replay_windows
        return max(1, min(n_tokens, windows * self.decoder_window))

    def exact_rows(self, n_tokens: int, *, layers_left: int) -> int:
        """Return the rows that an exact replay runs at a layer with `layers_left` left, itself
        included: min(P, max(1, W + (r - 1)(W - 1)))."""
        window = self.decoder_window
        return min(n_tokens, max(1, window + (layers_left - 1) * (window - 1)))

    def as_json(self) -> dict[str, Any]:
        """Return the mapping that config.json holds."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["encoder_global_layers"] = list(self.encoder_global_layers)
        return {"architectures": ["CedLlamaForCausalLM"], **values}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str = "config.json") -> LlamaConfig:
        """Read a parsed config.json; raises ConfigError that names the field."""
        if values.get("model_type") != "ced_llama":
            raise ConfigError(
                f"{where}: expected model_type ced_llama, got {values.get('model_type')!r}; "
                "a plain Llama checkpoint is made into one by `cedagent model convert`"
            )
        for name in ("rope_scaling", "attention_bias", "mlp_bias"):
            if values.get(name):
                raise ConfigError(f"{where}: {name} = {values[name]!r} is not served")
        taken: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in values:
                taken[field.name] = _typed(field.name, str(field.type), values[field.name], where)
        required = {"n_encoder_layers", "num_hidden_layers"} | {
            field.name for field in fields(cls) if field.name not in _OPTIONAL
        }
        missing = sorted(required - taken.keys())
        if missing:
            raise ConfigError(f"{where}: missing {', '.join(missing)}")
        try:
            return cls(**taken)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    @classmethod
    def load(cls, model_dir: Path) -> LlamaConfig:
        """Read MODEL_DIR/config.json; raises ConfigError."""
        values = read_config(model_dir)
        return cls.from_json(values, where=str(model_dir / CONFIG_FILE))


_OPTIONAL = {"replay_windows", "weights_dtype", "chat_format", "eos_token_id", "model_type"}


def _expect(holds: bool, rule: str, got: object) -> None:
    if not holds:
        raise ConfigError(f"{rule}, got {got}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _typed(name: str, kind: str, value: object, where: str) -> object:
    """Return value as the field's type; bool is not an int, an int is a float."""
    if kind == "int" and _is_int(value):
        return value
    if kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind in ("str", "WeightsDtype") and isinstance(value, str):
        return value
    if kind.startswith("tuple") and isinstance(value, list) and all(map(_is_int, value)):
        return tuple(cast("list[int]", value))
    raise ConfigError(f"{where}: {name} must be {kind}, got {value!r}")
