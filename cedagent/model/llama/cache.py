"""KvCache: keys and values of one layer by absolute position, in their stored type.

What is read is what was stored: int8 codes with one float16 scale per row and head, or float32.
Rows may be written again, and the first ones forgotten; memory grows by doubling and never shows in
any result.
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
        self.int8 = int8
        self.base = base
        self._shape = (2, config.num_key_value_heads, config.head_dim)
        self._stored = self._zeros(0)

    @property
    def capacity(self) -> int:
        """Rows allocated."""
        return self._stored.codes.shape[2]

    def reserve(self, stop: int) -> None:
        """Make room for positions below `stop`, keeping what is there."""
        needed = stop - self.base
        if needed > self.capacity:
            self._move(self.base, max(needed, 2 * self.capacity, _FIRST_CAPACITY))

    def room(self, start: int, stop: int) -> Rows:
        """Return the whole buffer with room for positions start .. stop - 1, to be written.

        Position p is row p - base of codes [2, H, C, d], scale [2, H, C] or None.
        """
        assert start >= self.base
        self.reserve(stop)
        return self._stored

    def rows(self, start: int, stop: int) -> Rows:
        """Return a view of keys and values: codes [2, H, n, d], scale [2, H, n] or None."""
        return _part(self._stored, self._index(start), self._index(stop))

    def span(
        self, start: int, stop: int, seen_from: Tensor | None = None, seen_to: Tensor | None = None
    ) -> KeySpan:
        """Return positions start .. stop - 1 as keys for attention; intervals count from start."""
        return KeySpan(self._stored, self._index(start), self._index(stop), seen_from, seen_to)

    def drop_before(self, start: int) -> None:
        """Forget rows below `start`, if there are any, and give their memory back."""
        if start > self.base:
            self._move(start, max(self.base + self.capacity - start, _FIRST_CAPACITY))

    def copy_rows(self, source: KvCache, start: int, stop: int) -> None:
        """Copy positions start .. stop - 1 from another cache of the same layer."""
        self.reserve(stop)
        _copy(source.rows(start, stop), self.rows(start, stop))

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

    def _move(self, base: int, capacity: int) -> None:
        """Take new memory for rows from `base` on, with what is held of them."""
        made = self._zeros(capacity)
        stop = max(base, self.base + self.capacity)
        if base < stop:
            _copy(self.rows(base, stop), _part(made, 0, stop - base))
        # Together and at the end: Ctrl-C on the way must leave the rows that there were.
        self.base, self._stored = base, made

    def _index(self, pos: int) -> int:
        """Return the row of a position."""
        row = pos - self.base
        assert 0 <= row <= self.capacity, f"position {pos} of {self.capacity} from {self.base} on"
        return row

    def _zeros(self, capacity: int) -> Rows:
        # Zeros: an exact replay reads rows before a layer's start, which must be finite.
        two, n_heads, head_dim = self._shape
        if not self.int8:
            return Rows(torch.zeros(two, n_heads, capacity, head_dim), None)
        codes = torch.zeros(two, n_heads, capacity, head_dim, dtype=torch.int8)
        return Rows(codes, torch.zeros(two, n_heads, capacity, dtype=torch.float16))


def bits(values: Tensor) -> Tensor:
    """Return the bits of stored values as integers of the same shape."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    return values.view(kinds[values.element_size()])


def _part(rows: Rows, first: int, last: int) -> Rows:
    scale = None if rows.scale is None else rows.scale[:, :, first:last]
    return Rows(rows.codes[:, :, first:last], scale)


def _copy(source: Rows, to: Rows) -> None:
    to.codes.copy_(source.codes)
    if to.scale is not None and source.scale is not None:
        to.scale.copy_(source.scale)
