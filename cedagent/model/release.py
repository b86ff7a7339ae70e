"""ReleaseCheckpoint: the weights of a `deepseek_v41` model directory, as the release stores them.

Technical report arXiv 2609.19969; tensor names, formats and scales are those of the release's
safetensors. Knows which tensors there must be and what each is stored as, not what is computed with
them. Opening reads headers alone and refuses, by name, whatever does not fit the config; a tensor's
bytes are read when it is first used.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from cedagent.errors import WeightsError
from cedagent.model.digests import Digests
from cedagent.model.matrix import BLOCK, Matrix
from cedagent.model.release_names import (
    is_matrix,
    is_table,
    named_shapes,
    released_format,
    scale_of,
    tensor_shapes,
    weight_groups,
)
from cedagent.model.release_write import write_release
from cedagent.model.shards import Shards
from cedagent.model.v41_config import V41Config
from cedagent.model.weights_choice import (
    WeightBytes,
    WeightsChoice,
    available_memory,
    choose_weights,
)

__all__ = [
    "Matrix",
    "ReleaseCheckpoint",
    "WeightBytes",
    "choose_weights",
    "tensor_shapes",
    "weight_groups",
    "write_release",
]

_PLAIN = {"BF16": 2, "F32": 4}
"""Types stored as they are, with their bytes."""
_SCALES = ("F8_E8M0", "U8")
_OURS = ("embed", "head", "norm", "layers")
"""First words of the text model's names."""


