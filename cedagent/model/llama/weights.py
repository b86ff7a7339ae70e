"""Checkpoints: safetensors <-> named tensors, with shapes checked against the config.

A model directory holds model.safetensors (float32) and, when weights_dtype is int8,
model-int8.safetensors: every matrix as int8 codes with one float32 scale per output channel
(NAME and NAME_scale), norms in float32. It holds the head apart from the embedding also where
config.json ties them: smoothing scales the columns of the head alone. Names are Hugging Face's for
Llama, plus global_norm, global_k and global_v of each decoder layer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ced_kernels.rows import quantize_rows
from cedagent.errors import WeightsError
from cedagent.model.config import WeightsDtype
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.tensor_file import save_tensors

_FILES: dict[WeightsDtype, str] = {
    "float32": "model.safetensors",
    "int8": "model-int8.safetensors",
}
SCALE_SUFFIX = "_scale"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def tensor_shapes(
    config: LlamaConfig, dtype: WeightsDtype = "float32"
) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every tensor in a file of this config, scales aside."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if dtype == "int8" or not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (q, hidden),
            prefix + "self_attn.k_proj.weight": (kv, hidden),
            prefix + "self_attn.v_proj.weight": (kv, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, q),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (inner, hidden),
            prefix + "mlp.up_proj.weight": (inner, hidden),
            prefix + "mlp.down_proj.weight": (hidden, inner),
        }
        if layer >= config.n_encoder_layers:
            shapes |= {
                prefix + "global_norm.weight": (hidden,),
                prefix + "global_k.weight": (kv, hidden),
                prefix + "global_v.weight": (kv, hidden),
            }
    return shapes


def weight_groups(config: LlamaConfig) -> dict[str, list[str]]:
    """Return group -> tensor names: embedding, layers.N, head. A group is what `kv why` names."""
    groups: dict[str, list[str]] = {}
    for name in tensor_shapes(config, "int8"):
        if name.startswith("model.layers."):
            group = "layers." + name.split(".")[2]
        else:
            group = "embedding" if "embed" in name else "head"
        groups.setdefault(group, []).append(name)
    return groups


class Checkpoint:
    """The tensors of one model directory in one stored type; read lazily, shapes checked."""

    def __init__(self, model_dir: Path, config: LlamaConfig, *, dtype: WeightsDtype) -> None:
        """Open the file of `dtype`; raises WeightsError when it is missing or unreadable."""
        self.dtype = dtype
        self.path = model_dir / _FILES[dtype]
        self._shapes = tensor_shapes(config, dtype)
        if not self.path.is_file():
            raise WeightsError(f"{self.path}: no such file; expected {dtype} weights of the model")
        if not os.access(self.path, os.R_OK):
            raise WeightsError(f"{self.path}: this user may not read it; change its permissions")
        try:
            self._file: Any = safe_open(self.path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{self.path}: not a safetensors file: {error}") from None
        names: list[str] = cast(Any, self._file).keys()
        self._names = frozenset(names)
        self._digests: dict[tuple[str, ...], str] = {}

    def vector(self, name: str) -> Tensor:
        """Return a float32 vector (a norm's weight)."""
        return self._get(name, self._shapes[name], torch.float32)

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Return (codes int8 [N, K], scale float32 [N]) or (values float32 [N, K], None)."""
        shape = self._shapes[name]
        if self.dtype == "float32":
            return self._get(name, shape, torch.float32), None
        codes = self._get(name, shape, torch.int8)
        return codes, self._get(name + SCALE_SUFFIX, shape[:1], torch.float32)

    def digest(self, names: list[str]) -> str:
        """Return the SHA-256 (hex) of these tensors' contents, scales included; taken once."""
        known = self._digests.get(tuple(names))
        if known is not None:
            return known
        total = hashlib.sha256()
        for name in names:
            for stored in (name, name + SCALE_SUFFIX):
                if stored in self._names:
                    tensor = self._file.get_tensor(stored)
                    head = json.dumps([stored, str(tensor.dtype), list(tensor.shape)])
                    total.update(head.encode())
                    total.update(memoryview(tensor.contiguous().view(torch.uint8).numpy()))
        self._digests[tuple(names)] = total.hexdigest()
        return total.hexdigest()

    def _get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if name not in self._names:
            raise WeightsError(
                f"{self.path}: tensor {name} is missing; convert the checkpoint again, or pull it"
            )
        try:
            tensor: Tensor = self._file.get_tensor(name)
        except SafetensorError as error:
            raise WeightsError(f"{self.path}: tensor {name} cannot be read: {error}") from None
        if tuple(tensor.shape) != shape or tensor.dtype is not dtype:
            raise WeightsError(
                f"{self.path}: tensor {name}: expected {list(shape)} {dtype}, "
                f"got {list(tensor.shape)} {tensor.dtype}"
            )
        return tensor


def write_model(
    dst: Path,
    config: LlamaConfig,
    tensors: Mapping[str, Tensor],
    *,
    int8: Mapping[str, Tensor] | None = None,
) -> None:
    """Write config.json and the weights into the existing directory `dst`.

    `tensors` are float32 under the names of `tensor_shapes(config)`, no more and no fewer; raises
    WeightsError otherwise. `int8` are tensors to quantise into model-int8.safetensors: the same, or
    others of the same function that quantise better, without a head if that is the embedding;
    config.json's weights_dtype says that they are there.
    """
    _save(_checked(tensor_shapes(config), tensors), dst / _FILES["float32"])
    if int8 is not None:
        with_head = {HEAD: int8[EMBEDDING], **int8} if config.tie_word_embeddings else int8
        checked = _checked(tensor_shapes(config, "int8"), with_head)
        _save(dict(_int8_tensors(checked)), dst / _FILES["int8"])
    values = config.as_json() | {"weights_dtype": "float32" if int8 is None else "int8"}
    (dst / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _checked(
    shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    for name in shapes.keys() | tensors.keys():
        got = list(tensors[name].shape) if name in tensors else "nothing"
        if name not in shapes or got != list(shapes[name]):
            expected = list(shapes[name]) if name in shapes else "no such tensor"
            raise WeightsError(f"tensor {name}: expected {expected}, got {got}")
    return {name: tensor.float().contiguous() for name, tensor in tensors.items()}


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    save_tensors(tensors, temporary, metadata={"format": "pt"})
    os.replace(temporary, path)


def _int8_tensors(float32: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in float32.items():
        if tensor.ndim == 1:
            yield name, tensor
            continue
        rows = quantize_rows(tensor)
        assert rows.scale is not None
        yield name, rows.codes
        yield name + SCALE_SUFFIX, rows.scale
