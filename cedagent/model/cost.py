"""What a model costs per token, from its config alone: work, active parameters, bytes on disk.

Pure arithmetic for both families; reads no weights and needs no torch. Letters: L layers, E of them
in the encoder, W window, R replay windows, N tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedagent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelCost:
    """The cost of a prompt of `n_tokens` tokens."""

    family: str
    """model_type."""
    n_tokens: int
    n_layers: int
    n_encoder_layers: int
    full_token_layers: int
    """N * L: every token through every layer."""
    ced_token_layers: int
    """N * E + rows * (L - E) with rows = max(1, min(N, R * W)) of a bounded replay."""
    prompt_parameters: int
    """Weights that one prompt token is multiplied with: the encoder and the decoder's global
    projections. Embedding look-ups and norms are not counted."""
    replayed_parameters: int
    """Further weights for a token that is replayed through the decoder."""
    generated_parameters: int
    """Weights for one generated token: both halves and the head."""
    bytes_per_token: int
    """Settled streams on disk."""
    global_rows_bytes: int
    """Of these, keys and values (V4.1: latents and index keys)."""
    e_out_bytes: int
    """Of these, the encoder's outputs (V4.1 stores none)."""
    n_windowed_layers: int
    """Encoder layers whose own rows are kept for the last W tokens alone (V4.1: all of them)."""
    snapshot_bytes: int
    """W - 1 rows of each of these, beside the streams, where a sequence can be taken up again."""

    @property
    def ratio(self) -> float:
        """Work of the CED prefill as a share of a full one."""
        return self.ced_token_layers / self.full_token_layers


def read_cost(path: str | Path, *, n_tokens: int) -> ModelCost:
    """Return the cost that follows from a config.json, or from the folder that holds one.

    Raises ConfigError.
    """
    file = Path(path).expanduser()
    file = file / "config.json" if file.is_dir() else file
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no config at {file}: expected a config.json") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: expected a JSON object, got {type(config).__name__}")
    return model_cost(config, n_tokens=n_tokens, where=str(file))


def model_cost(
    config: Mapping[str, Any], *, n_tokens: int, where: str = "config.json"
) -> ModelCost:
    """Return the cost that follows from a parsed config.json of either family.

    Raises ConfigError for another family, a missing field, or fewer than one token.
    """
    if n_tokens < 1:
        raise ConfigError(f"tokens must be at least 1, got {n_tokens}")
    family = config.get("model_type")
    try:
        if family == "ced_llama":
            return _ced_llama(config, n_tokens)
        if str(family).startswith("deepseek_v41"):
            text = config.get("text_config", config)
            # This setting is ours: it stands beside text_config, not inside.
            windows = config.get("replay_windows", text.get("replay_windows", 1))
            return _deepseek_v41({**text, "replay_windows": windows}, n_tokens)
    except KeyError as error:
        raise ConfigError(f"{where}: missing field {error.args[0]}") from None
    except (TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError) as error:
        raise ConfigError(f"{where}: a field has the wrong type or size: {error}") from None
    raise ConfigError(
        f"{where}: model_type {family!r} is not known; expected ced_llama or deepseek_v41"
    )


def _ced_llama(c: Mapping[str, Any], n_tokens: int) -> ModelCost:
    n_layers, encoder = c["num_hidden_layers"], c["n_encoder_layers"]
    if not 1 <= encoder <= n_layers:
        raise ConfigError(f"n_encoder_layers must be 1 .. {n_layers}, got {encoder}")
    decoder = n_layers - encoder
    d, kv_heads, head = c["hidden_size"], c["num_key_value_heads"], c["head_dim"]
    queries, keys = c["num_attention_heads"] * head, kv_heads * head
    layer = d * (2 * queries + 2 * keys + 3 * c["intermediate_size"])
    projections = decoder * 2 * keys * d
    if c.get("weights_dtype", "float32") == "int8":
        # One int8 code per channel and one fp16 scale per head, for K and for V; E_out is bf16.
        row, e_out = 2 * kv_heads * (head + 2), 2 * d
    else:
        row, e_out = 2 * keys * 4, 4 * d
    rows = row * len(c["encoder_global_layers"])
    windowed = encoder - len(c["encoder_global_layers"])
    window = c["decoder_window"]
    if windowed < 0 or (windowed and not window):
        raise ConfigError(
            f"encoder_global_layers must list at most {encoder} encoder layers, and all of them "
            f"where decoder_window is 0, got {len(c['encoder_global_layers'])}"
        )
    replayed = max(1, min(n_tokens, c.get("replay_windows", 1) * window))
    return ModelCost(
        family="ced_llama",
        n_tokens=n_tokens,
        n_layers=n_layers,
        n_encoder_layers=encoder,
        full_token_layers=n_tokens * n_layers,
        ced_token_layers=n_tokens * encoder + replayed * decoder,
        prompt_parameters=encoder * layer + projections,
        replayed_parameters=decoder * layer,
        generated_parameters=n_layers * layer + projections + c["vocab_size"] * d,
        bytes_per_token=rows + e_out,
        global_rows_bytes=rows,
        e_out_bytes=e_out,
        n_windowed_layers=windowed,
        snapshot_bytes=windowed * max(0, window - 1) * row,
    )


