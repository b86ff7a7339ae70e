"""Reads a Hugging Face folder: config.json, (sharded) safetensors, tokenizer.json.

It opens no pickled file and follows no remote code. Invariant: what it returns was checked against
the folder's own config, tensor by tensor.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from cedagent.errors import ConfigError, UsageError, WeightsError
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import tensor_shapes
from cedagent.upcycle.source import (
    Parent,
    Progress,
    check_names,
    check_shape,
    parent_config,
    sha256_file,
)

# "mistral" without a sliding window is the same arithmetic under another name.
_MODEL_TYPES = ("llama", "mistral")
_ALREADY = ("ced_llama", "deepseek_v41")
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def read_hf_folder(folder: Path, *, progress: Progress) -> Parent:
    """Read the checkpoint in `folder`; errors as `read_parent`."""
    raw = _read_json(folder / "config.json")
    config = _llama_config(raw, where=str(folder / "config.json"))
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise UsageError(f"no tokenizer.json in {folder}: copy it from the model's repository")
    files = _tensor_files(folder)
    if config.tie_word_embeddings:
        files.pop("lm_head.weight", None)
    # Old checkpoints carry the RoPE frequencies, which follow from rope_theta.
    files = {n: f for n, f in files.items() if not n.endswith("rotary_emb.inv_freq")}
    check_names(set(files), config, where=str(folder))
    tensors = _load(files, tensor_shapes(config), where=str(folder), progress=progress)
    digests = {}
    for path in (folder / "config.json", tokenizer, *sorted(set(files.values()))):
        digests[path.name] = sha256_file(path)
    return Parent(
        config=config,
        tensors=tensors,
        tokenizer_json=tokenizer.read_text(encoding="utf-8"),
        origin={"format": "huggingface", "source": folder.resolve().name, "sha256": digests},
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"no {path.name} in {path.parent}: expected a Hugging Face folder")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def _llama_config(raw: dict[str, Any], *, where: str) -> LlamaConfig:
    model_type = raw.get("model_type")
    if model_type in _ALREADY:
        raise ConfigError(
            f"{where}: a model of {model_type} has an encoder and a decoder already; give it to -m "
            "as it is"
        )
    if model_type not in _MODEL_TYPES:
        raise ConfigError(
            f"{where}: model_type {model_type!r} is not supported; expected one of "
            f"{', '.join(_MODEL_TYPES)}"
        )
    # transformers 5 writes RoPE as one object; before, theta and scaling were two fields.
    rope = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or {}
    rope_type = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type")
    if rope_type not in (None, "default"):
        raise ConfigError(f"{where}: rope_scaling ({rope_type}) is not supported")
    if max(raw.get("num_local_experts") or 0, raw.get("num_experts") or 0) > 1:
        raise ConfigError(f"{where}: mixture-of-experts parents are not supported")
    if raw.get("sliding_window"):
        raise ConfigError(
            f"{where}: parents with a sliding window are not supported "
            f"(sliding_window = {raw['sliding_window']})"
        )
    if raw.get("attention_bias") or raw.get("mlp_bias"):
        raise ConfigError(f"{where}: biases are not supported (attention_bias or mlp_bias is set)")
    if raw.get("quantization_config"):
        raise ConfigError(f"{where}: quantised folders are not supported; use the float weights")
    if raw.get("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ConfigError(f"{where}: partial_rotary_factor other than 1 is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{where}: hidden_act must be 'silu', got {raw['hidden_act']!r}")
    needed = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
        "max_position_embeddings",
    )
    if absent := [field for field in needed if field not in raw]:
        raise ConfigError(f"{where}: missing field {absent[0]}")
    fields = {field: raw[field] for field in needed}
    heads = fields["num_attention_heads"]
    fields["num_key_value_heads"] = raw.get("num_key_value_heads") or heads
    if raw.get("head_dim"):
        fields["head_dim"] = raw["head_dim"]
    elif isinstance(heads, int) and isinstance(raw["hidden_size"], int) and heads:
        fields["head_dim"] = raw["hidden_size"] // heads
    fields["rope_theta"] = rope.get("rope_theta") or raw.get("rope_theta") or 10000.0
    fields["tie_word_embeddings"] = raw.get("tie_word_embeddings", False)
    eos = raw.get("eos_token_id")
    eos = eos[0] if isinstance(eos, list) and eos else eos
    if eos is not None:
        fields["eos_token_id"] = eos
    return parent_config(fields, where=where)


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Map each tensor's name to the file that holds it."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise WeightsError(f"{index} has no weight_map")
        files = {str(name): folder / str(shard) for name, shard in weight_map.items()}
        for name, path in files.items():
            if path.parent != folder or not path.is_file():
                raise WeightsError(f"{index} puts {name} in {path.name}, which is not there")
        return files
    single = folder / "model.safetensors"
    if not single.is_file():
        raise UsageError(
            f"no model.safetensors in {folder}: expected safetensors "
            "(pickled .bin files are not read)"
        )
    try:
        with safe_open(single, framework="pt") as file:
            return {name: single for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{single} cannot be read: {error}") from error


def _load(
    files: dict[str, Path],
    shapes: dict[str, tuple[int, ...]],
    *,
    where: str,
    progress: Progress,
) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    shards = sorted(set(files.values()))
    for number, shard in enumerate(shards):
        progress("read", number, len(shards))
        try:
            with safe_open(shard, framework="pt") as file:
                for name in (n for n, holder in files.items() if holder == shard):
                    tensor = file.get_tensor(name)
                    if tensor.dtype not in _FLOATS:
                        raise WeightsError(f"{where}: {name} is {tensor.dtype}, expected floats")
                    check_shape(name, tensor, shapes[name], where=where)
                    tensors[name] = tensor.to(torch.float32)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{shard} cannot be read: {error}") from error
    progress("read", len(shards), len(shards))
    return tensors