class ReleaseCheckpoint:
    """The tensors of one model directory; shapes, types and scales are checked at opening."""

    def __init__(self, model_dir: Path, config: V41Config, *, weights: WeightsChoice) -> None:
        """Open the files; raises WeightsError that names the file or the tensor.

        `weights`: "dequantize" holds matrices as float32 once they were used, "keep" dequantises
        at each use, "auto" takes the former if memory allows. Both give the same bits.
        """
        self._shards = Shards(model_dir)
        self._shapes = self._named_shapes(config)
        self._scales = dict(self._check_scales())
        self.skipped = tuple(self._skip(config))
        self.weights, notice = choose_weights(
            weights, self.estimate(), available=available_memory()
        )
        self.notices = (() if notice is None else (notice,)) + self.skipped
        self._digests = Digests(self._shards)
        self._matrices: dict[str, Matrix] = {}

    def vector(self, name: str) -> Tensor:
        """Return a tensor of any rank that is no matrix, float32, not to be written to."""
        assert not is_matrix(name), name
        return self._shards.tensor(name).float()

    def matrix(self, name: str) -> Matrix:
        """Return a matrix; its bytes are read when they are used."""
        if name not in self._matrices:
            self._matrices[name] = Matrix(
                name,
                partial(self._stored, name),
                rows_per_scale=self._rows_per_scale(name),
                keep=self.weights == "keep",
            )
        return self._matrices[name]

    def expert(self, layer: int, index: int) -> tuple[Matrix, Matrix, Matrix]:
        """Return (w1, w2, w3) of a routed expert; nothing of it is read before its first use."""
        prefix = f"layers.{layer}.ffn.experts.{index}."
        w1, w2, w3 = (self.matrix(f"{prefix}{name}.weight") for name in ("w1", "w2", "w3"))
        return w1, w2, w3

    def digest(self, names: Sequence[str]) -> str:
        """Return the SHA-256 (hex) of these tensors' names, types, shapes and contents.

        It covers every stored byte, scales included. For files above 64 MiB the contents are read
        once and then trusted while the file's path, size, modification time and inode stay.
        """
        stored = [s for name in names for s in (name, self._scales.get(name)) if s is not None]
        total = hashlib.sha256()
        for name, digest in zip(stored, self._digests.of(stored), strict=True):
            header = self._shards.headers[name]
            total.update(json.dumps([name, header.dtype, header.shape, digest]).encode())
        return total.hexdigest()

    def estimate(self) -> WeightBytes:
        """Return what the text model takes, from headers alone."""
        stored = dequantized = 0
        for name, shape in self._shapes.items():
            header = self._shards.headers[name]
            n_bytes = math.prod(header.shape) * _PLAIN.get(header.dtype, 1)
            if name in self._scales:
                n_bytes += math.prod(self._shards.headers[self._scales[name]].shape)
            stored += n_bytes
            dequantized += n_bytes if is_table(name) else 4 * math.prod(shape)
        return WeightBytes(stored, dequantized)

    def _stored(self, name: str) -> tuple[Tensor, Tensor | None]:
        scale = self._scales.get(name)
        scales = None if scale is None else self._shards.tensor(scale).view(torch.uint8)
        return self._shards.tensor(name), scales

    def _named_shapes(self, config: V41Config) -> dict[str, tuple[int, ...]]:
        """Return the shapes that the config asks for; refuse names that no file has."""
        headers = self._shards.headers
        shapes, missing = {}, []
        for name, shape in named_shapes(config):
            shapes[name] = shape
            if name not in headers:
                missing.append(name)
            # A config may claim more experts than there is time to name.
            if len(missing) > max(len(headers), 1000):
                break
        if not missing:
            return shapes
        whole = "" if len(missing) <= max(len(headers), 1000) else "at least "
        more = f" and {whole}{len(missing) - 1} more" if len(missing) > 1 else ""
        hint = ""
        if f"model.{missing[0]}" in headers:
            hint = "; names begin with model., expected the release's, which do not"
        raise WeightsError(f"{self._shards.where}: tensor {missing[0]} is missing{more}{hint}")

    def _check_scales(self) -> Iterator[tuple[str, str]]:
        """Yield (matrix, its scale) of quantised matrices; refuse types and shapes that differ."""
        for name, shape in self._shapes.items():
            dtype = self._shards.headers[name].dtype
            if dtype in _PLAIN:
                self._expect_shape(name, shape)
            elif is_matrix(name) and dtype in ("F8_E4M3", "I8"):
                n_rows, width = shape
                packed = dtype == "I8"
                self._expect_shape(name, (n_rows, width // 2) if packed else shape)
                if width % BLOCK:
                    raise self._wrong(name, f"rows of whole blocks of {BLOCK}", f"{width} columns")
                scale = self._expect_scale(name)
                n_scales = -(-n_rows // self._rows_per_scale(name))
                self._expect_shape(scale, (n_scales, width // BLOCK))
                yield name, scale
            else:
                quantised = ", F8_E4M3 or I8" if is_matrix(name) else ""
                raise self._wrong(name, f"type BF16, F32{quantised}", dtype)

    def _rows_per_scale(self, name: str) -> int:
        if self._shards.headers[name].dtype != "F8_E4M3":
            return 1
        return 1 if released_format(name) == "fp8_rows" else BLOCK

    def _expect_shape(self, name: str, shape: tuple[int, ...]) -> None:
        got = self._shards.headers[name].shape
        if got != shape:
            raise self._wrong(name, f"shape {list(shape)}", str(list(got)))

    def _expect_scale(self, name: str) -> str:
        scale, headers = scale_of(name), self._shards.headers
        if scale in headers:
            if headers[scale].dtype not in _SCALES:
                raise self._wrong(scale, "type F8_E8M0", headers[scale].dtype)
            return scale
        others = [name + "_scale_inv", name + "_scale", scale + "_inv"]
        found = next((other for other in others if other in headers), None)
        hint = f"{found}: other releases' name, of another meaning" if found else "none"
        raise self._wrong(name, f"its scale {scale} beside {headers[name].dtype} codes", hint)

    def _wrong(self, name: str, expected: str, got: str) -> WeightsError:
        path = self._shards.headers[name].path
        return WeightsError(f"{path}: tensor {name}: expected {expected}, got {got}")

    def _skip(self, config: V41Config) -> Iterator[str]:
        """Yield one line for each kind of tensor that is not read; refuse unknown ones of ours."""
        known = self._shapes.keys() | set(self._scales.values())
        kinds: Counter[str] = Counter()
        for name in self._shards.headers.keys() - known:
            first = name.split(".")[0]
            owner = name.removesuffix("_vl")
            if owner in known and name.endswith(".gate.bias_vl"):
                kinds["ffn.gate.bias_vl"] += 1
            elif first in _OURS:
                path = self._shards.headers[name].path
                raise WeightsError(
                    f"{path}: tensor {name} has no place in a model of "
                    f"{config.num_hidden_layers} layers with this config; expected the config.json "
                    "that belongs to these weights"
                )
            else:
                kinds[f"{first}.*" if first != name else first] += 1
        for kind, n_tensors in sorted(kinds.items()):
            what = "draft layers" if kind == "mtp.*" else "no part of the text model"
            yield f"{kind} is skipped: {what}; tensors: {n_tensors}"
