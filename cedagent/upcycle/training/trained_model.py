"""Makes a model directory from a converted one and a trained file.

The float32 weights take what was trained; the int8 ones are made anew, smoothed by what the trained
weights do on the calibration text. Knows no training. Invariant: the directory appears whole or not
at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ced_kernels.norm import rms_norm
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import write_model
from cedagent.upcycle.calibration import calibration_documents
from cedagent.upcycle.convert import new_directory, new_place
from cedagent.upcycle.parent import layer_rows
from cedagent.upcycle.smooth import larger, smoothed
from cedagent.upcycle.source import Parent, Progress, sha256_file, silent
from cedagent.upcycle.training.forward import parent_of
from cedagent.upcycle.training.pair import load_untrained
from cedagent.upcycle.training.trained_file import (
    apply_trained,
    check_fits,
    parent_digest,
    read_trained,
)


def write_trained_model(
    model_dir: Path, file: Path, dst: Path, *, progress: Progress | None = None
) -> Path:
    """Apply the trained `file` to the converted model and write the new directory `dst`.

    Raises UsageError's kinds before anything is written, CedError when the directory cannot be.
    """
    target = new_place(dst)
    report = progress or silent
    config, tensors = load_untrained(model_dir)
    trained = read_trained(file)
    check_fits(trained, parent=parent_digest(tensors), config=config)
    made = apply_trained(tensors, trained)
    tokenizer_json = (model_dir / "tokenizer.json").read_text(encoding="utf-8")
    int8 = None
    if config.weights_dtype == "int8":
        int8 = smoothed_anew(made, config, tokenizer_json, progress=report)
    # What `model pull` made by a recipe and this are two models.
    origin = {key: value for key, value in _origin(model_dir).items() if key != "recipe"}
    origin |= {"made_by": "cedagent model apply", "trained": trained_record(trained.metadata, file)}
    report("write", 0, 1)
    with new_directory(target) as folder:
        write_model(folder, config, made, int8=int8)
        (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
        (folder / "origin.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
    report("write", 1, 1)
    return target


def trained_record(metadata: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return what origin.json says of trained weights; a model with it is not trained again."""
    return {"sha256": sha256_file(file), "stages": metadata["stages"]}


@torch.no_grad()
def smoothed_anew(
    tensors: Mapping[str, Tensor],
    config: LlamaConfig,
    tokenizer_json: str,
    *,
    progress: Progress = silent,
) -> dict[str, Tensor]:
    """Return tensors of the same function that quantise better, for weights that were trained.

    Channels are as large as the calibration text makes them, every layer's keys its own.
    """
    own = {name: tensor for name, tensor in tensors.items() if ".global_" not in name}
    model = Parent(parent_of(config), own, tokenizer_json, {})
    documents = calibration_documents(model.tokenizer(), context=config.max_position_embeddings)
    n_layers, first = config.num_hidden_layers, config.n_encoder_layers
    rows = layer_rows(
        model,
        documents,
        advanced=lambda n: progress("calibrate", n, n_layers),
        windowed=config.encoder_windowed_layers,
        window=config.decoder_window,
    )
    peaks: dict[int, dict[str, Tensor]] = {}
    e_out = torch.empty(0)
    for layer, (x, _, _, found) in enumerate(rows):
        peaks[layer] = dict(found)
        if layer == first:
            e_out = x
        if layer >= first:
            norm = tensors[f"model.layers.{layer}.global_norm.weight"]
            normed = rms_norm(e_out, norm, eps=config.rms_norm_eps)
            peaks[layer]["global"] = larger(None, normed)
    return smoothed(tensors, config, peaks)


def _origin(model_dir: Path) -> dict[str, Any]:
    try:
        found = json.loads((model_dir / "origin.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
