"""A KV source's rows: latents and index keys, written as tiles or one token at a time.

These are the settled streams of a V4.1 sequence (report, CSA2: the shared global memory). A re-run
of known tokens never writes them: it compares what it computes with what is stored.

Letters: D hidden, G groups, r ratio.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ced_kernels.block_codes import INDEX, LATENT, BlockCodes
from ced_kernels.ordered.kernel_set import OrderedKernels
from ced_kernels.rope import rotate_pairs
from cedagent.model.compress import Compressor, Ungrouped
from cedagent.model.forward import Forward
from cedagent.model.indexer import IndexKeys
from cedagent.model.release import ReleaseCheckpoint
from cedagent.model.rope import Ropes
from cedagent.model.stored_rows import StoredRows
from cedagent.model.v41_config import V41Config


class SourceRows:
    """The stored rows of one KV source in one sequence."""

    def __init__(self, config: V41Config, *, layer: int) -> None:
        """Start empty."""
        self.ratio = config.ratio(layer)
        self.latents = StoredRows(LATENT, config.head_dim)
        self.keys = StoredRows(INDEX, config.index_head_dim)
        self.pending: Ungrouped | None = None
        """Projections of the last token while its group is incomplete."""


@dataclass(slots=True)
class Comparison:
    """What a re-run found: re-computed rows against stored ones."""

    exact_from: int
    """Positions from here on are computed from complete windows in this layer."""
    differs_at: int | None = None
    """First position whose row is not the stored one."""
    compared: int = field(default=0)
    """Rows compared."""


class Source:
    """Makes a source layer's rows from the layer's normalised input."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        layer: int,
        ropes: Ropes,
        kernels: OrderedKernels,
    ) -> None:
        """Read compressor and key projection of the layer."""
        self.layer = layer
        self._ropes = ropes
        self._compressor = Compressor(checkpoint, config, layer=layer, kernels=kernels)
        self._index_keys = IndexKeys(checkpoint, config, layer=layer, kernels=kernels)

    def tile(self, x: torch.Tensor, rows: Forward, stored: SourceRows, *, n_tokens: int) -> None:
        """Write the rows of a whole tile x [128, D] of a sequence with `n_tokens` tokens."""
        tokens = self._compressor.project(x)
        self._write(tokens, rows.start, stored)
        last, begun = n_tokens - rows.start, n_tokens % stored.ratio
        stored.pending = tokens.part(last - begun, last) if last < rows.n and begun else None

    def row(self, x: torch.Tensor, pos: int, stored: SourceRows) -> None:
        """Take the token at `pos`, x [1, D]; writes a row when its group is complete."""
        tokens = self._compressor.project(x)
        if pos % stored.ratio:
            assert stored.pending is not None
            tokens = tokens.after(stored.pending)
        if (pos + 1) % stored.ratio:
            stored.pending = tokens
            return
        self._write(tokens, pos + 1 - stored.ratio, stored)
        stored.pending = None

    def compare(
        self, x: torch.Tensor, rows: Forward, stored: SourceRows, found: Comparison
    ) -> None:
        """Compare the rows of tile x [128, D] with the stored ones; writes nothing."""
        ratio = stored.ratio
        latents, keys = self._rows(self._compressor.project(x), rows.start, ratio)
        first = max(0, -(-(found.exact_from - rows.start) // ratio))
        base = rows.start // ratio
        n_groups = rows.n // ratio
        found.compared += max(0, n_groups - first)
        for group in range(first, n_groups):
            place = base + group
            if not (
                _same(latents, group, stored.latents.stored(place, place + 1))
                and _same(keys, group, stored.keys.stored(place, place + 1))
            ):
                found.differs_at = place * ratio
                return

    def _write(self, tokens: Ungrouped, start: int, stored: SourceRows) -> None:
        latents, keys = self._rows(tokens, start, stored.ratio)
        stored.latents.write(start // stored.ratio, latents)
        stored.keys.write(start // stored.ratio, keys)

    def _rows(self, tokens: Ungrouped, start: int, ratio: int) -> tuple[BlockCodes, BlockCodes]:
        latents = self._compressor.latents(tokens)
        angles = self._ropes.angles(self.layer, start, len(latents), step=ratio)
        # The key is taken from the latent as it is before it is turned and rounded.
        keys = self._index_keys.keys(latents, angles)
        return LATENT.encode(rotate_pairs(latents, *angles)), keys


def _same(rows: BlockCodes, index: int, stored: BlockCodes) -> bool:
    return torch.equal(rows.codes[index], stored.codes[0]) and torch.equal(
        rows.scales[index], stored.scales[0]
    )
