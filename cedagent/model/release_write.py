"""Writes a `deepseek_v41` model directory in the release's names and formats.

Technical report arXiv 2609.19969; formats as the release's safetensors and quantization_config have
them. Knows bytes and rounding, not where the values come from. What it writes is what
ReleaseCheckpoint reads: values rounded to bf16, fp8 or fp4 once, here.

Letters: N rows, K columns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ced_kernels.block_codes import BlockFormat
from cedagent.errors import WeightsError
from cedagent.model.config import CONFIG_FILE
from cedagent.model.matrix import BLOCK, FP4, FP8
from cedagent.model.release_names import Stored, released_format, scale_of, tensor_shapes
from cedagent.model.shards import INDEX_FILE, SINGLE_FILE
from cedagent.model.tensor_file import save_tensors
from cedagent.model.v41_config import V41Config
from cedagent.model.v41_rules import QUANTIZATION


def write_release(
    dst: Path,
    config: V41Config,
    tensors: Mapping[str, Tensor],
    *,
    quantized: bool,
    shards: int = 1,
) -> None:
    """Write config.json and the weights into the existing directory `dst`.

    `tensors` are of any float type, under the names and shapes of `tensor_shapes(config)`, no more
    and no fewer. `quantized` stores matrices as the release does (fp8, experts fp4, the others
    bf16), else all of them as bf16; sinks, gate biases and hyper-connections are float32 either
    way. More than one shard come with an index. Raises WeightsError.
    """
    shapes = tensor_shapes(config)
    for name in shapes.keys() | tensors.keys():
        got = list(tensors[name].shape) if name in tensors else "nothing"
        if name not in shapes or got != list(shapes[name]):
            expected = list(shapes[name]) if name in shapes else "no such tensor"
            raise WeightsError(f"tensor {name}: expected {expected}, got {got}")
    stored: dict[str, Tensor] = {}
    for name in shapes:
        kind = released_format(name)
        if not quantized and kind != "fp32":
            kind = "bf16"
        stored |= _stored(name, tensors[name].float(), kind)
    _save_shards(dst, stored, shards)
    values = config.as_json()
    if quantized:
        values["quantization_config"] = dict(QUANTIZATION)
    text = json.dumps(values, indent=2) + "\n"
    (dst / CONFIG_FILE).write_text(text, encoding="utf-8")


def _stored(name: str, value: Tensor, kind: Stored) -> dict[str, Tensor]:
    """Return a tensor as it is stored, with its scale if it has one."""
    if kind in ("fp32", "bf16"):
        return {name: value.to(torch.float32 if kind == "fp32" else torch.bfloat16).contiguous()}
    if value.shape[1] % BLOCK:
        raise WeightsError(
            f"tensor {name}: expected rows of whole blocks of {BLOCK} for {kind}, got "
            f"{value.shape[1]} columns"
        )
    if kind == "fp8":
        codes, scales = _square_blocks(value)
    else:
        codes, scales = (FP4 if kind == "fp4" else FP8).encode(value)
    return {
        name: codes.view(torch.int8 if kind == "fp4" else torch.float8_e4m3fn),
        scale_of(name): scales.view(torch.float8_e8m0fnu),
    }


def _square_blocks(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return fp8 codes [N, K] and scales [ceil(N/32), K/32] of blocks of 32 x 32."""
    n_rows, width = value.shape
    padded = functional.pad(value, (0, 0, 0, -n_rows % BLOCK))
    blocks = padded.view(-1, BLOCK, width // BLOCK, BLOCK).transpose(1, 2).flatten(2)
    square = BlockFormat(FP8.element, BLOCK * BLOCK, FP8.scale, FP8.least_amax)
    codes, scales = square.encode(blocks)
    codes = codes.view(-1, width // BLOCK, BLOCK, BLOCK).transpose(1, 2).reshape(-1, width)
    return codes[:n_rows].contiguous(), scales.squeeze(-1)


def _save_shards(dst: Path, stored: dict[str, Tensor], n_shards: int) -> None:
    names = list(stored)
    places: dict[str, str] = {}
    for shard in range(n_shards):
        file = f"model-{shard + 1:05}-of-{n_shards:05}.safetensors" if n_shards > 1 else SINGLE_FILE
        # A weight and its scale may be in different files, as in the release.
        own = names[shard * len(names) // n_shards : (shard + 1) * len(names) // n_shards]
        _save({name: stored[name] for name in own}, dst / file)
        places |= dict.fromkeys(own, file)
    index = dst / INDEX_FILE
    # An index of an earlier write would win over a single file.
    index.unlink(missing_ok=True)
    if n_shards > 1:
        size = sum(tensor.nbytes for tensor in stored.values())
        values = {"metadata": {"total_size": size}, "weight_map": places}
        index.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    save_tensors(tensors, temporary, metadata={"format": "pt"})
    os.replace(temporary, path)
