"""The sane range of every number in a `deepseek_v41` config.

Fields of `text_config` in the release's config.json (technical report arXiv 2609.19969). Knows
bounds, not what a field means. They lie far above the release's values: a number beyond them is a
damaged or a hostile file, and computing with it would overflow, hang or ask for absurd memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cedagent.model.config_fields import expect

if TYPE_CHECKING:
    from cedagent.model.v41_config import V41Config

_WIDTH, _IDS, _TOKENS = 10**6, 10**7, 2**30

INTEGERS: Mapping[str, tuple[int, int]] = {
    "vocab_size": (1, _IDS),
    "hidden_size": (1, _WIDTH),
    "num_hidden_layers": (1, 1024),
    "num_attention_heads": (1, 2**16),
    "head_dim": (1, _WIDTH),
    "q_lora_rank": (1, _WIDTH),
    "qk_rope_head_dim": (1, _WIDTH),
    "o_groups": (1, 2**16),
    "o_lora_rank": (1, _WIDTH),
    "sliding_window": (1, _TOKENS),
    "max_position_embeddings": (1, _TOKENS),
    "candidate_topk_blocks": (1, 2**20),
    "candidate_block_size": (1, 2**16),
    "index_n_heads": (1, 2**16),
    "index_head_dim": (1, _WIDTH),
    "index_topk": (1, 2**20),
    "n_routed_experts": (1, 2**20),
    "num_experts_per_tok": (1, 2**20),
    "moe_intermediate_size": (1, _WIDTH),
    "hc_mult": (1, 64),
    "hc_sinkhorn_iters": (1, 1000),
    "replay_windows": (1, 10**9),
    "rope_scaling.original_max_position_embeddings": (1, _TOKENS),
}
"""Least and greatest value."""

ENGRAM_INTEGERS: Mapping[str, tuple[int, int]] = {
    "engram_layer_ids": (0, 1023),
    "engram_num_embeddings": (1, 10**10),
    "engram_max_ngram_size": (2, 16),
    "engram_n_heads": (1, 256),
    "engram_head_dim": (1, _WIDTH),
    "engram_vocab_size": (2, 10**9),
    "engram_pad_id": (0, _IDS),
    "engram_compressed_vocab_size": (1, _IDS),
}
"""Least value where there are Engram layers, and greatest value."""

FLOATS: Mapping[str, tuple[float, float, float]] = {
    "rope_theta": (1, 1, 1e12),
    "compress_rope_theta": (1, 1, 1e12),
    "routed_scaling_factor": (0, 1e-6, 1e6),
    "swiglu_limit": (0, 1e-6, 1e6),
    "gate_temp": (0, 1e-6, 1e6),
    # Smaller ones are zero in float32.
    "hc_eps": (0, 1e-37, 1),
    "rms_norm_eps": (0, 1e-37, 1),
    "rope_scaling.factor": (0, 1e-6, 1e6),
    "rope_scaling.beta_fast": (0, 1e-6, 1e6),
    "rope_scaling.beta_slow": (0, 1e-6, 1e6),
}
"""What a value must be above, then its least and its greatest."""


def check_limits(config: V41Config) -> None:
    """Refuse numbers out of range; raises ConfigError that names the field."""
    for name, (low, high) in INTEGERS.items():
        if "." not in name:
            check_integer(name, getattr(config, name), low=low, high=high)
    for name in FLOATS:
        if "." not in name:
            check_float(name, getattr(config, name))
    for name, (_, high) in ENGRAM_INTEGERS.items():
        value = getattr(config, name)
        for one in value if isinstance(value, tuple) else (value,):
            expect(one <= high, f"{name} must be at most {high}", one)
    if (yarn := config.rope_scaling) is not None:
        for name in ("factor", "beta_fast", "beta_slow"):
            check_float(f"rope_scaling.{name}", getattr(yarn, name))
        name = "rope_scaling.original_max_position_embeddings"
        low, high = INTEGERS[name]
        check_integer(name, yarn.original_positions, low=low, high=high)


def check_engram_limits(name: str, value: int | tuple[int, ...]) -> None:
    """Refuse an Engram field, or an entry of one, that is out of range; raises ConfigError."""
    low, high = ENGRAM_INTEGERS[name]
    for one in value if isinstance(value, tuple) else (value,):
        check_integer(name, one, low=low, high=high)


def check_integer(name: str, value: int, *, low: int, high: int) -> None:
    """Refuse an integer out of range; raises ConfigError."""
    expect(value >= low, f"{name} must be at least {low}", value)
    expect(value <= high, f"{name} must be at most {high}", value)


def check_float(name: str, value: float) -> None:
    """Refuse a number out of the range of FLOATS; raises ConfigError."""
    above, low, high = FLOATS[name]
    expect(value > above, f"{name} must be above {above:g}", value)
    expect(low <= value <= high, f"{name} must be {low:g} .. {high:g}", value)
