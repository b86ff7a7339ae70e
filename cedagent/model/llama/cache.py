"""KvCache: keys and values of one layer by absolute position, in their stored type.

What is read is what was stored: int8 codes with one float16 scale per row and head, or float32.
Rows may be written again, and forgotten from either end; capacity grows by doubling and never shows
in any result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ced_kernels.attention import KeySpan
from ced_kernels.rows import Rows
from cedagent.model.llama.config import LlamaConfig

_FIRST_CAPACITY = 512


class KvCache:
    """Rows [base, base + capacity) of one layer's keys and values, head-major."""

    def __init__(self, config: LlamaConfig, *, int8: bool, base: int = 0) -> None:
        """Start empty; `base` is the first position that will ever be written."""
        self.base = base
        self._shape = (2, config.num_key_value_heads, config.head_dim)
        self.int8 = int8
        self.codes = torch.zeros(0)
        self.scale: Tensor | None = None
        self._allocate(0)

    @property
    def capacity(self) -> int:
        """Rows allocated."""
        return self.codes.shape[2]

    def reserve(self, stop: int) -> None:
        """Make room for positions below `stop`, keeping what is there."""
        needed = stop - self.base
        if needed <= self.capacity:
            return
        codes, scale = self.codes, self.scale
        self._allocate(max(needed, 2 * self.capacity, _FIRST_CAPACITY))
        self._overwrite(codes, scale)

    def room(self, start: int, stop: int) -> Rows:
        """Return the whole buffer with room for positions start .. stop - 1, to be written.

        Position p is row p - base of codes [2, H, C, d], scale [2, H, C] or None.
        """
        assert start >= self.base
        self.reserve(stop)
        return Rows(self.codes, self.scale)

    def rows(self, start: int, stop: int) -> Rows:
        """Return a view of keys and values: codes [2, H, n, d], scale [2, H, n] or None."""
        first, last = start - self.base, stop - self.base
        scale = None if self.scale is None else self.scale[:, :, first:last]
        return Rows(self.codes[:, :, first:last], scale)

    def span(
        self, start: int, stop: int, seen_from: Tensor | None = None, seen_to: Tensor | None = None
    ) -> KeySpan:
        """Return positions start .. stop - 1 as keys for attention; intervals count from start."""
        assert self.base <= start <= stop <= self.base + self.capacity
        rows = Rows(self.codes, self.scale)
        return KeySpan(rows, start - self.base, stop - self.base, seen_from, seen_to)

    def keep(self, start: int, stop: int) -> None:
        """Forget rows below `start`, if there are any, and then those from `stop` on with them."""
        if start <= self.base:
            return
        n_rows = max(0, min(stop, self.base + self.capacity) - start)
        codes, scale = self.rows(start, start + n_rows)
        # New memory: this may be called where the old cannot be written in place.
        self._allocate(max(n_rows, _FIRST_CAPACITY))
        self.base = start
        self._overwrite(codes, scale)

    def differs_at(self, other: KvCache, start: int, stop: int) -> int | None:
        """Return the first of positions start .. stop - 1 whose bits are not those of `other`.

        None where all are the same.
        """
        found = []
        for mine, theirs in zip(self.rows(start, stop), other.rows(start, stop), strict=True):
            if mine is not None and theirs is not None:
                differs = (bits(mine) != bits(theirs)).transpose(0, 2).flatten(1).any(1)
                found += differs.nonzero()[:1].flatten().tolist()
        return start + min(found) if found else None

    def copy_rows(self, source: KvCache, start: int, stop: int) -> None:
        """Copy positions start .. stop - 1 from another cache of the same layer."""
        self.reserve(stop)
        mine, theirs = self.rows(start, stop), source.rows(start, stop)
        mine.codes.copy_(theirs.codes)
        if mine.scale is not None and theirs.scale is not None:
            mine.scale.copy_(theirs.scale)

    def _overwrite(self, codes: Tensor, scale: Tensor | None) -> None:
        n_rows = codes.shape[2]
        self.codes[:, :, :n_rows] = codes
        if self.scale is not None and scale is not None:
            self.scale[:, :, :n_rows] = scale

    def _allocate(self, capacity: int) -> None:
        two, n_heads, head_dim = self._shape
        # Zeros: an exact replay reads rows before a layer's start, which must be finite.
        dtype = torch.int8 if self.int8 else torch.float32
        self.codes = torch.zeros(two, n_heads, capacity, head_dim, dtype=dtype)
        self.scale = torch.zeros(two, n_heads, capacity, dtype=torch.float16) if self.int8 else None


def bits(values: Tensor) -> Tensor:
    """Return the bits of stored values as integers of the same shape."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    return values.view(kinds[values.element_size()])
