"""Turns a Llama checkpoint into a CED model directory, without training.

Everything of the parent is kept. Each decoder layer gains a projection from E_out to its global
keys and values: the first decoder layer copies its own norm, K and V, which is exact because E_out
is its input; the layers above keep their norm and fit K and V by ridge regression to what the
parent, its encoder layers windowed as the model's will be, computes there. Invariant: the directory
appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from ced_kernels.norm import rms_norm
from cedagent.errors import CedError, ConfigError, UsageError
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import write_model
from cedagent.upcycle.calibration import calibration_digest, calibration_documents
from cedagent.upcycle.parent import layer_rows
from cedagent.upcycle.regression import RIDGE, fit_towards
from cedagent.upcycle.smooth import SHARE, larger, smoothed
from cedagent.upcycle.source import Parent, Progress, read_parent, silent


def convert(
    source: str | Path,
    dst: str | Path,
    *,
    n_encoder_layers: int,
    window: int,
    global_layers: Sequence[int] | None = None,
    int8: bool = True,
    replay_windows: int = 1,
    progress: Progress | None = None,
) -> Path:
    """Convert the checkpoint at `source` into the new model directory `dst` and return its path.

    `window` is W in tokens: 0 gives YOCO; `n_encoder_layers` equal to the number of layers gives
    the decoder-only baseline. Encoder layers not in `global_layers`, None for all of them, see the
    last W tokens alone. Raises UsageError (ConfigError, WeightsError) before anything is
    written, CedError when the directory cannot be written; then nothing of it stays.
    """
    target = new_place(dst)
    report = progress or silent
    parent = read_parent(source, progress=report)
    seeing_far = range(n_encoder_layers) if global_layers is None else sorted(global_layers)
    config = replace(
        parent.config,
        n_encoder_layers=n_encoder_layers,
        encoder_global_layers=tuple(seeing_far),
        decoder_window=window,
        replay_windows=replay_windows,
    )
    context = config.max_position_embeddings
    if window > context and (config.n_decoder_layers or config.encoder_windowed_layers):
        raise ConfigError(
            f"a window of {window} tokens: expected at most the checkpoint's context of {context} "
            "tokens"
        )
    tensors, quantised = dict(parent.tensors), None
    if int8 or config.n_decoder_layers:
        added, peaks = calibrate(parent, config, progress=report)
        tensors |= added
        quantised = smoothed(tensors, config, peaks) if int8 else None
    report("write", 0, 1)
    with new_directory(target) as folder:
        write_model(folder, config, tensors, int8=quantised)
        (folder / "tokenizer.json").write_text(parent.tokenizer_json, encoding="utf-8")
        origin = {**parent.origin, "made_by": "cedagent model convert"}
        if int8 or config.n_decoder_layers:
            origin["calibration"] = {"sha256": calibration_digest(), "ridge": RIDGE, "share": SHARE}
        (folder / "origin.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
    report("write", 1, 1)
    return target


@torch.no_grad()
def calibrate(
    parent: Parent, config: LlamaConfig, *, progress: Progress = silent
) -> tuple[dict[str, Tensor], dict[int, dict[str, Tensor]]]:
    """Return global_norm, global_k and global_v of every decoder layer of `config`, and each
    layer's channel peaks for `smoothed`.

    Raises ConfigError when the tokenizer has ids that the parent has no embedding for.
    """
    first, n_layers = config.n_encoder_layers, config.num_hidden_layers
    documents = calibration_documents(parent.tokenizer(), context=config.max_position_embeddings)
    largest = max(max(ids, default=0) for ids in documents)
    if largest >= config.vocab_size:
        raise ConfigError(
            f"tokenizer.json gives token {largest}, but vocab_size is {config.vocab_size}: "
            "expected the checkpoint's own tokenizer"
        )
    made: dict[str, Tensor] = {}
    e_out = torch.empty(0)
    progress("calibrate", 0, n_layers)
    peaks: dict[int, dict[str, Tensor]] = {}
    rows = layer_rows(
        parent,
        documents,
        advanced=lambda n: progress("calibrate", n, n_layers),
        windowed=config.encoder_windowed_layers,
        window=config.decoder_window,
    )
    for layer, (x, keys, values, peaks_of_layer) in enumerate(rows):
        peaks[layer] = dict(peaks_of_layer)
        if layer < first:
            continue
        prefix = f"model.layers.{layer}."
        norm = parent.tensors[prefix + "input_layernorm.weight"]
        own_k = parent.tensors[prefix + "self_attn.k_proj.weight"]
        own_v = parent.tensors[prefix + "self_attn.v_proj.weight"]
        if layer == first:
            e_out = x
        normed = rms_norm(e_out, norm, eps=config.rms_norm_eps)
        peaks[layer]["global"] = larger(None, normed)
        if layer == first:
            fitted_k, fitted_v = own_k, own_v
        else:
            fitted = fit_towards(normed, torch.cat((keys, values), 1), torch.cat((own_k, own_v)))
            fitted_k, fitted_v = fitted[: len(own_k)], fitted[len(own_k) :]
        # Clones: the file format takes no two tensors that share memory.
        made[prefix + "global_norm.weight"] = norm.clone()
        made[prefix + "global_k.weight"] = fitted_k.clone()
        made[prefix + "global_v.weight"] = fitted_v.clone()
    return made, peaks


def new_place(dst: str | Path) -> Path:
    """Return the path of a directory to make, for `new_directory`.

    Raises UsageError now for what would fail after minutes of work: something is there, or no
    folder can be made there.
    """
    target = Path(dst).expanduser()
    if os.path.lexists(target):
        raise UsageError(f"{target} exists already: expected a new folder; move it away first")
    above = next(path for path in target.absolute().parents if os.path.lexists(path))
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        what = "a folder that this user may not write" if above.is_dir() else "no folder"
        raise UsageError(
            f"cannot write {target}: {above} is {what}; expected a place for a new folder, choose "
            "another one"
        )
    return target


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` on success and vanishes otherwise."""
    folder = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
    try:
        folder.mkdir(parents=True)
        yield folder
        for path in folder.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        folder.rename(target)
    except (OSError, SafetensorError) as error:
        raise CedError(f"cannot write {target}: {error}; nothing was kept") from error
    finally:
        # After the rename there is nothing of this name left.
        shutil.rmtree(folder, ignore_errors=True)
