"""Blocks of settled rows as bytes in RAM: what a family packs and the store reads and writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from ced_kvstore import Stream


def empty_buffers(streams: Iterable[Stream], n_blocks: int) -> dict[str, Tensor]:
    """Return one uint8 buffer [n_blocks, block_bytes] per stream."""
    return {
        stream.name: torch.empty(n_blocks, stream.block_bytes, dtype=torch.uint8)
        for stream in streams
    }


def raw(buffer: Tensor) -> memoryview:
    """Return the bytes of a contiguous buffer, writable, without a copy."""
    # numpy's arrays are buffers; its annotations say so only from Python 3.12 on.
    return memoryview(cast(Any, buffer.numpy()))
