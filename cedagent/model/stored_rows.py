"""Rows of one kind by absolute position, as codes and scales (report, quantised cache).

What is read is always what the codes say: live rows and restored ones are the same numbers. The
decoded values are kept beside the codes, since every later tile reads them again.

Letters: C capacity, n rows, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ced_kernels.block_codes import BlockCodes, BlockFormat

_FIRST_CAPACITY = 256


class StoredRows:
    """An append-only run of rows [base, stop) in one block format."""

    def __init__(self, form: BlockFormat, width: int, *, base: int = 0) -> None:
        """Start empty at row `base`."""
        self.form = form
        self.width = width
        self.base = base
        self.stop = base
        self._codes, self._scales, self._values = self._zeros(0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: codes, then scales."""
        return self.form.code_bytes(self.width) + self.form.scale_bytes(self.width)

    def write(self, start: int, rows: BlockCodes) -> None:
        """Write rows from `start` on; rows may be written again, but never with a gap."""
        assert self.base <= start <= self.stop, f"rows {start} after {self.base} .. {self.stop}"
        stop = start + len(rows.codes)
        self._reserve(stop)
        kept = slice(start - self.base, stop - self.base)
        self._codes[kept] = rows.codes
        self._scales[kept] = rows.scales
        self._values[kept] = self.form.decode(rows)
        self.stop = max(self.stop, stop)

    def write_zeros(self, stop: int) -> None:
        """Fill up with rows of zero to `stop`: rows that stand for none, and stay finite."""
        n_rows = stop - self.stop
        codes = torch.zeros(n_rows, self.form.code_bytes(self.width), dtype=torch.uint8)
        scales = torch.zeros(n_rows, self.form.scale_bytes(self.width), dtype=torch.uint8)
        self.write(self.stop, BlockCodes(codes, scales))

    def values(self, start: int, stop: int) -> Tensor:
        """Return rows [stop - start, D] float32, a view."""
        return self._values[self._kept(start, stop)]

    def stored(self, start: int, stop: int) -> BlockCodes:
        """Return the codes and scales of rows [start, stop), views."""
        kept = self._kept(start, stop)
        return BlockCodes(self._codes[kept], self._scales[kept])

    def cut(self, stop: int) -> None:
        """Forget rows from `stop` on."""
        self.stop = max(self.base, min(self.stop, stop))

    def drop_before(self, start: int) -> None:
        """Forget rows below `start`."""
        start = min(start, self.stop)
        if start <= self.base:
            return
        self._move(start, max(self.stop - start, _FIRST_CAPACITY))

    def copy_rows(self, source: StoredRows, start: int, stop: int) -> None:
        """Copy rows [start, stop) of another run; an empty run begins there."""
        if self.base == self.stop:
            self.base = self.stop = start
        self.write(start, source.stored(start, stop))

    def _kept(self, start: int, stop: int) -> slice:
        assert self.base <= start <= stop <= self.stop, (
            f"rows {start} .. {stop} of {self.base} .. {self.stop}"
        )
        return slice(start - self.base, stop - self.base)

    def _reserve(self, stop: int) -> None:
        needed, have = stop - self.base, len(self._codes)
        if needed > have:
            self._move(self.base, max(needed, 2 * have, _FIRST_CAPACITY))

    def _move(self, base: int, capacity: int) -> None:
        """Take new memory for `capacity` rows from `base` on, with what is held of them."""
        made = self._zeros(capacity)
        kept = self._kept(base, self.stop)
        for new, old in zip(made, (self._codes, self._scales, self._values), strict=True):
            new[: self.stop - base] = old[kept]
        # Together and at the end: Ctrl-C on the way must leave the rows that there were.
        self.base, (self._codes, self._scales, self._values) = base, made

    def _zeros(self, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return codes, scales and values; zeros, since unseen rows must be finite, too."""
        width, form = self.width, self.form
        return (
            torch.zeros(capacity, form.code_bytes(width), dtype=torch.uint8),
            torch.zeros(capacity, form.scale_bytes(width), dtype=torch.uint8),
            torch.zeros(capacity, width),
        )
