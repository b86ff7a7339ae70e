"""Reads a Llama-family checkpoint, GGUF file or Hugging Face folder, as a `Parent`.

The result looks the same whatever it was read from: one config, Hugging Face tensor names, float32,
RoPE rows in half-split order. A parent is described as the CED with every layer in the encoder,
which is the plain decoder-only transformer. Invariant: a `Parent` holds exactly the tensors of its
config, each with the right shape; whatever a plain Llama would not compute (biases, scaled RoPE,
experts, windows) is refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from cedagent.errors import ConfigError, UsageError, WeightsError
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import tensor_shapes

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all); the text is one short line."""


@dataclass(frozen=True, slots=True)
class Parent:
    """A Llama checkpoint, ready to be converted."""

    config: LlamaConfig
    """Its shape, with n_encoder_layers = num_hidden_layers."""
    tensors: Mapping[str, Tensor]
    """float32, by Hugging Face names; no `lm_head.weight` when the head is tied."""
    tokenizer_json: str
    """The text of tokenizer.json."""
    origin: Mapping[str, Any]
    """What it was read from: file names, their SHA-256, name and licence where the file says."""

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer as the `tokenizers` library reads it."""
        return Tokenizer.from_str(self.tokenizer_json)


def read_parent(path: str | Path, *, progress: Progress | None = None) -> Parent:
    """Read a GGUF file or a Hugging Face folder.

    Raises UsageError when there is no such checkpoint, ConfigError for an architecture that a plain
    Llama does not cover, WeightsError for tensors that are missing, misshapen or unreadable.
    """
    # Both readers import this module.
    from cedagent.upcycle.gguf_source import read_gguf
    from cedagent.upcycle.hf_source import read_hf_folder

    source = Path(path).expanduser()
    report = progress or silent
    if source.is_dir():
        return read_hf_folder(source, progress=report)
    if source.is_file():
        return read_gguf(source, progress=report)
    raise UsageError(
        f"no checkpoint at {source}: expected a .gguf file, or a Hugging Face folder with "
        "config.json, safetensors and tokenizer.json"
    )


def silent(what: str, done: int, total: int) -> None:
    """Report nothing; the default of every `progress`."""


def parent_config(fields: Mapping[str, Any], *, where: str) -> LlamaConfig:
    """Return the config of a plain Llama with these fields; `where` names the file in errors."""
    n_layers = fields["num_hidden_layers"]
    if not isinstance(n_layers, int) or n_layers < 1:
        raise ConfigError(f"{where}: num_hidden_layers must be at least 1, got {n_layers!r}")
    as_ced = {
        "model_type": "ced_llama",
        "n_encoder_layers": n_layers,
        "encoder_global_layers": list(range(n_layers)),
        "decoder_window": 0,
    }
    return LlamaConfig.from_json({**fields, **as_ced}, where=where)


def check_names(names: set[str], config: LlamaConfig, *, where: str) -> None:
    """Refuse missing tensors, biases, and tensors that a plain Llama does not have."""
    expected = tensor_shapes(config).keys()
    extra = sorted(names - expected)
    if biases := [name for name in extra if name.endswith(".bias")]:
        raise ConfigError(f"{where}: biases are not supported, found {biases[0]}")
    if extra:
        more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        raise ConfigError(f"{where}: {extra[0]} is not a tensor of a plain Llama{more}")
    if missing := sorted(expected - names):
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise WeightsError(
            f"{where}: missing tensor {missing[0]}{more}; the checkpoint is incomplete"
        )


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...], *, where: str) -> None:
    """Refuse a tensor whose shape does not follow from the config."""
    if tuple(tensor.shape) != expected:
        raise WeightsError(
            f"{where}: {name} has shape {list(tensor.shape)}, expected {list(expected)}"
        )


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
