"""The decoder-only twin of a CED model: the same weights with every layer in the encoder (E = L).

It is what the CED is compared with, so everything but the split is the same: kernels, store, tiles.
Made once from the model directory and kept in the cache folder, not among the models that a chat is
offered; made again when the model changes.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from cedagent.paths import cache_home


def decoder_only(model: Path) -> Path | None:
    """Return the directory of a model's decoder-only twin, making it if need be.

    None for deepseek_v41, whose decoder cannot run as an encoder: its layers own no global rows.
    """
    from cedagent.model.config import load_config
    from cedagent.model.llama.config import LlamaConfig
    from cedagent.model.llama.weights import Checkpoint, tensor_shapes, write_model

    config = load_config(model)
    if not isinstance(config, LlamaConfig):
        return None
    source = {"twin_of": str(model.resolve()), "weights": _identity(model)}
    folder = cache_home() / "bench" / f"{model.name}-decoder-only"
    if _origin(folder) == source:
        return folder
    n_layers = config.num_hidden_layers
    twin = replace(config, n_encoder_layers=n_layers, encoder_global_layers=tuple(range(n_layers)))
    checkpoint = Checkpoint(model, config, dtype="float32")
    tensors = {
        name: checkpoint.vector(name) if len(shape) == 1 else checkpoint.matrix(name)[0]
        for name, shape in tensor_shapes(twin).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder, twin, tensors, int8=tensors if config.weights_dtype == "int8" else None)
    shutil.copyfile(model / "tokenizer.json", folder / "tokenizer.json")
    # Last, so that an interrupted making is not taken for a finished one.
    (folder / "origin.json").write_text(json.dumps(source) + "\n", encoding="utf-8")
    return folder


def _identity(model: Path) -> list[int]:
    stat = (model / "model.safetensors").stat()
    return [stat.st_size, stat.st_mtime_ns]


def _origin(folder: Path) -> object:
    try:
        return json.loads((folder / "origin.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