def _deepseek_v41(c: Mapping[str, Any], n_tokens: int) -> ModelCost:
    n_layers, sources = c["num_hidden_layers"], c["kv_source_layer_ids"]
    encoder, ratios = sources[-1], c["compress_ratios"]
    if encoder != ratios.index(1):
        raise ConfigError(
            f"the last of kv_source_layer_ids must be the first layer with ratio 1, "
            f"{ratios.index(1)}, got {encoder}"
        )
    layer, d, head = _v41_layer(c), c["hidden_size"], c["head_dim"]
    source = {n: _v41_source(c, ratios[n]) for n in sources}
    indexer = d * c["index_n_heads"] + c["q_lora_rank"] * c["index_n_heads"] * c["index_head_dim"]
    own_index = dict.fromkeys(c["index_source_layer_ids"], indexer)
    engram = dict.fromkeys(c.get("engram_layer_ids", ()), _v41_engram(c))
    extra = {n: own_index.get(n, 0) + engram.get(n, 0) for n in range(n_layers)}
    first_half = encoder * layer + sum(extra[n] + source.get(n, 0) for n in range(encoder))
    second_half = (n_layers - encoder) * layer + sum(extra[n] for n in range(encoder, n_layers))
    # A latent is fp4 with one e4m3 scale per 16 channels, an index key fp4 with one e8m0 per 32.
    index_head = c["index_head_dim"]
    row = head // 2 + head // 16 + index_head // 2 + index_head // 32
    rows = sum(row // ratios[n] for n in sources)
    replayed = max(1, min(n_tokens, c["replay_windows"] * c["sliding_window"]))
    return ModelCost(
        family="deepseek_v41",
        n_tokens=n_tokens,
        n_layers=n_layers,
        n_encoder_layers=encoder,
        full_token_layers=n_tokens * n_layers,
        ced_token_layers=n_tokens * encoder + replayed * (n_layers - encoder),
        # The decoder's source layer gives its latent and index key for every prompt token.
        prompt_parameters=first_half + source[encoder],
        replayed_parameters=second_half,
        generated_parameters=first_half + source[encoder] + second_half + c["vocab_size"] * d,
        bytes_per_token=rows,
        global_rows_bytes=rows,
        e_out_bytes=0,
        n_windowed_layers=encoder,
        # A window row is e4m3 with one e8m0 scale per 32 channels.
        snapshot_bytes=encoder * (c["sliding_window"] - 1) * (head + head // 32),
    )


def _v41_layer(c: Mapping[str, Any]) -> int:
    """Active weights of any layer: attention, gate, experts that run, hyper-connections."""
    d, heads, head = c["hidden_size"], c["num_attention_heads"], c["head_dim"]
    low, groups, group_rank = c["q_lora_rank"], c["o_groups"], c["o_lora_rank"]
    attention = low * d + heads * head * low + head * d
    attention += heads * head * group_rank + d * groups * group_rank
    expert = 3 * c["moe_intermediate_size"] * d
    experts = c["n_routed_experts"] * d
    experts += (c["n_shared_experts"] + c["num_experts_per_tok"]) * expert
    streams = c["hc_mult"]
    # Two sublayers; each mixes the streams with pre and post weights and a square matrix.
    hyper = 2 * (2 * streams + streams * streams) * streams * d
    return int(attention + experts + hyper)


def _v41_source(c: Mapping[str, Any], ratio: int) -> int:
    """Weights of a KV source's compressor and index key; the gate exists where ratio > 1."""
    projections = 2 if ratio > 1 else 1
    return int(c["head_dim"] * (projections * c["hidden_size"] + c["index_head_dim"]))


def _v41_engram(c: Mapping[str, Any]) -> int:
    """Weights of one Engram layer: rows of all n-gram orders -> one key per stream and a value."""
    if not c.get("engram_layer_ids"):
        return 0
    orders = c["engram_max_ngram_size"] - 1
    read = orders * c["engram_n_heads"] * c["engram_head_dim"]
    return int((c["hc_mult"] + 1) * c["hidden_size"] * read)
