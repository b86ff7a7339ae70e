"""What one restore reads: which records together, and where their rows go.

Knows places, sizes and the caller's buffers; reads nothing. Invariant: every record that has the
length its streams say is in exactly one span, and spans come in the order of the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ced_kvstore.files import IOV_MAX
from ced_kvstore.hashing import IDS_BYTES
from ced_kvstore.record import HEADER_BYTES, Place, span
from ced_kvstore.results import Stream

BATCH_BYTES = 2 << 20
"""Most bytes of one preadv: large enough that the call costs nothing, small enough that the
checksum finds them in the processor's cache and that threads can share a restore."""

HEAD_BYTES = HEADER_BYTES + IDS_BYTES
"""What lies before the rows of a block's record."""


@dataclass(frozen=True, slots=True)
class Span:
    """Records that lie one behind the other, read with one call."""

    segment: int
    offset: int
    indices: tuple[int, ...]
    """Which blocks they are, in the order of the disk, counted from the first block to read."""


class Rows:
    """The caller's buffers, block by block."""

    def __init__(self, streams: Sequence[Stream], buffers: Mapping[str, memoryview]) -> None:
        self._sinks = [(buffers.get(stream.name), stream.block_bytes) for stream in streams]
        self.n_bytes = sum(stream.block_bytes for stream in streams)
        """Bytes of one block's rows."""
        self.stride = span(IDS_BYTES + self.n_bytes)
        """Bytes from one record to the next."""
        self.padding = self.stride - HEAD_BYTES - self.n_bytes
        self._most = max(1, min(BATCH_BYTES // self.stride, IOV_MAX // (len(streams) + 2)))

    def plan(self, places: Mapping[int, Place], *, alone: bool = False) -> list[Span]:
        """Return the spans to read; neighbours are read together unless `alone`.

        A place of another length is left out: no record of these streams is there.
        """
        most = 1 if alone else self._most
        runs: list[list[int]] = []
        before: Place | None = None
        for index, place in sorted(places.items(), key=_on_disk):
            if place.length != IDS_BYTES + self.n_bytes:
                continue
            follows = before and (before.segment, before.end) == (place.segment, place.offset)
            if follows and len(runs[-1]) < most:
                runs[-1].append(index)
            else:
                runs.append([index])
            before = place
        return [Span(places[run[0]].segment, places[run[0]].offset, tuple(run)) for run in runs]

    def pieces(self, index: int) -> list[memoryview]:
        """Return the memory of one block's rows, stream by stream.

        A stream that nobody asked for is read all the same: the checksum covers all of them.
        """
        return [
            memoryview(bytearray(size))
            if buffer is None
            else buffer[index * size : index * size + size]
            for buffer, size in self._sinks
        ]

    def fill(self, index: int, rows: memoryview) -> None:
        """Copy one block's rows, as they lie in its record, to where they belong."""
        offset = 0
        for buffer, size in self._sinks:
            if buffer is not None:
                buffer[index * size : index * size + size] = rows[offset : offset + size]
            offset += size

    def release(self) -> None:
        """Let go of the buffers: a thread that is still waiting must not keep them alive."""
        self._sinks.clear()


def _on_disk(item: tuple[int, Place]) -> tuple[int, int]:
    return item[1].segment, item[1].offset
