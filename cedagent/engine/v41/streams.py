"""Settled rows as bytes of blocks, and back: the only file that knows both layouts.

Two streams per KV source: `latent.N`, fp4 codes and e4m3 scales, and `index_key.N`, fp4 codes and
power-of-two scales; in a block, the codes of its rows, then their scales. At the released shape
890 bytes per token in all.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ced_kernels.block_codes import INDEX, LATENT, BlockCodes, BlockFormat
from ced_kvstore import Stream
from cedagent.engine.buffers import empty_buffers
from cedagent.engine.v41.state import V41State
from cedagent.model.config import TILE
from cedagent.model.stored_rows import StoredRows
from cedagent.model.v41_config import V41Config


def declared_streams(config: V41Config) -> list[Stream]:
    """Return the streams of this config with the bytes of one block in each."""
    streams = []
    for layer in config.kv_source_layer_ids:
        n_rows = TILE // config.ratio(layer)
        for name, form, width in (
            ("latent", LATENT, config.head_dim),
            ("index_key", INDEX, config.index_head_dim),
        ):
            row_bytes = form.code_bytes(width) + form.scale_bytes(width)
            streams.append(Stream(name=f"{name}.{layer}", block_bytes=n_rows * row_bytes))
    return streams


def pack(config: V41Config, state: V41State, first_block: int, n_blocks: int) -> dict[str, Tensor]:
    """Return the settled rows of these blocks as bytes [n_blocks, block_bytes] per stream."""
    buffers = empty_buffers(declared_streams(config), n_blocks)
    for name, rows, per_block in _stream_rows(state):
        stored = rows.stored(first_block * per_block, (first_block + n_blocks) * per_block)
        parts = _parts(buffers[name], rows.form, rows.width, per_block)
        for part, mine in zip(parts, stored, strict=True):
            part.copy_(mine.view(part.shape))
    return buffers


def unpack(state: V41State, buffers: dict[str, Tensor], first_block: int, n_blocks: int) -> None:
    """Write the first `n_blocks` of the buffers as settled rows from `first_block` on."""
    for name, rows, per_block in _stream_rows(state):
        codes, scales = (
            part.reshape(n_blocks * per_block, -1)
            for part in _parts(buffers[name][:n_blocks], rows.form, rows.width, per_block)
        )
        rows.write(first_block * per_block, BlockCodes(codes, scales))
    state.settled = (first_block + n_blocks) * TILE


def _stream_rows(state: V41State) -> Iterator[tuple[str, StoredRows, int]]:
    """Yield (stream, its rows, rows in a block)."""
    for layer, source in state.sources.items():
        yield f"latent.{layer}", source.latents, TILE // source.ratio
        yield f"index_key.{layer}", source.keys, TILE // source.ratio


def _parts(buffer: Tensor, form: BlockFormat, width: int, n_rows: int) -> tuple[Tensor, Tensor]:
    """Return views of codes and scales, each [n_blocks, n_rows, bytes], in a buffer."""
    n_codes = n_rows * form.code_bytes(width)
    shape = (len(buffer), n_rows, -1)
    # Views: a part of a row of bytes can be split further in place.
    return buffer[:, :n_codes].view(shape), buffer[:, n_codes:].view(shape)
