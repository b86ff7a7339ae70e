"""The store against a dict: whatever is done to it and to its files, no wrong byte and no hole.

The model is a dict from token paths to rows. The store may forget (evict, lose to damage), but what
it returns is what the dict holds, kept blocks keep their path, pins and the path matched last
survive eviction, and the budget holds.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ced_kvstore import Anchor, Store, Stream

STREAMS = (Stream("k", 3000), Stream("e_out", 7001))
BUDGET = 1 << 20

# A path is a tuple of small numbers; number n at depth d stands for one block of ids.
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)
Path_ = tuple[int, ...]


def ids(path: Path_) -> list[int]:
    return [1000 * number + i for number in path for i in range(128)]


def row(path: Path_, stream: Stream) -> bytes:
    mark = repr((path, stream.name)).encode()
    return (mark * (stream.block_bytes // len(mark) + 1))[: stream.block_bytes]


def rows(path: Path_, first: int) -> dict[str, bytes]:
    ends = range(first + 1, len(path) + 1)
    return {s.name: b"".join(row(path[:end], s) for end in ends) for s in STREAMS}


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.directory = self.base / "kv"
        self.known: dict[Path_, dict[str, bytes]] = {}
        self.pinned: set[Path_] = set()
        self.intact, self.was_damaged = True, False
        self.store = self._open()

    def _open(self) -> Store:
        return Store.open(
            self.directory,
            fingerprint={"model": "a"},
            streams=STREAMS,
            max_bytes=BUDGET,
            map_bytes=1 << 17,
        )

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.base)

    def _look(self, path: Path_) -> int:
        match = self.store.match(ids(path))
        buffers = {s.name: bytearray(match.blocks * s.block_bytes) for s in STREAMS}
        good = self.store.read(match, buffers)
        for s in STREAMS:
            for block in range(good):
                found = buffers[s.name][block * s.block_bytes : (block + 1) * s.block_bytes]
                assert found == self.known[path[: block + 1]][s.name]
        if self.intact:
            assert good == match.blocks
        return good

    @rule(path=PATHS, anchor=st.sampled_from([None, "plain", "pinned"]), snapshot=st.booleans())
    def commit(self, path: Path_, anchor: str | None, snapshot: bool) -> None:
        first = self.store.match(ids(path)).blocks
        hashes = self.store.hashes(ids(path))
        # Few pins, or the budget could be all pins.
        is_pinned = anchor == "pinned" and len(self.pinned) < 2
        anchors = [Anchor(hashes[-1], f"s:{path}", pinned=is_pinned)] if anchor else []
        done = self.store.commit(
            ids(path),
            first_block=first,
            rows=rows(path, first),
            anchors=anchors,
            snapshots={hashes[-1]: repr(path).encode() * 50} if snapshot else {},
        )
        for end in range(1, len(path) + 1):
            self.known[path[:end]] = {s.name: row(path[:end], s) for s in STREAMS}
        if self.intact:
            assert done.reason is None
            assert self._look(path) == len(path)
        if is_pinned and done.reason is None:
            self.pinned.add(path)
        found = self.store.read_snapshot(hashes[-1])
        assert found in (None, repr(path).encode() * 50)

    @rule(path=PATHS)
    def look(self, path: Path_) -> None:
        self._look(path)

    @rule(path=PATHS, share=st.floats(0, 1))
    def evict(self, path: Path_, share: float) -> None:
        incoming = self._look(path)
        before = self.store.stats().bytes_on_disk
        freed = self.store.evict(int(before * share))
        assert self.store.stats().bytes_on_disk == before - freed
        if incoming:
            assert self.store.match(ids(path)).blocks >= incoming

    @rule(path=PATHS, purge=st.booleans())
    def remove(self, path: Path_, purge: bool) -> None:
        self.store.remove(f"s:{path}", purge=purge)
        self.pinned.discard(path)
        assert not [a for a in self.store.anchors() if a.label == f"s:{path}"]

    @rule(lose_index=st.booleans())
    def reopen(self, lose_index: bool) -> None:
        self.store.close()
        if lose_index:
            shutil.rmtree(self.directory / "index")
            # A rebuild reads no payloads: damage that was mended before is found again by reading.
            self.intact = self.intact and not self.was_damaged
        self.store = self._open()
        assert self.store.notice is None

    def _segments(self) -> list[Path]:
        return sorted(p for p in (self.directory / "seg").iterdir() if p.stat().st_size)

    @precondition(lambda self: self._segments())
    @rule(data=st.data())
    def corrupt(self, data: Any) -> None:
        segment = data.draw(st.sampled_from(self._segments()))
        raw = bytearray(segment.read_bytes())
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["flip", "zero", "truncate"])):
            case "flip":
                raw[at] ^= 1 << at % 8
            case "zero":
                start = at // 4096 * 4096
                raw[start : start + 4096] = bytes(len(raw[start : start + 4096]))
            case _:
                del raw[at:]
        with segment.open("r+b") as file:
            file.write(raw)
            file.truncate()
        self.intact, self.was_damaged = False, True

    @rule()
    def mend(self) -> None:
        self.store.verify(fix=True)
        assert self.store.verify() == []
        self.intact = True
        # Damage may have taken pins along.
        stored = {a.label for a in self.store.anchors() if a.pinned}
        self.pinned = {path for path in self.pinned if f"s:{path}" in stored}

    @invariant()
    def no_hole_and_within_budget(self) -> None:
        stats = self.store.stats()
        assert stats.notice is None
        assert stats.bytes_on_disk <= BUDGET
        size = sum(p.stat().st_size for p in (self.directory / "seg").iterdir())
        assert size + stats.bytes_index <= BUDGET
        if self.intact:
            assert self.store.verify() == []

    @invariant()
    def pins_survive(self) -> None:
        if self.intact:
            for path in self.pinned:
                assert len(self.store.match(ids(path)).hashes) == len(path)


TestStoreAgainstDict = StoreMachine.TestCase
TestStoreAgainstDict.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
