"""Settled rows as bytes of blocks, and back: the only file that knows both layouts.

One stream per global encoder layer, `kv.N`: in a block, keys then values as codes [2, H, 128, d],
followed on the int8 path by their float16 scales [2, H, 128]. Stream `e_out`: [128, D] in its
stored type. Little-endian, as the CPUs are that this runs on.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ced_kvstore import Stream
from cedagent.engine.buffers import empty_buffers
from cedagent.engine.llama.state import SequenceState
from cedagent.model.config import TILE
from cedagent.model.llama.cache import KvCache
from cedagent.model.llama.ced import LlamaModel

E_OUT = "e_out"


def declared_streams(model: LlamaModel) -> list[Stream]:
    """Return the streams of this model with the bytes of one block in each."""
    config = model.config
    rows = 2 * config.num_key_value_heads * TILE
    kv_bytes = (
        rows * (config.head_dim + 2) if model.precision == "int8" else rows * config.head_dim * 4
    )
    e_out_bytes = TILE * config.hidden_size * model.e_out_dtype.itemsize
    kv = [
        Stream(name=f"kv.{layer}", block_bytes=kv_bytes) for layer in config.encoder_global_layers
    ]
    return [*kv, Stream(name=E_OUT, block_bytes=e_out_bytes)]


def pack(
    model: LlamaModel, state: SequenceState, first_block: int, n_blocks: int
) -> dict[str, Tensor]:
    """Return the settled rows of these blocks as bytes [n_blocks, block_bytes] per stream."""
    buffers = empty_buffers(declared_streams(model), n_blocks)
    for cache, buffer in _kv_buffers(state, buffers):
        for mine, theirs in _views(cache, buffer, first_block):
            theirs.copy_(mine)
    start, stop = first_block * TILE, (first_block + n_blocks) * TILE
    _e_out_view(buffers, state, n_blocks).copy_(
        state.stored_e_out(start, stop).view(n_blocks, TILE, -1)
    )
    return buffers


def unpack(
    state: SequenceState,
    buffers: dict[str, Tensor],
    first_block: int,
    n_blocks: int,
) -> None:
    """Write the first `n_blocks` of the buffers as settled rows from `first_block` on."""
    kept = {name: buffer[:n_blocks] for name, buffer in buffers.items()}
    start, stop = first_block * TILE, (first_block + n_blocks) * TILE
    for cache, buffer in _kv_buffers(state, kept):
        cache.reserve(stop)
        for mine, theirs in _views(cache, buffer, first_block):
            mine.copy_(theirs)
    state.stored_e_out(start, stop).view(n_blocks, TILE, -1).copy_(
        _e_out_view(kept, state, n_blocks)
    )
    state.settled = stop


def _kv_buffers(
    state: SequenceState, buffers: dict[str, Tensor]
) -> Iterator[tuple[KvCache, Tensor]]:
    for layer in state.global_layers:
        yield state.encoder[layer], buffers[f"kv.{layer}"]


def _views(cache: KvCache, buffer: Tensor, first_block: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (rows in the cache, the same rows in the buffer), as equal shapes, per stored part."""
    n_blocks = len(buffer)
    rows = cache.rows(first_block * TILE, (first_block + n_blocks) * TILE)
    used = 0
    for part in (rows.codes, rows.scale):
        if part is None:
            continue
        two, n_heads = part.shape[:2]
        tail = part.shape[3:]
        blocks = part.view(two, n_heads, n_blocks, TILE, *tail).movedim(2, 0)
        size = blocks[0].numel() * part.element_size()
        stored = buffer[:, used : used + size].view(part.dtype)
        yield blocks, stored.view(n_blocks, two, n_heads, TILE, *tail)
        used += size


def _e_out_view(buffers: dict[str, Tensor], state: SequenceState, n_blocks: int) -> Tensor:
    dtype = state.stored_e_out(0, 0).dtype
    return buffers[E_OUT].view(dtype).view(n_blocks, TILE, -1)
