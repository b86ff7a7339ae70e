"""The encoder half: layers 0 .. E-1, and the rows that layer E takes from their output.

A prompt token that is not replayed ends here: of the decoder's source layer only the projections
run (report, CED). The unit of work is the tile, 128 rows at their absolute place, always whole.

Letters: T rows, S streams, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ced_kernels.ordered.kernel_set import OrderedKernels
from cedagent.model.block import Block
from cedagent.model.forward import Forward
from cedagent.model.hyper import first_pre
from cedagent.model.release import ReleaseCheckpoint
from cedagent.model.rope import Ropes
from cedagent.model.source import Comparison, Source, SourceRows
from cedagent.model.stored_rows import StoredRows
from cedagent.model.v41_config import V41Config

_Take = Callable[[Source, Tensor], None]
"""What to do with a source and the input [T, D] that it makes rows from."""


class Outputs(NamedTuple):
    """What the encoder hands over for each token."""

    streams: Tensor
    """[T, S, D]"""
    pre: Tensor
    """[T, S]: how the next sublayer collapses them."""


class EncoderRows(NamedTuple):
    """A sequence's rows that the encoder reads and writes."""

    windows: Sequence[StoredRows]
    """One per encoder layer."""
    sources: Mapping[int, SourceRows]
    """By KV source layer, the decoder's among them."""


class Encoder:
    """Layers 0 .. E-1 and the projections of layer E."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        ropes: Ropes,
        kernels: OrderedKernels,
        decoder_source: Block,
    ) -> None:
        """Read the encoder's layers; `decoder_source` is layer E, of which only `enter` is used."""
        self._n_streams = config.hc_mult
        self._blocks = [
            Block(checkpoint, config, layer=layer, ropes=ropes, kernels=kernels)
            for layer in range(config.n_encoder_layers)
        ]
        self._decoder_source = decoder_source
        self._sources = {
            layer: Source(checkpoint, config, layer=layer, ropes=ropes, kernels=kernels)
            for layer in config.kv_source_layer_ids
        }

    def tile(
        self,
        x: Tensor,
        hashes: Tensor | None,
        rows: Forward,
        kept: EncoderRows,
        *,
        n_tokens: int,
        compare: Mapping[int, Comparison] | None = None,
    ) -> Outputs:
        """Encode embeddings [128, D] of a tile, writing window rows and sources.

        With `compare`, by source layer, known sources are read and compared, not written.
        """

        def take(source: Source, x: Tensor) -> None:
            stored = kept.sources[source.layer]
            if compare is None:
                source.tile(x, rows, stored, n_tokens=n_tokens)
            else:
                source.compare(x, rows, stored, compare[source.layer])

        return self._run(x, hashes, rows, kept, take)

    def row(self, x: Tensor, hashes: Tensor | None, rows: Forward, kept: EncoderRows) -> Outputs:
        """Encode the embedding [1, D] of one token, writing its rows."""

        def take(source: Source, x: Tensor) -> None:
            source.row(x, rows.start, kept.sources[source.layer])

        return self._run(x, hashes, rows, kept, take)

    def _run(
        self, x: Tensor, hashes: Tensor | None, rows: Forward, kept: EncoderRows, take: _Take
    ) -> Outputs:
        streams = x.unsqueeze(1).repeat(1, self._n_streams, 1)
        pre = first_pre(len(x), self._n_streams)
        for block, own in zip(self._blocks, kept.windows, strict=True):
            streams = block.remember(streams, hashes)
            entered = block.enter(streams, pre)
            if block.layer in self._sources:
                take(self._sources[block.layer], entered)
            streams, pre = block.run(streams, entered, rows, own, kept.sources)
        block = self._decoder_source
        take(self._sources[block.layer], block.enter(streams, pre))
        return Outputs(streams, pre)
