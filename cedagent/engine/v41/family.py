"""V41Family: a `deepseek_v41` model behind the engine's family door.

Knows which of its config, weights and arithmetic decide what an encoded row is: the embedding, the
encoder, and of layer E what its source rows are made with. Decoder weights and replay settings do
not: rows do not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ced_kvstore import Stream
from cedagent.engine.family import Mode
from cedagent.engine.kernel_choice import KernelChoice, choose_ordered
from cedagent.engine.v41.decode import decode
from cedagent.engine.v41.encode import encode_tile
from cedagent.engine.v41.replay import replay, score
from cedagent.engine.v41.state import V41State
from cedagent.engine.v41.streams import declared_streams, pack, unpack
from cedagent.engine.v41.windows import V41Windows
from cedagent.model.ced import V41Model
from cedagent.model.release import ReleaseCheckpoint, weight_groups
from cedagent.model.v41_config import V41Config
from cedagent.model.weights_choice import WeightsChoice

_ENCODED_FIELDS = (
    "vocab_size", "hidden_size", "num_attention_heads", "head_dim", "q_lora_rank",
    "qk_rope_head_dim", "o_groups", "o_lora_rank", "sliding_window", "rope_theta",
    "compress_rope_theta", "rope_scaling", "index_n_heads", "index_head_dim", "index_topk",
    "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size",
    "scoring_func", "topk_method", "norm_topk_prob", "routed_scaling_factor", "swiglu_limit",
    "gate_temp", "hc_mult", "hc_sinkhorn_iters", "hc_eps", "rms_norm_eps", "hidden_act",
    "engram_layer_ids", "engram_num_embeddings", "engram_max_ngram_size", "engram_n_heads",
    "engram_head_dim", "engram_vocab_size", "engram_pad_id", "engram_compressed_vocab_size",
)  # fmt: skip
"""Config fields that the encoder reads."""


class V41Family:
    """One loaded `deepseek_v41` model with the replay settings of its engine."""

    def __init__(
        self,
        model: V41Model,
        *,
        mode: Mode = "bounded",
        replay_windows: int | None = None,
        notices: Sequence[str] = (),
    ) -> None:
        """Take a loaded model; `replay_windows` None takes the config's."""
        self.model = model
        self.mode: Mode = mode
        self.replay_windows = replay_windows or model.config.replay_windows
        self.notices = list(notices)
        self._windows = V41Windows(model, reach=self._reach())

    @classmethod
    def load(
        cls,
        model_dir: Path,
        config: V41Config,
        *,
        weights: WeightsChoice,
        mode: Mode,
        replay_windows: int | None,
        kernels: KernelChoice,
    ) -> V41Family:
        """Read the weights; raises ConfigError, WeightsError, EngineError for `kernels`."""
        checkpoint = ReleaseCheckpoint(model_dir, config, weights=weights)
        chosen, notice = choose_ordered(kernels)
        model = V41Model(model_dir, config, checkpoint, kernels=chosen)
        notices = [*config.notices, *checkpoint.notices, *([notice] if notice else [])]
        return cls(model, mode=mode, replay_windows=replay_windows, notices=notices)

    @property
    def windows(self) -> V41Windows:
        """The encoder windows."""
        return self._windows

    @property
    def config(self) -> V41Config:
        """The model's config."""
        return self.model.config

    def new_state(self) -> V41State:
        """Return the state of a sequence of which nothing is known."""
        return V41State(self.config)

    def encode_tile(self, state: V41State, ids: Sequence[int], *, tile: int) -> None:
        """Encode tile `tile` of the sequence and write its rows; a whole tile is settled by it."""
        encode_tile(self.model, state, ids, tile=tile)

    def replay(self, state: V41State, *, n_tokens: int) -> tuple[Tensor, int]:
        """Return (next-token logits [V] float32, rows run through the first decoder layer)."""
        return replay(
            self.model,
            state,
            n_tokens=n_tokens,
            mode=self.mode,
            replay_windows=self.replay_windows,
        )

    def score(self, state: V41State, *, n_tokens: int) -> Tensor:
        """Return logits [P, V] float32 of every position, computed as mode `full` does."""
        return score(self.model, state, n_tokens=n_tokens)

    def decode(self, state: V41State, ids: Sequence[int], *, pos: int, prefill_end: int) -> Tensor:
        """Run the token ids[pos] and return the logits [V] float32 that follow it."""
        return decode(self.model, state, ids, pos=pos)

    def streams(self) -> list[Stream]:
        """Return the streams of this model with the bytes of one block in each."""
        return declared_streams(self.config)

    def pack(self, state: V41State, first_block: int, n_blocks: int) -> dict[str, Tensor]:
        """Return the settled rows of these blocks as uint8 [n_blocks, block_bytes] per stream."""
        return pack(self.config, state, first_block, n_blocks)

    def unpack(
        self, state: V41State, buffers: dict[str, Tensor], first_block: int, n_blocks: int
    ) -> None:
        """Write the first `n_blocks` of the buffers as settled rows from `first_block` on."""
        unpack(state, buffers, first_block, n_blocks)

    def fingerprint(self) -> dict[str, str | int | None]:
        """Return config fields, weights, stored types and arithmetic of encoded rows."""
        config, checkpoint = self.config, self.model.checkpoint
        fields: dict[str, str | int | None] = {}
        for name in _ENCODED_FIELDS:
            value = getattr(config, name)
            fields[f"config.{name}"] = value.hex() if isinstance(value, float) else str(value)
        last = config.n_encoder_layers
        fields["config.compress_ratios"] = str(config.compress_ratios[: last + 1])
        for name in ("kv_source_layer_ids", "index_source_layer_ids"):
            layers = [layer for layer in getattr(config, name) if layer <= last]
            fields[f"config.{name}"] = str(layers)
        for group, names in weight_groups(config).items():
            layer = int(group.removeprefix("layers.")) if group.startswith("layers.") else -1
            if layer == last:
                names = [name for name in names if _makes_rows(name)]
            if group == "embedding" or 0 <= layer <= last:
                fields[f"weights.{group}"] = checkpoint.digest(names)
        fields["engram.token_map"] = self.model.token_map_digest
        fields["streams.latent"] = "fp4 codes, e4m3 scale per 16"
        fields["streams.index_key"] = "fp4 codes, power-of-two scale per 32"
        fields["weights.dtype"] = "as stored, multiplied in float32"
        fields["ops.kernels"] = self.model.kernels.name
        return fields

    def weights_digest(self) -> str:
        """Return the hex digests of all weight groups, one after the other."""
        groups = weight_groups(self.config).values()
        return "".join(self.model.checkpoint.digest(names) for names in groups)

    def _reach(self) -> int | None:
        """Return how many rows before a prefill's end a replay may run; None for all."""
        config = self.config
        if self.mode == "full":
            return None
        if self.mode == "exact":
            # More tokens than any layer's rows: the formula without its limit.
            longest = (config.n_decoder_layers + 1) * config.window + 1
            return config.exact_rows(longest, layers_left=config.n_decoder_layers)
        return self.replay_windows * config.window


def _makes_rows(name: str) -> bool:
    """Whether a tensor of layer E is one that its source rows are made with."""
    return any(part in name for part in (".attn_norm.", ".compressor.", ".indexer.wk.", ".k_norm."))
