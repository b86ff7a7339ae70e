"""V41Config: the fields of a `deepseek_v41` config.json that decide what is computed.

Technical report arXiv 2609.19969; field names are those of `text_config` in the release's
config.json, from which the layer table (window, full, reindex, reuse) and the split into encoder
and decoder follow. Knows no tensors. What would change the arithmetic in a way that is not served
is refused by name; fields of the draft layers and of the vision tower are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from ced_kernels.rope import Yarn
from cedagent.errors import ConfigError
from cedagent.model.config import CONFIG_FILE, read_config
from cedagent.model.config_fields import shown, typed_fields
from cedagent.model.engram_map import PAD_SPELLINGS
from cedagent.model.rope_scaling import yarn_as_json, yarn_from_json
from cedagent.model.v41_given import given_fields
from cedagent.model.v41_limits import ENGRAM_INTEGERS
from cedagent.model.v41_rules import check_config
from cedagent.model.v41_unserved import check_agreement, check_unserved

Mode = Literal["window", "full", "reindex", "reuse"]
"""What a layer attends to beside its window: nothing; a stream that it builds; another layer's
stream, picked by its own index queries; another layer's stream and picks."""

_OWN = ("replay_windows", "chat_format", "eos_token_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class V41Config:
    """Shape and settings of one `deepseek_v41` model."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    """L: encoder and decoder layers together, without draft layers."""
    num_attention_heads: int
    num_key_value_heads: int
    """1: one latent is key and value of all heads."""
    head_dim: int
    q_lora_rank: int
    qk_rope_head_dim: int
    """Channels that are rotated, the last of a head."""
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    """W: keys that every layer takes from its own hidden states."""
    rope_theta: float
    """Base of layers with ratio 0."""
    compress_rope_theta: float
    """Base of layers with a ratio above 0."""
    rope_scaling: Yarn | None
    """Of layers with a ratio above 0 alone."""
    max_position_embeddings: int
    """Most tokens a sequence can hold."""
    compress_ratios: tuple[int, ...]
    """Tokens in one compressed row, by layer; 0 is no stream. Draft layers may follow."""
    kv_source_layer_ids: tuple[int, ...]
    """Layers that build a stream of compressed rows and index keys."""
    index_source_layer_ids: tuple[int, ...]
    """Layers that pick rows with index queries of their own."""
    candidate_source_layer_id: int
    """The layer whose best blocks bound what later index sources pick from; negative is none."""
    candidate_topk_blocks: int
    candidate_block_size: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    scoring_func: str
    topk_method: str
    norm_topk_prob: bool
    routed_scaling_factor: float
    swiglu_limit: float
    gate_temp: float = 1.0
    """Divides the gate's logits; the release leaves it out."""
    hc_mult: int
    """Residual streams."""
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    tie_word_embeddings: bool
    hidden_act: str
    engram_layer_ids: tuple[int, ...] = ()
    engram_num_embeddings: tuple[int, ...] = ()
    """Rows of each Engram layer's table."""
    engram_max_ngram_size: int = 0
    engram_n_heads: int = 0
    engram_head_dim: int = 0
    engram_vocab_size: int = 0
    engram_pad_id: int = 0
    engram_compressed_vocab_size: int = 0
    replay_windows: int = 1
    """R: windows that a bounded replay runs through the decoder."""
    chat_format: str = "dsml"
    eos_token_id: int = 1
    notices: tuple[str, ...] = field(default=(), compare=False)
    """One line for each part of the config.json that is skipped."""

    def __post_init__(self) -> None:
        """Refuse values that contradict each other; raises ConfigError."""
        check_config(self)

    @property
    def model_type(self) -> str:
        """The family."""
        return "deepseek_v41"

    @property
    def n_encoder_layers(self) -> int:
        """E: the last source of a stream is the decoder's first layer."""
        return self.kv_source_layer_ids[-1]

    @property
    def n_decoder_layers(self) -> int:
        """L - E."""
        return self.num_hidden_layers - self.n_encoder_layers

    @property
    def window(self) -> int:
        """W, as replay counts it."""
        return self.sliding_window

    def ratio(self, layer: int) -> int:
        """Return the tokens in one compressed row of the stream that a layer reads; 0 is none."""
        return self.compress_ratios[layer]

    def mode(self, layer: int) -> Mode:
        """Return what a layer attends to beside its window."""
        if not self.ratio(layer):
            return "window"
        if layer in self.kv_source_layer_ids:
            return "full"
        return "reindex" if layer in self.index_source_layer_ids else "reuse"

    def kv_source(self, layer: int) -> int | None:
        """Return the layer whose stream a layer reads, or None if it reads none."""
        return self._source(layer, self.kv_source_layer_ids)

    def index_source(self, layer: int) -> int | None:
        """Return the layer whose picks a layer reads, or None if it reads no stream."""
        return self._source(layer, self.index_source_layer_ids)

    def rope_theta_of(self, layer: int) -> float:
        """Return the rotary base of everything that a layer rotates."""
        return self.compress_rope_theta if self.ratio(layer) else self.rope_theta

    def yarn_of(self, layer: int) -> Yarn | None:
        """Return how a layer's rotary frequencies are stretched."""
        return self.rope_scaling if self.ratio(layer) else None

    def replay_rows(self, n_tokens: int, *, replay_windows: int | None = None) -> int:
        """Return the decoder rows of a bounded replay: max(1, min(P, R * W))."""
        windows = self.replay_windows if replay_windows is None else replay_windows
        return max(1, min(n_tokens, windows * self.window))

    def exact_rows(self, n_tokens: int, *, layers_left: int) -> int:
        """Return the rows that an exact replay runs at a layer with `layers_left` left, itself
        included: min(P, max(1, W + (r - 1)(W - 1)))."""
        window = self.window
        return min(n_tokens, max(1, window + (layers_left - 1) * (window - 1)))

    def as_json(self) -> dict[str, Any]:
        """Return the mapping that config.json holds: fields of text_config that are not at their
        default, and our own. What the weights are stored as is not the config's to say."""
        # Other readers have other defaults.
        needed = {"gate_temp", *(ENGRAM_INTEGERS if self.engram_layer_ids else ())}
        text = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if item.name not in (*_OWN, "notices", "rope_scaling")
            and (getattr(self, item.name) != item.default or item.name in needed)
        }
        text = {name: list(v) if isinstance(v, tuple) else v for name, v in text.items()}
        text["rope_scaling"] = yarn_as_json(self.rope_scaling)
        own = {name: getattr(self, name) for name in _OWN}
        return {
            "architectures": ["DeepseekV41ForCausalLM"],
            "model_type": self.model_type,
            "text_config": text,
            **own,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str = "config.json") -> V41Config:
        """Read a parsed config.json; raises ConfigError that names the field."""
        if values.get("model_type") != "deepseek_v41":
            raise ConfigError(
                f"{where}: expected model_type deepseek_v41, got {shown(values.get('model_type'))}"
            )
        text = values.get("text_config")
        if not isinstance(text, dict):
            raise ConfigError(f"{where}: text_config must be an object, got {shown(text)}")
        if "rope_scaling" not in text:
            hint = "; rope_parameters is not read" if "rope_parameters" in text else ""
            raise ConfigError(f"{where}: missing rope_scaling (null for none){hint}")
        names = [item.name for item in fields(cls)] + list(PAD_SPELLINGS)
        check_unserved(values, text, names=names, where=where)
        # Our own fields stand at the top; so may some of the text's, as tie_word_embeddings.
        given = given_fields(values, text, where=where)
        yarn = yarn_from_json(text["rope_scaling"], where=where)
        taken = typed_fields(cls, given, where=where)
        try:
            config = cls(**taken, rope_scaling=yarn, notices=_notices(values))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        check_agreement(config, values, text, where=where)
        return config

    @classmethod
    def load(cls, model_dir: Path) -> V41Config:
        """Read MODEL_DIR/config.json; raises ConfigError."""
        return cls.from_json(read_config(model_dir), where=str(model_dir / CONFIG_FILE))

    def _source(self, layer: int, sources: tuple[int, ...]) -> int | None:
        if not self.ratio(layer):
            return None
        return max(source for source in sources if source <= layer)


def _notices(values: Mapping[str, Any]) -> tuple[str, ...]:
    if values.get("vision_config") is None:
        return ()
    return ("vision_config is skipped: only text is served",)
