"""Encoder outputs by absolute position: what a replay starts from.

They are never stored; a re-run of the last tiles makes them again. A row below the first kept one
reads as zero: only an exact replay's masked rows lie there.

Letters: S streams, D hidden.
"""

from __future__ import annotations

import torch

from cedagent.model.encoder import Outputs

_FIRST_CAPACITY = 256


class OutputRows:
    """Rows [base, stop) of streams [S, D] and `pre` [S]."""

    def __init__(self, n_streams: int, hidden: int) -> None:
        """Start empty."""
        self.base = self.stop = 0
        self._streams = torch.zeros(0, n_streams, hidden)
        self._pre = torch.zeros(0, n_streams)

    def write(self, start: int, rows: Outputs) -> None:
        """Write rows from `start` on; an empty run begins there, others have no gap."""
        if self.base == self.stop:
            self.base = self.stop = start
        assert self.base <= start <= self.stop, f"outputs {start} after {self.base} .. {self.stop}"
        stop = start + len(rows.pre)
        self._reserve(stop - self.base)
        kept = slice(start - self.base, stop - self.base)
        self._streams[kept], self._pre[kept] = rows
        self.stop = max(self.stop, stop)

    def rows(self, start: int, stop: int) -> Outputs:
        """Return rows [start, stop), zero below `base`."""
        assert stop <= self.stop, f"outputs to {stop} of {self.base} .. {self.stop}"
        kept = slice(max(start, self.base) - self.base, stop - self.base)
        missing = max(0, self.base - start)
        if not missing:
            return Outputs(self._streams[kept], self._pre[kept])
        return Outputs(
            torch.cat((self._streams.new_zeros(missing, *self._streams.shape[1:]),
                       self._streams[kept])),
            torch.cat((self._pre.new_zeros(missing, self._pre.shape[1]), self._pre[kept])),
        )  # fmt: skip

    def cut(self, stop: int) -> None:
        """Forget rows from `stop` on."""
        self.stop = max(self.base, min(self.stop, stop))

    def drop_before(self, start: int) -> None:
        """Forget rows below `start`."""
        start = min(start, self.stop)
        if start <= self.base:
            return
        kept = slice(start - self.base, self.stop - self.base)
        self._streams, self._pre = self._streams[kept].clone(), self._pre[kept].clone()
        self.base = start

    def _reserve(self, n_rows: int) -> None:
        have = len(self._pre)
        if n_rows <= have:
            return
        capacity = max(n_rows, 2 * have, _FIRST_CAPACITY)
        streams = self._streams.new_zeros(capacity, *self._streams.shape[1:])
        pre = self._pre.new_zeros(capacity, self._pre.shape[1])
        streams[:have], pre[:have] = self._streams, self._pre
        self._streams, self._pre = streams, pre
