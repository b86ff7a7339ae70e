"""Carry out a plan: from memory straight into the caller's buffers, from a disk by way of our own.

What the operating system has in memory is copied once, into place, by the calling thread and, on
idle processors, by helpers. What must come from a disk may take for ever, so other threads read it
into memory of their own and copy it when it is whole. It knows spans and not which records are the
right ones. Invariant: only who holds a gate and finds the pass open touches the caller's buffers;
`run` closes the pass and goes through every gate before it returns or raises.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from ced_kvstore.core import Core
from ced_kvstore.deadline import DEADLINES, start, wait
from ced_kvstore.descriptors import Descriptors
from ced_kvstore.read_plan import HEAD_BYTES, Rows, Span

Check = Callable[[int, bytes, Sequence[memoryview]], bool]
"""Says whether a record's first HEAD_BYTES and its rows are those of a block."""

MOST_HELPERS = 3
HELP_BYTES = 16 << 20
"""Below this a helper would come too late."""

DISK_THREADS = 2
"""More of them get into the way of the system's reading ahead."""


class Restore:
    """One pass over some spans; `good` and `bad` say what became of their blocks.

    A block in neither could not be read, for reasons that say nothing about its record.
    """

    def __init__(self, core: Core, rows: Rows, check: Check, spans: Sequence[Span]) -> None:
        self.good: set[int] = set()
        self.bad: set[int] = set()
        self._core = core
        self._rows = rows
        self._check = check
        self._spans = spans
        self._todo: deque[Span] = deque()
        self._cold: deque[Span] = deque()
        self._gates: list[threading.Lock] = []
        self._closed = threading.Event()

    def run(self) -> None:
        """Read the spans; raises OSError when there can be no thread, or beyond the deadline."""
        segments = Descriptors(self._core, sorted({span.segment for span in self._spans}))
        try:
            for span in self._spans:
                if span.segment in segments.fds:
                    self._todo.append(span)
                elif span.segment in segments.missing:
                    self.bad.update(span.indices)
            self._start_helpers(segments)
            self._read_in_place(segments, self._new_gate())
            self._pass_gates()
            if self._cold:
                self._wait_for_disk(segments)
        finally:
            self._closed.set()
            self._pass_gates()
            segments.leave()

    def _new_gate(self) -> threading.Lock:
        self._gates.append(threading.Lock())
        return self._gates[-1]

    def _pass_gates(self) -> None:
        """Wait for those who are at the caller's buffers; nobody waits for a disk there."""
        for gate in self._gates:
            with gate:
                pass

    def _note(self, index: int, is_good: bool) -> None:
        (self.good if is_good else self.bad).add(index)

    # From memory.

    def _start_helpers(self, segments: Descriptors) -> None:
        records = sum(len(span.indices) for span in self._todo)
        if records * self._rows.stride < HELP_BYTES:
            return
        for _ in range(min(MOST_HELPERS, len(self._todo) - 1, idle_processors())):
            with suppress(OSError):
                start(partial(self._read_in_place, segments, self._new_gate()))

    def _read_in_place(self, segments: Descriptors, gate: threading.Lock) -> None:
        # Nobody waits for a helper that has not begun: it will find nothing left.
        while True:
            with gate:
                if self._closed.is_set():
                    return
                try:
                    span = self._todo.popleft()
                except IndexError:
                    return
                if not self._read_cached(segments.fds[span.segment], span):
                    # Each try makes the system read ahead at its place, which costs the disk more
                    # than a second copy of what is in memory after all.
                    self._cold.append(span)
                    self._leave_to_disk()

    def _leave_to_disk(self) -> None:
        with suppress(IndexError):
            while True:
                self._cold.append(self._todo.popleft())

    def _read_cached(self, fd: int, span: Span) -> bool:
        heads = memoryview(bytearray(HEAD_BYTES * len(span.indices)))
        padding = memoryview(bytearray(self._rows.padding))
        records: list[tuple[int, memoryview, list[memoryview]]] = []
        pieces: list[memoryview] = []
        for i, index in enumerate(span.indices):
            head = heads[i * HEAD_BYTES : (i + 1) * HEAD_BYTES]
            rows = self._rows.pieces(index)
            records.append((index, head, rows))
            pieces += [head, *rows, padding]
        # Nobody needs the last record's padding, and it may have been cut off.
        pieces.pop()
        if not self._core.files.preadv_cached(fd, pieces, span.offset):
            return False
        for index, head, rows in records:
            self._note(index, self._check(index, bytes(head), rows))
        return True

    # From a disk.

    def _wait_for_disk(self, segments: Descriptors) -> None:
        records = [len(span.indices) for span in self._cold]
        seconds = DEADLINES["blocks"].within(sum(records) * self._rows.stride)
        ended: list[threading.Lock] = []
        for _ in range(min(DISK_THREADS, len(self._cold))):
            scratch = memoryview(bytearray(max(records) * self._rows.stride))
            segments.join()
            try:
                ended.append(start(partial(self._read_disk, segments, self._new_gate(), scratch)))
            except OSError:
                segments.leave()
                if not ended:
                    raise
        wait(self._core, ended, seconds)

    def _read_disk(self, segments: Descriptors, gate: threading.Lock, scratch: memoryview) -> None:
        try:
            while not self._closed.is_set():
                try:
                    span = self._cold.popleft()
                except IndexError:
                    return
                whole = scratch[: len(span.indices) * self._rows.stride]
                # What is not read fails the check: the memory holds zeros there, or other blocks.
                with suppress(OSError):
                    self._core.files.preadv(segments.fds[span.segment], [whole], span.offset)
                records = [self._record(whole, i) for i in range(len(span.indices))]
                are_good = list(map(self._is_good, span.indices, records))
                with gate:
                    if self._closed.is_set():
                        return
                    for index, record, is_good in zip(span.indices, records, are_good, strict=True):
                        if is_good:
                            self._rows.fill(index, record[HEAD_BYTES:])
                        self._note(index, is_good)
        finally:
            segments.leave()

    def _record(self, whole: memoryview, number: int) -> memoryview:
        first = number * self._rows.stride
        return whole[first : first + HEAD_BYTES + self._rows.n_bytes]

    def _is_good(self, index: int, record: memoryview) -> bool:
        return self._check(index, bytes(record[:HEAD_BYTES]), [record[HEAD_BYTES:]])


def idle_processors() -> int:
    """Return how many of our processors nobody uses at this moment; 0 where it cannot be told.

    A helper that waits for a processor, perhaps with the interpreter's lock in its hands, would
    make a restore several times slower.
    """
    try:
        fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        running = int(os.read(fd, 100).split()[3].partition(b"/")[0])
    finally:
        os.close(fd)
    return max(0, len(os.sched_getaffinity(0)) - running)
