"""trained.safetensors: what training added to a converted model, in one small file.

NAME holds a tensor that was trained whole, NAME.a and NAME.b an adapter whose product B A is added
to the matrix NAME, NAME.delta the same product where that is smaller than its factors. Matrices are
bfloat16, norms float32. The metadata says which parent and settings it belongs to and how it was
made. Invariant: a file is applied completely or not at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cedagent.errors import WeightsError
from cedagent.model.llama.config import LlamaConfig
from cedagent.upcycle.training.whole_file import read_whole, write_whole

_SHAPE_FIELDS = ("n_encoder_layers", "decoder_window", "encoder_global_layers")
"""Config fields that say what the weights were trained for."""

_METADATA = {"parent": str, "made_for": dict, "stages": list}


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained file's contents."""

    path: Path
    full: Mapping[str, Tensor]
    """Tensors that take another's place, float32."""
    pairs: Mapping[str, tuple[Tensor, Tensor]]
    """Matrix -> (A [r, K], B [N, r]) float32; B A is added to it."""
    metadata: Mapping[str, Any]
    """parent: the SHA-256 of its tensors; made_for: config fields; stages: recipe, steps and tokens
    of each, in order."""


def write_trained(
    path: Path,
    *,
    full: Mapping[str, Tensor],
    pairs: Mapping[str, tuple[Tensor, Tensor]],
    config: LlamaConfig,
    parent: str,
    stages: Sequence[Mapping[str, Any]],
) -> None:
    """Write a trained file, whole or not at all; raises CedError when it cannot be written."""
    made: dict[str, Tensor] = {}
    for name, tensor in full.items():
        made[name] = tensor.float() if tensor.ndim == 1 else tensor.bfloat16()
    for name, (a, b) in pairs.items():
        if a.numel() + b.numel() < b.shape[0] * a.shape[1]:
            made[f"{name}.a"], made[f"{name}.b"] = a.bfloat16(), b.bfloat16()
        else:
            made[f"{name}.delta"] = (b.float() @ a.float()).bfloat16()
    metadata = {"parent": parent, "made_for": made_for(config), "stages": list(stages)}
    write_whole(path, made, values=metadata)


def read_trained(path: Path) -> Trained:
    """Read a trained file; raises WeightsError for one that is none."""
    if not path.is_file():
        raise WeightsError(f"{path}: no such file; expected a trained.safetensors")
    try:
        stored, metadata = read_whole(path)
    except ValueError as error:
        raise WeightsError(f"{path}: not a trained file: {error}") from None
    if not all(isinstance(metadata.get(name), kind) for name, kind in _METADATA.items()):
        raise WeightsError(f"{path}: not a trained file: its metadata are another file's")
    tensors = {name: tensor.float() for name, tensor in stored.items()}
    full, pairs = {}, {}
    for name, tensor in tensors.items():
        matrix, _, part = name.rpartition(".")
        if not tensor.isfinite().all():
            raise WeightsError(
                f"{path}: {name} has values that are no numbers; the file is damaged"
            )
        if part in ("a", "b", "delta") and tensor.ndim != 2:
            raise WeightsError(f"{path}: {name} is no matrix; the file is damaged")
        if part == "delta":
            pairs[matrix] = tensor, torch.eye(len(tensor))
        elif part == "a" and f"{matrix}.b" in tensors:
            pairs[matrix] = tensor, tensors[f"{matrix}.b"]
        elif part not in ("a", "b"):
            full[name] = tensor
        elif f"{matrix}.a" not in tensors or f"{matrix}.b" not in tensors:
            raise WeightsError(f"{path}: {name} has no partner; the file is damaged")
    return Trained(path, full, pairs, metadata)


def check_fits(trained: Trained, *, parent: str, config: LlamaConfig) -> None:
    """Refuse a file that was trained for other settings or another parent; raises WeightsError.

    `parent` is the digest of the model's parent (`parent_digest`).
    """
    expected, found = made_for(config), trained.metadata["made_for"]
    for field in _SHAPE_FIELDS:
        if found.get(field) != expected[field]:
            raise WeightsError(
                f"{trained.path}: trained for {field} = {found.get(field)}, but the model has "
                f"{expected[field]}; convert the checkpoint with the same settings"
            )
    if trained.metadata["parent"] != parent:
        raise WeightsError(
            f"{trained.path}: trained from another parent; expected the checkpoint whose tensors "
            f"have the digest {trained.metadata['parent'][:16]}, got {parent[:16]}"
        )


def check_names(trained: Trained, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a file whose names or shapes are not the model's; raises WeightsError."""
    products = {name: (b.shape[0], a.shape[1]) for name, (a, b) in trained.pairs.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in trained.full.items()}
    for name, shape in (shapes | products).items():
        if name not in tensors or tuple(tensors[name].shape) != shape:
            there = list(tensors[name].shape) if name in tensors else "no such tensor"
            raise WeightsError(
                f"{trained.path}: {name} is {list(shape)}, but the model has {there}"
            )
    for name, (a, b) in trained.pairs.items():
        if a.shape[0] != b.shape[1]:
            raise WeightsError(
                f"{trained.path}: the factors of {name} do not fit: {list(b.shape)} times "
                f"{list(a.shape)}"
            )


def apply_trained(tensors: Mapping[str, Tensor], file: Path | Trained) -> dict[str, Tensor]:
    """Return a converted model's float32 tensors with what was trained.

    Raises WeightsError for a file that is none, or whose names or shapes are not the model's;
    `check_fits` tells whether it was trained from this parent.
    """
    trained = file if isinstance(file, Trained) else read_trained(file)
    made = dict(tensors)
    check_names(trained, tensors)
    for name, tensor in trained.full.items():
        made[name] = tensor.clone()
    for name, (a, b) in trained.pairs.items():
        made[name] = torch.addmm(made[name], b, a)
    return made


def parent_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 (hex) of the parent's tensors: all but the global ones."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        if ".global_" not in name:
            tensor = tensors[name].float().contiguous()
            total.update(f"{name} {list(tensor.shape)}\n".encode())
            total.update(tensor.numpy().data)
    return total.hexdigest()


def made_for(config: LlamaConfig) -> dict[str, Any]:
    """Return the config fields that trained weights belong to."""
    values = config.as_json()
    return {field: values[field] for field in _SHAPE_FIELDS}
