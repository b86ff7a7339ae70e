"""Reads a llama.cpp GGUF file and gives back the Hugging Face layout.

llama.cpp stores the rows of Q and K for interleaved RoPE pairs (2i, 2i + 1); Hugging Face and we
use half-split pairs (i, i + d/2). `half_split_rows` undoes that. The tokenizer is rebuilt from the
file's own fields, or taken from a tokenizer.json beside it. Invariant: tensors are what the `gguf`
package dequantises, value for value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cedagent.errors import ConfigError, UsageError, WeightsError
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import tensor_shapes
from cedagent.model.tokenizer_build import build_smollm
from cedagent.upcycle.source import (
    Parent,
    Progress,
    check_names,
    check_shape,
    parent_config,
    sha256_file,
)

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf(path: Path, *, progress: Progress) -> Parent:
    """Read a GGUF file; errors as `read_parent`."""
    # Imported here: the gguf package costs a second to import and only this door needs it.
    from gguf import GGUFReader

    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UsageError(f"{path} is not a GGUF file (expected it to start with 'GGUF')")
    try:
        reader = GGUFReader(path)
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise WeightsError(f"{path} is a damaged GGUF file: {error}") from error
    fields = _Fields(reader, where=str(path))
    found = {_hf_name(tensor.name): tensor for tensor in reader.tensors}
    config = _llama_config(fields, found)
    check_names(set(found), config, where=str(path))
    shapes = tensor_shapes(config)
    tensors: dict[str, torch.Tensor] = {}
    for number, (name, tensor) in enumerate(found.items()):
        progress("read", number, len(found))
        weight = torch.from_numpy(_dequantise(tensor, where=str(path)))
        check_shape(name, weight, shapes[name], where=str(path))
        if name.endswith("q_proj.weight"):
            weight = half_split_rows(weight, n_heads=config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            weight = half_split_rows(weight, n_heads=config.num_key_value_heads)
        tensors[name] = weight
    progress("read", len(found), len(found))
    origin: dict[str, Any] = {
        "format": "gguf",
        "source": path.name,
        "sha256": {path.name: sha256_file(path)},
    }
    for field, word in (("general.name", "name"), ("general.license", "license")):
        if fields.has(field):
            origin[word] = fields.get(field)
    beside = path.with_name("tokenizer.json")
    if beside.is_file():
        origin["sha256"][beside.name] = sha256_file(beside)
        return Parent(config, tensors, beside.read_text(encoding="utf-8"), origin)
    return Parent(config, tensors, _rebuilt_tokenizer(fields), origin)


def half_split_rows(weight: torch.Tensor, *, n_heads: int) -> torch.Tensor:
    """Return rows [H * hd, D] reordered from interleaved RoPE pairs to half-split ones."""
    rows, columns = weight.shape
    pairs = weight.reshape(n_heads, rows // n_heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns).contiguous()


class _Fields:
    """The file's key-value fields, with errors that name the missing key."""

    def __init__(self, reader: Any, *, where: str) -> None:
        self._reader = reader
        self.where = where

    def has(self, key: str) -> bool:
        return key in self._reader.fields

    def get(self, key: str, default: Any = None) -> Any:
        if not self.has(key):
            if default is None:
                raise ConfigError(f"{self.where}: the GGUF field {key} is missing")
            return default
        return self._reader.fields[key].contents()

    def number(self, key: str, default: int | float | None = None) -> Any:
        value = self.get(key, default)
        if isinstance(value, list):
            raise ConfigError(f"{self.where}: {key} differs by layer, which is not supported")
        return value


def _hf_name(name: str) -> str:
    """Return the Hugging Face name of a tensor; an unknown name comes back as it is."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    return name


def _llama_config(fields: _Fields, found: dict[str, Any]) -> LlamaConfig:
    where = fields.where
    if (arch := fields.get("general.architecture")) != "llama":
        raise ConfigError(f"{where}: architecture {arch!r} is not supported; expected 'llama'")
    if fields.get("split.count", 1) > 1:
        raise ConfigError(f"{where}: one part of a split GGUF; merge the parts first")
    if fields.get("llama.expert_count", 0) > 0:
        raise ConfigError(f"{where}: mixture-of-experts parents are not supported")
    if fields.get("llama.attention.sliding_window", 0) > 0:
        raise ConfigError(f"{where}: parents with a sliding window are not supported")
    scaled = fields.get("llama.rope.scaling.type", "none")
    if scaled != "none" or any(name.startswith("rope_freqs") for name in found):
        raise ConfigError(f"{where}: rope_scaling ({scaled}) is not supported")
    if "model.embed_tokens.weight" not in found:
        raise WeightsError(f"{where}: missing tensor token_embd.weight")
    heads = fields.number("llama.attention.head_count")
    width = fields.number("llama.embedding_length")
    head_dim = fields.number("llama.attention.key_length", width // max(1, heads))
    for key in ("llama.rope.dimension_count", "llama.attention.value_length"):
        if (value := fields.number(key, head_dim)) != head_dim:
            raise ConfigError(f"{where}: {key} must equal the head size {head_dim}, got {value}")
    values = {
        "vocab_size": int(found["model.embed_tokens.weight"].shape[-1]),
        "hidden_size": width,
        "intermediate_size": fields.number("llama.feed_forward_length"),
        "num_hidden_layers": fields.number("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.number("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        # Stored as float32; its shortest decimal is what the parent's config said (1e-05).
        "rms_norm_eps": float(
            str(np.float32(fields.number("llama.attention.layer_norm_rms_epsilon")))
        ),
        "rope_theta": float(str(np.float32(fields.number("llama.rope.freq_base", 10000.0)))),
        "max_position_embeddings": fields.number("llama.context_length"),
        "tie_word_embeddings": "lm_head.weight" not in found,
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id", 0),
    }
    return parent_config(values, where=where)


def _dequantise(tensor: Any, *, where: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    from gguf import dequantize

    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except (NotImplementedError, ValueError) as error:
        raise WeightsError(
            f"{where}: {tensor.name} is stored as {tensor.tensor_type.name}, which the gguf "
            "package cannot dequantise; use another quantisation"
        ) from error
    # A copy: float32 tensors would otherwise be views of the mapped file.
    return np.array(values, dtype=np.float32)


def _rebuilt_tokenizer(fields: _Fields) -> str:
    model = fields.get("tokenizer.ggml.model", "none")
    kind = fields.get("tokenizer.ggml.pre", "none")
    if (model, kind) != ("gpt2", "smollm"):
        raise ConfigError(
            f"{fields.where}: cannot rebuild its tokenizer (model {model!r}, pre-tokenizer "
            f"{kind!r}; only gpt2 with smollm is known): put the model's tokenizer.json beside it"
        )
    try:
        tokenizer = build_smollm(
            fields.get("tokenizer.ggml.tokens"),
            fields.get("tokenizer.ggml.token_type"),
            fields.get("tokenizer.ggml.merges"),
        )
    except ValueError as error:
        raise WeightsError(f"{fields.where}: its tokenizer is damaged: {error}") from error
    return str(tokenizer.to_str())
