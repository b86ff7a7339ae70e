"""The encoder half: layers 0 .. E-1, run in tiles or one row at a time.

The unit of work is the tile: 128 rows at absolute positions [128k, 128k + 128), always computed
whole. Shapes depend on k alone (in tile k a global layer is given 128(k + 1) keys, a windowed one
whole tiles from where its window reaches), so a tile's rows have the same bits however the tokens
before it came to be known.
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
        self._config = config
        self._rope = rope
        self._layers = [
            LlamaLayer(checkpoint, config, layer=layer, arithmetic=arithmetic)
            for layer in range(config.n_encoder_layers)
        ]
        self._windowed = frozenset(config.encoder_windowed_layers)
        self._row = torch.arange(TILE, dtype=torch.int32)
        self._zeros = torch.zeros_like(self._row)
        self._causal = self._row + 1

    def tile(self, x: Tensor, caches: Sequence[KvCache], *, tile: int) -> Tensor:
        """Encode tile `tile`: embeddings [128, D] -> E_out [128, D].

        Reads rows below 128 * tile of every cache and writes the tile's own. Of a windowed layer
        the last W - 1 are seen; rows before these, from `window_start` on, need only be finite.
        """
        return self._run(x, caches, caches, tile * TILE, *self._tile_spans(tile))

    def rerun(
        self, x: Tensor, caches: Sequence[KvCache], *, tile: int
    ) -> tuple[Tensor, dict[int, KvCache]]:
        """Encode a known tile again: embeddings [128, D] -> E_out [128, D].

        Windowed layers write their rows as in `tile`. A global layer reads its stored rows, those
        of the tile among them, and writes none; what it would have written is returned by layer.
        """
        start = tile * TILE
        made = {
            layer: KvCache(self._config, int8=caches[layer].int8, base=start)
            for layer in self._config.encoder_global_layers
        }
        written = [made.get(layer, cache) for layer, cache in enumerate(caches)]
        return self._run(x, written, caches, start, *self._tile_spans(tile)), made

    def row(self, x: Tensor, caches: Sequence[KvCache], *, pos: int) -> Tensor:
        """Encode the token at `pos`: embedding [1, D] -> E_out [1, D]; writes its rows."""
        first = max(0, pos - self._config.decoder_window + 1)
        return self._run(
            x,
            caches,
            caches,
            pos,
            lambda cache: [cache.span(0, pos + 1)],
            lambda cache: [cache.span(first, pos + 1)],
        )

    def _tile_spans(self, tile: int) -> tuple[_Spans, _Spans]:
        """Return the spans of a global and of a windowed layer; a tile's masks are made once."""
        start, window = tile * TILE, self._config.decoder_window

        def whole(cache: KvCache) -> list[KeySpan]:
            diagonal = cache.span(start, start + TILE, self._zeros, self._causal)
            return [cache.span(0, start), diagonal] if start else [diagonal]

        if not self._windowed:
            return whole, whole
        # The same two spans, the first cut off: in a text of at most W tokens a windowed layer has
        # the bits of a global one.
        first = window_start(start, window=window)
        n_before = start - first
        before_from = (self._row + (n_before - (window - 1))).clamp(0, n_before)
        before_to = torch.full_like(self._row, n_before)
        diagonal_from = (self._row - (window - 1)).clamp(min=0)

        def windowed(cache: KvCache) -> list[KeySpan]:
            diagonal = cache.span(start, start + TILE, diagonal_from, self._causal)
            before = cache.span(first, start, before_from, before_to)
            return [before, diagonal] if n_before else [diagonal]

        return whole, windowed

    def _run(
        self,
        x: Tensor,
        written: Sequence[KvCache],
        read: Sequence[KvCache],
        start: int,
        whole: _Spans,
        windowed: _Spans,
    ) -> Tensor:
        angles = self._rope.angles(start, len(x))
        for i, layer in enumerate(self._layers):
            spans = windowed if i in self._windowed else whole
            x = layer.run(x, angles, written[i], partial(spans, read[i]), start=start)
        return x


def window_start(start: int, *, window: int) -> int:
    """Return where the keys of a windowed layer begin for a tile at `start`: at a tile, too.

    The window reaches back to start - (W - 1). With any other number of keys float32 scores have
    bits that depend on the number of threads (99 keys with 4; torch 2.13, MKL 2024.2).
    """
    return max(0, start - (window - 1)) // TILE * TILE
