"""The encoder half: layers 0 .. E-1, run in tiles or one row at a time.

The unit of work is the tile: 128 rows at absolute positions [128k, 128k + 128), always computed
whole. Shapes depend on k alone (tile k sees 128(k + 1) keys), so a tile's rows have the same bits
however the tokens before it came to be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ced_kernels.attention import KeySpan
from cedagent.model.config import TILE
from cedagent.model.llama.cache import KvCache
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.layer import Arithmetic, LlamaLayer
from cedagent.model.llama.rope import Rope
from cedagent.model.llama.weights import Checkpoint

_Spans = Callable[[KvCache], list[KeySpan]]


class Encoder:
    """Layers 0 .. E-1; writes each layer's keys and values, returns E_out."""

    def __init__(
        self, checkpoint: Checkpoint, config: LlamaConfig, *, rope: Rope, arithmetic: Arithmetic
    ) -> None:
        """Read the encoder's layers."""
        self._rope = rope
        self._layers = [
            LlamaLayer(checkpoint, config, layer=layer, arithmetic=arithmetic)
            for layer in range(config.n_encoder_layers)
        ]
        self._zeros = torch.zeros(TILE, dtype=torch.int32)
        self._causal = torch.arange(1, TILE + 1, dtype=torch.int32)

    def tile(self, x: Tensor, caches: Sequence[KvCache], *, tile: int) -> Tensor:
        """Encode tile `tile`: embeddings [128, D] -> E_out [128, D].

        Reads rows below 128 * tile of every cache and writes the tile's own.
        """
        start = TILE * tile

        def spans(cache: KvCache) -> list[KeySpan]:
            diagonal = cache.span(start, start + TILE, self._zeros, self._causal)
            return [cache.span(0, start), diagonal] if start else [diagonal]

        return self._run(x, caches, start, spans)

    def row(self, x: Tensor, caches: Sequence[KvCache], *, pos: int) -> Tensor:
        """Encode the token at `pos`: embedding [1, D] -> E_out [1, D]; writes its rows."""
        return self._run(x, caches, pos, lambda cache: [cache.span(0, pos + 1)])

    def _run(
        self,
        x: Tensor,
        caches: Sequence[KvCache],
        start: int,
        spans: _Spans,
    ) -> Tensor:
        angles = self._rope.angles(start, len(x))
        for layer, cache in zip(self._layers, caches, strict=True):
            x = layer.run(x, angles, cache, partial(spans, cache), start=start)
        return x
