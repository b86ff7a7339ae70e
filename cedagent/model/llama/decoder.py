"""The decoder half: layers E .. L-1, run as a replay or one row at a time.

A layer's query at position t takes window keys (t - W, t] from its own hidden states and global
keys, projected from E_out, for every earlier position; one softmax over both. A bounded replay runs
its rows as one batch and clips the window at its start. An exact replay runs encode's absolute
tiles, each layer from its own start on, and equals a full one bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from ced_kernels.attention import KeySpan
from cedagent.model.config import TILE
from cedagent.model.llama.cache import KvCache
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.layer import Arithmetic, GlobalProjection, LlamaLayer
from cedagent.model.llama.rope import Rope
from cedagent.model.llama.weights import Checkpoint

_GRAIN = 64
"""Spans that all rows see whole end at multiples of this many keys."""

_ROW_GRAIN = 16
"""More than one replayed row is filled up to a multiple of this many. With other numbers of rows or
keys float32 products have bits that depend on the number of threads (7 rows with 2, 99 keys with 4;
torch 2.13, MKL 2024.2)."""

_Spans = Callable[[KvCache, KvCache], list[KeySpan]]


class Decoder:
    """Layers E .. L-1 with their global projections."""

    def __init__(
        self, checkpoint: Checkpoint, config: LlamaConfig, *, rope: Rope, arithmetic: Arithmetic
    ) -> None:
        """Read the decoder's layers."""
        self._window = config.decoder_window
        self._rope = rope
        layers = range(config.n_encoder_layers, config.num_hidden_layers)
        self._layers = [
            LlamaLayer(checkpoint, config, layer=layer, arithmetic=arithmetic) for layer in layers
        ]
        self._projections = [
            GlobalProjection(checkpoint, config, layer=layer, arithmetic=arithmetic)
            for layer in layers
        ]

    def derive(self, e_out: Tensor, global_caches: Sequence[KvCache], *, start: int) -> None:
        """Write the global rows of every layer for encoder outputs [T, D] from `start` on."""
        angles = self._rope.angles(start, len(e_out))
        for projection, cache in zip(self._projections, global_caches, strict=True):
            projection.write(e_out, angles, cache, start=start)

    def bounded(
        self,
        h: Tensor,
        global_caches: Sequence[KvCache],
        windows: Sequence[KvCache],
        *,
        start: int,
    ) -> Tensor:
        """Replay rows [start, start + n) as one batch: E_out [n, D] -> hidden [n, D].

        The window is clipped at `start`; global keys are those below max(start, t - W + 1).
        """
        n_rows = len(h)
        if n_rows > 1:
            h = pad(h, (0, 0, 0, -n_rows % _ROW_GRAIN))
        stop = start + len(h)
        # A row that fills up sees what the last one sees.
        last = torch.arange(1, len(h) + 1, dtype=torch.int32).clamp(max=n_rows)
        first = (last - self._window).clamp(min=0)
        # Every row sees the global keys below `start`. Within the replayed rows global keys exist
        # only where a row's window ends before it: row r sees those below its window's first.
        whole = start // _GRAIN * _GRAIN
        zeros, global_to = torch.zeros_like(first), first + (start - whole)
        n_masked = -(-int(global_to[-1]) // _GRAIN) * _GRAIN

        def spans(global_cache: KvCache, own: KvCache) -> list[KeySpan]:
            found = [global_cache.span(0, whole)] if whole else []
            if n_masked:
                found.append(global_cache.span(whole, whole + n_masked, zeros, global_to))
            if self._window:
                found.append(own.span(start, stop, first, last))
            return found

        angles = self._rope.angles(start, len(h))
        for i, layer in enumerate(self._layers):
            h = self._layer(h, layer, start, angles, global_caches[i], windows[i], spans)
        return h[:n_rows]

    def tiles(
        self,
        h: Tensor,
        global_caches: Sequence[KvCache],
        windows: Sequence[KvCache],
        *,
        first_tile: int,
        starts: Sequence[int],
    ) -> Tensor:
        """Replay whole tiles from `first_tile` on: E_out [n * 128, D] -> hidden [n * 128, D].

        Layer i runs rows from starts[i] on; rows before it are zero and masked. A full replay has
        all starts 0. Rows past the last token are padding, which no earlier row sees.
        """
        base = TILE * first_tile
        h = h.clone()
        for i, (layer, start) in enumerate(zip(self._layers, starts, strict=True)):
            h[: start - base] = 0
            for tile in range(max(start // TILE, first_tile), first_tile + len(h) // TILE):
                position = TILE * tile
                rows = slice(position - base, position - base + TILE)
                angles = self._rope.angles(position, TILE)
                spans = _TileSpans(position, start, self._window)
                h[rows] = self._layer(
                    h[rows], layer, position, angles, global_caches[i], windows[i], spans
                )
        return h

    def row(
        self,
        h: Tensor,
        global_caches: Sequence[KvCache],
        windows: Sequence[KvCache],
        *,
        pos: int,
    ) -> Tensor:
        """Decode the token at `pos`: E_out [1, D] -> hidden [1, D]."""
        first = max(0, pos - self._window + 1)

        def spans(global_cache: KvCache, own: KvCache) -> list[KeySpan]:
            found = [global_cache.span(0, first)] if first else []
            return [*found, own.span(first, pos + 1)] if self._window else found

        angles = self._rope.angles(pos, 1)
        for i, layer in enumerate(self._layers):
            h = self._layer(h, layer, pos, angles, global_caches[i], windows[i], spans)
        return h

    def _layer(
        self,
        h: Tensor,
        layer: LlamaLayer,
        start: int,
        angles: tuple[Tensor, Tensor],
        global_cache: KvCache,
        own: KvCache,
        spans: _Spans,
    ) -> Tensor:
        seen = partial(spans, global_cache, own)
        return layer.run(h, angles, own if self._window else None, seen, start=start)


class _TileSpans:
    """The keys of tile [position, position + 128): shapes depend on the position alone."""

    def __init__(self, position: int, start: int, window: int) -> None:
        self._stop = position + TILE
        self._window = window
        queries = torch.arange(position, self._stop, dtype=torch.int32)
        # Every row of the tile sees these global keys, so they need no interval.
        self._open = min(position, max(0, position - window + 1) // _GRAIN * _GRAIN)
        self._zeros = torch.zeros_like(queries)
        self._global_to = (queries - window + 1 - self._open).clamp(min=0)
        self._first = max(0, position - (window - 1))
        # A row before the layer's start is not needed; it sees itself, so that it stays finite.
        first = (queries - window + 1).clamp(min=start).minimum(queries)
        self._window_from = first - self._first
        self._window_to = queries + 1 - self._first

    def __call__(self, global_cache: KvCache, own: KvCache) -> list[KeySpan]:
        found = [global_cache.span(0, self._open)] if self._open else []
        found.append(global_cache.span(self._open, self._stop, self._zeros, self._global_to))
        if self._window:
            found.append(own.span(self._first, self._stop, self._window_from, self._window_to))
        return found
