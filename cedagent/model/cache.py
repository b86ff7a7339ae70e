"""KvCache: keys and values of one layer by absolute position, in their stored type.

What is read is what was stored: int8 codes with one float16 scale per row and head, or float32.
Rows may be written again; capacity grows by doubling and never shows in any result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cedagent.model.config import ModelConfig
from ced_kernels.attention import KeySpan
from ced_kernels.rows import Rows, quantize_rows

_FIRST_CAPACITY = 512


class KvCache:
    """Rows [base, base + capacity) of one layer's keys and values, head-major."""

    def __init__(self, config: ModelConfig, *, int8: bool, base: int = 0) -> None:
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
        codes, scale, kept = self.codes, self.scale, self.capacity
        self._allocate(max(needed, 2 * kept, _FIRST_CAPACITY))
        self.codes[:, :, :kept] = codes
        if self.scale is not None and scale is not None:
            self.scale[:, :, :kept] = scale

    def write(self, start: int, kv: Tensor) -> None:
        """Store keys and values [2, H, T, d] float32 at positions start .. start + T - 1."""
        n_rows = kv.shape[2]
        self.reserve(start + n_rows)
        first = start - self.base
        if self.scale is None:
            self.codes[:, :, first : first + n_rows] = kv
            return
        rows = quantize_rows(kv, scale_dtype=torch.float16)
        assert rows.scale is not None
        self.codes[:, :, first : first + n_rows] = rows.codes
        self.scale[:, :, first : first + n_rows] = rows.scale

    def rows(self, start: int, stop: int) -> Rows:
        """Return a view of keys and values: codes [2, H, n, d], scale [2, H, n] or None."""
        first, last = start - self.base, stop - self.base
        scale = None if self.scale is None else self.scale[:, :, first:last]
        return Rows(self.codes[:, :, first:last], scale)

    def span(self, start: int, stop: int, mask: Tensor | None = None) -> KeySpan:
        """Return positions start .. stop - 1 as keys for `attend`; mask [T, stop - start]."""
        codes, scale = self.rows(start, stop)
        if scale is None:
            return KeySpan(Rows(codes[0], None), Rows(codes[1], None), mask)
        return KeySpan(Rows(codes[0], scale[0]), Rows(codes[1], scale[1]), mask)

    def copy_rows(self, source: KvCache, start: int, stop: int) -> None:
        """Copy positions start .. stop - 1 from another cache of the same layer."""
        self.reserve(stop)
        mine, theirs = self.rows(start, stop), source.rows(start, stop)
        mine.codes.copy_(theirs.codes)
        if mine.scale is not None and theirs.scale is not None:
            mine.scale.copy_(theirs.scale)

    def _allocate(self, capacity: int) -> None:
        two, n_heads, head_dim = self._shape
        # Zeros: an exact replay reads rows before a layer's start, which must be finite.
        dtype = torch.int8 if self.int8 else torch.float32
        self.codes = torch.zeros(two, n_heads, capacity, head_dim, dtype=dtype)
        self.scale = torch.zeros(two, n_heads, capacity, dtype=torch.float16) if self.int8 else None
