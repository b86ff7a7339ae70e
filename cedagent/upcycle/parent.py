"""Runs a parent over calibration text and keeps what the regression needs.

One layer at a time over all documents, so that one layer's weights are in use at once; some layers
may be windowed, as the converted model's will be. It knows nothing of what is fitted. Invariant:
what a layer's keys and values are is computed by the same `LlamaLayer` that serves that model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ced_kernels.norm import rms_norm
from ced_kernels.rope import rotate
from cedagent.model.llama.cache import KvCache
from cedagent.model.llama.layer import Arithmetic, LlamaLayer
from cedagent.model.llama.rope import Rope
from cedagent.model.llama.weights import Checkpoint
from cedagent.upcycle.smooth import Peaks, larger
from cedagent.upcycle.source import Parent


class InMemory(Checkpoint):
    """A parent's tensors, read as if they were a float32 checkpoint."""

    def __init__(self, parent: Parent) -> None:
        """Take the tensors as they are; there is no file."""
        self._tensors = parent.tensors

    def vector(self, name: str) -> Tensor:
        """Return a norm's weight."""
        return self._tensors[name]

    def matrix(self, name: str) -> tuple[Tensor, Tensor | None]:
        """Return (values [N, K], None)."""
        return self._tensors[name], None


class LayerRows(NamedTuple):
    """What one layer of the parent did over all tokens T of all documents."""

    x: Tensor
    """[T, D], the residual stream before the layer."""
    keys: Tensor
    """[T, H * d], before RoPE."""
    values: Tensor
    """[T, H * d]."""
    peaks: Mapping[str, Tensor]
    """Map -> [K], each channel's largest size before it; the last layer's with what enters the
    head."""


def layer_rows(
    parent: Parent,
    documents: Sequence[Sequence[int]],
    *,
    advanced: Callable[[int], None],
    windowed: Collection[int] = (),
    window: int = 0,
) -> Iterator[LayerRows]:
    """Yield what each layer did, from the first on.

    Every document starts at position 0 and sees only itself; in the layers of `windowed` a token
    sees the last `window` tokens alone. `advanced` is called with the number of layers done.
    """
    config = parent.config
    weights = InMemory(parent)
    rope = Rope(config)
    embedding = parent.tensors["model.embed_tokens.weight"]
    states = [embedding[torch.tensor(ids, dtype=torch.int64)] for ids in documents]
    for number in range(config.num_hidden_layers):
        kernels = Peaks()
        arithmetic = Arithmetic("int_mm", kernels)
        layer = LlamaLayer(weights, config, layer=number, arithmetic=arithmetic)
        before = torch.cat(states)
        keys, values = [], []
        for i, x in enumerate(states):
            cos, sin = rope.angles(0, len(x))
            cache = KvCache(config, int8=False)
            q = layer.project(x, (cos, sin), cache, start=0)
            k, v = cache.rows(0, len(x)).codes
            # The rotation by the opposite angle gives the keys back as they were projected.
            keys.append(rotate(k, cos, -sin).transpose(0, 1).flatten(1))
            values.append(v.transpose(0, 1).flatten(1))
            seen_to = torch.arange(1, len(x) + 1, dtype=torch.int32)
            reach = window if number in windowed else len(x)
            span = cache.span(0, len(x), (seen_to - reach).clamp(min=0), seen_to)
            states[i] = layer.finish(x, q, [span])
        if number == config.num_hidden_layers - 1:
            norm = parent.tensors["model.norm.weight"]
            normed = rms_norm(torch.cat(states), norm, eps=config.rms_norm_eps)
            kernels.of["head"] = larger(None, normed)
        yield LayerRows(before, torch.cat(keys), torch.cat(values), kernels.of)
        advanced(number + 1)
