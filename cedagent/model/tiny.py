"""Tiny random checkpoints of the `ced_llama` family: for tests, examples and readers.

The weights are random, so the text is noise; the arithmetic, the cache and the promise are real.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import tensor_shapes, write_model
from cedagent.model.tokenizer_build import build_tiny


def write_tiny(
    dst: Path | str,
    *,
    n_layers: int = 6,
    n_encoder_layers: int = 3,
    window: int = 128,
    encoder_global_layers: Sequence[int] | None = None,
    replay_windows: int = 1,
    hidden_size: int = 48,
    n_heads: int = 3,
    n_kv_heads: int = 1,
    head_dim: int = 16,
    intermediate_size: int = 96,
    vocab_size: int = 384,
    max_position_embeddings: int = 8192,
    tie_word_embeddings: bool = True,
    int8: bool = True,
    seed: int = 0,
) -> Path:
    """Write a random model directory with its tokenizer and return its path; raises ConfigError.

    `encoder_global_layers` None makes every encoder layer global.
    Matrices are normal with standard deviation 1.4 / sqrt(fan-in), so that attention is neither
    flat nor one-hot.
    """
    dst = Path(dst)
    tokenizer = build_tiny(vocab_size)
    end_of_turn = tokenizer.token_to_id("<|im_end|>")
    assert end_of_turn is not None
    if encoder_global_layers is None:
        encoder_global_layers = range(n_encoder_layers)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=n_layers,
        num_attention_heads=n_heads,
        num_key_value_heads=n_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tie_word_embeddings,
        n_encoder_layers=n_encoder_layers,
        decoder_window=window,
        encoder_global_layers=tuple(encoder_global_layers),
        replay_windows=replay_windows,
        weights_dtype="int8" if int8 else "float32",
        eos_token_id=end_of_turn,
    )
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.1 * values if len(shape) == 1 else values * 1.4 * shape[1] ** -0.5
    dst.mkdir(parents=True, exist_ok=True)
    write_model(dst, config, tensors, int8=tensors if int8 else None)
    tokenizer.save(str(dst / "tokenizer.json"))
    origin = {"made_by": "cedagent model tiny", "seed": seed}
    (dst / "origin.json").write_text(json.dumps(origin) + "\n", encoding="utf-8")
    return dst
