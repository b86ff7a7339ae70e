"""Tiny random checkpoints of family `deepseek_v41`: for tests, examples and readers.

Names and formats are the release's; the layer table is the released one made short (technical
report arXiv 2609.19969, layer table of CSA2; fields compress_ratios and *_layer_ids): window-only
layers, Full sources, Reuse and Reindex layers, Engram. The weights are random, so the text is
noise; the arithmetic, the cache and the promise are real.
"""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cedagent.errors import ConfigError
from cedagent.model.engram import primes
from cedagent.model.engram_map import derive_token_map
from cedagent.model.release import tensor_shapes, write_release
from cedagent.model.tokenizer_build import build_tiny_dsml
from cedagent.model.v41_config import V41Config

_SOURCE_EVERY = 6
"""Encoder layers from one KV source to the next; the release has 2, 8 and 14."""

_REINDEX_EVERY = 2
"""Decoder layers from one index source to the next; the release has every fourth of 20."""

_GAINS = {
    "wq_b": 1.5, "wo_a": 2.0, "wo_b": 2.0, "wgate": 2.0, "head": 2.0,
    "w1": 1.5, "w2": 1.5, "w3": 1.5, "hc_attn_fn": 0.5, "hc_ffn_fn": 0.5,
}  # fmt: skip
"""Deviation of a matrix times the root of its fan-in, where it is not 1. With these, queries and
keys give scores of deviation 1.5 and most softmaxes spread over a few rows of many."""

_SPREADS = {
    "attn_sink": (2.0, 0.5), "bias": (0.0, 0.1), "q_weight": (1.0, 0.3), "k_weight": (1.0, 0.3),
    "hc_attn_base": (0.0, 0.3), "hc_ffn_base": (0.0, 0.3), "hc_attn_scale": (1.0, 0.2),
    "hc_ffn_scale": (1.0, 0.2), "norm": (1.0, 0.2), "embed": (0.0, 1.0),
}  # fmt: skip
"""Mean and deviation of tensors that are no matrices. A sink of 2 weighs as much as two or three
keys; a gate's bias of 0.1 moves some choices of experts and not most."""


def write_tiny_v41(
    dst: Path | str,
    *,
    n_encoder_layers: int = 4,
    n_decoder_layers: int = 4,
    window: int = 16,
    replay_windows: int = 1,
    engram: bool = True,
    quantized: bool = True,
    hidden_size: int = 128,
    n_heads: int = 4,
    head_dim: int = 64,
    rope_dim: int = 16,
    q_lora_rank: int = 64,
    o_groups: int = 2,
    o_lora_rank: int = 32,
    n_experts: int = 8,
    experts_per_token: int = 2,
    moe_intermediate_size: int = 64,
    index_n_heads: int = 4,
    index_head_dim: int = 32,
    index_topk: int = 12,
    candidate_topk_blocks: int = 6,
    candidate_block_size: int = 4,
    max_position_embeddings: int = 8192,
    vocab_size: int = 512,
    shards: int = 1,
    seed: int = 0,
) -> Path:
    """Write a random model directory with its tokenizer and return its path; raises ConfigError.

    `quantized` stores fp8 and fp4 as the release does, else bf16. The Engram token map is not
    stored: it follows from the tokenizer. With the sizes given here an index picks among its rows
    from the 13th stored row on, and candidate blocks bound what it picks from the 25th on.
    """
    dst = Path(dst)
    if n_encoder_layers < 1 or n_decoder_layers < 1:
        raise ConfigError(
            "expected at least one encoder and one decoder layer, got "
            f"{n_encoder_layers} and {n_decoder_layers}"
        )
    tokenizer = build_tiny_dsml(vocab_size)
    text: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_attention_heads": n_heads,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
        "q_lora_rank": q_lora_rank,
        "qk_rope_head_dim": rope_dim,
        "o_groups": o_groups,
        "o_lora_rank": o_lora_rank,
        "sliding_window": window,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": max(1, max_position_embeddings // 16),
        },
        "max_position_embeddings": max_position_embeddings,
        "candidate_topk_blocks": candidate_topk_blocks,
        "candidate_block_size": candidate_block_size,
        "index_n_heads": index_n_heads,
        "index_head_dim": index_head_dim,
        "index_topk": index_topk,
        "n_routed_experts": n_experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": experts_per_token,
        "moe_intermediate_size": moe_intermediate_size,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "gate_temp": 1.0,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-20,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        **_layer_table(n_encoder_layers, n_decoder_layers),
    }
    if engram:
        n_classes = max(derive_token_map(tokenizer)) + 1
        # Layer 1 and the encoder's last source, as in the release.
        layers = {min(1, n_encoder_layers - 1), *text["kv_source_layer_ids"][-2:-1]}
        text |= _engram_fields(sorted(layers), n_classes=n_classes)
    config = V41Config.from_json(
        {
            "model_type": "deepseek_v41",
            "text_config": text,
            "replay_windows": replay_windows,
            # The tokenizer begins with the release's ids for begin, end and pad: 0, 1 and 2.
            "eos_token_id": 1,
        },
        where="tiny deepseek_v41",
    )
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: _random(name, shape, generator) for name, shape in tensor_shapes(config).items()
    }
    dst.mkdir(parents=True, exist_ok=True)
    write_release(dst, config, tensors, quantized=quantized, shards=shards)
    tokenizer.save(str(dst / "tokenizer.json"))
    origin = {"made_by": "cedagent model tiny --family deepseek_v41", "seed": seed}
    (dst / "origin.json").write_text(json.dumps(origin) + "\n", encoding="utf-8")
    return dst


def _layer_table(n_encoder: int, n_decoder: int) -> dict[str, Any]:
    """Return ratios and sources: layers 0 and 1 are window-only, the decoder has ratio 1."""
    n_layers = n_encoder + n_decoder
    n_window = min(2, n_encoder)
    encoder_sources = list(range(n_window, n_encoder, _SOURCE_EVERY))
    sources = [*encoder_sources, n_encoder]
    reindex = list(range(n_encoder + _REINDEX_EVERY, n_layers, _REINDEX_EVERY))
    return {
        "num_hidden_layers": n_layers,
        "compress_ratios": [0] * n_window + [2] * (n_encoder - n_window) + [1] * n_decoder,
        "kv_source_layer_ids": sources,
        "index_source_layer_ids": sources + reindex,
        "candidate_source_layer_id": n_encoder,
    }


def _engram_fields(layers: list[int], *, n_classes: int) -> dict[str, Any]:
    """Return the fields of Engram in these layers."""
    fields: dict[str, Any] = {
        "engram_layer_ids": layers,
        "engram_max_ngram_size": 4,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_vocab_size": 60,
        "engram_pad_id": 2,
        "engram_compressed_vocab_size": n_classes,
    }
    fields["engram_num_embeddings"] = [sum(map(sum, orders)) for orders in primes(fields)]
    return fields


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    values = torch.randn(shape, generator=generator)
    parts = name.removesuffix(".weight").split(".")
    kind = "norm" if parts[-1].endswith("norm") else parts[-1]
    if kind in _SPREADS:
        mean, deviation = _SPREADS[kind]
        return mean + deviation * values
    return values * (_GAINS.get(kind, 1.0) / sqrt(shape[-1]))
