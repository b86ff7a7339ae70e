"""Runs a parent over calibration text and keeps what the regression needs.

One layer at a time over all documents, so that one layer's weights are in use at once. It knows
nothing of what is fitted. Invariant: what a layer's keys and values are is computed by the same
`LlamaLayer` that serves the converted model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ced_kernels.kernel_set import ReferenceKernels
from ced_kernels.rope import rotate
from cedagent.model.cache import KvCache
from cedagent.model.llama import Arithmetic, LlamaLayer
from cedagent.model.rope import Rope
from cedagent.model.weights import Checkpoint
from cedagent.upcycle.source import Parent


class _InMemory(Checkpoint):
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


def layer_rows(
    parent: Parent,
    documents: Sequence[Sequence[int]],
    *,
    first_layer: int,
    advanced: Callable[[int], None],
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (x, k, v) for each layer from `first_layer` on, over all tokens T of all documents.

    x [T, D] is the residual stream before the layer, k and v [T, H * d] the layer's own keys,
    before RoPE, and values. Every document starts at position 0 and sees only itself. `advanced` is
    called with the number of layers done.
    """
    config = parent.config
    weights = _InMemory(parent)
    rope = Rope(config)
    embedding = parent.tensors["model.embed_tokens.weight"]
    states = [embedding[torch.tensor(ids, dtype=torch.int64)] for ids in documents]
    arithmetic = Arithmetic("int_mm", ReferenceKernels(None))
    last_layer = config.num_hidden_layers - 1
    for number in range(last_layer + 1):
        layer = LlamaLayer(weights, config, layer=number, arithmetic=arithmetic)
        before = torch.cat(states) if number >= first_layer else torch.empty(0)
        keys, values = [], []
        for i, x in enumerate(states):
            cos, sin = rope.angles(0, len(x))
            cache = KvCache(config, int8=False)
            q = layer.project(x, (cos, sin), cache, start=0)
            k, v = cache.rows(0, len(x)).codes
            if number >= first_layer:
                # The rotation by the opposite angle gives the keys back as they were projected.
                keys.append(rotate(k, cos, -sin).transpose(0, 1).flatten(1))
                values.append(v.transpose(0, 1).flatten(1))
            if number < last_layer:
                seen_to = torch.arange(1, len(x) + 1, dtype=torch.int32)
                span = cache.span(0, len(x), torch.zeros_like(seen_to), seen_to)
                states[i] = layer.finish(x, q, [span])
        if number >= first_layer:
            yield before, torch.cat(keys), torch.cat(values)
        advanced(number + 1)
