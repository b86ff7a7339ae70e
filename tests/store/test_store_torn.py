"""Writes that reached the disk in part: a record of any kind that is cut, has zeros or old bytes
from some sector on, or one bit changed, is a miss, and what is mended afterwards is whole."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Anchor, Files
from ced_kvstore.record import ALIGN, HEADER_BYTES, Header, Kind, span

SECTOR = 512
PAYLOAD = 512 + 1003 + 517 + 2049
SPAN = span(PAYLOAD)
STATES = ["closed", "open", "without index"]
ONE_IS_QUICK = [
    state if state == "closed" else pytest.param(state, marks=pytest.mark.slow) for state in STATES
]


class Part:
    """A store that holds records of every kind, and is put back as it was again and again."""

    def __init__(self, kit: Any) -> None:
        self.kit, self.ids = kit, kit.ids(4)
        with kit.open() as store:
            kit.anchored(store, kit.ids(1, seed=9), "gone")
            self.fill(store)
            store.remove("gone")
        (self.segment,) = kit.segments()
        self.raw = self.segment.read_bytes()
        self.pristine = shutil.copytree(kit.directory, kit.directory.with_name("pristine"))

    def fill(self, store: Any) -> Any:
        self.key = store.hashes(self.ids)[-1]
        anchors = [Anchor(self.key, "a"), Anchor(store.root, "b", pinned=True)]
        snapshots = {self.key: b"w" * 4000}
        return self.kit.commit(store, self.ids, anchors=anchors, snapshots=snapshots)

    def record(self, kind: Kind) -> tuple[int, Header]:
        """The last one of a kind, but the third block."""
        found = []
        for offset in range(0, len(self.raw), ALIGN):
            if self.raw[offset : offset + 4] == b"CEDK":
                header = Header.unpack(self.raw[offset : offset + HEADER_BYTES])
                if header.kind == kind and header.position in (0, 256):
                    found.append((offset, header))
        return found[-1]

    def torn(self, raw: bytes, state: str) -> int:
        """Put a segment of these bytes there, see and mend what it did; return the good blocks."""
        kit, directory = self.kit, self.kit.directory
        shutil.rmtree(directory)
        shutil.copytree(self.pristine, directory)
        store = kit.open() if state == "open" else None
        # In place: who has it open reads these bytes, too.
        with self.segment.open("r+b") as file:
            file.write(raw)
            file.truncate()
        if state == "without index":
            shutil.rmtree(directory / "index")
        store = store or kit.open()
        good: int = kit.good_blocks(store, self.ids)
        assert store.read_snapshot(self.key) in (None, b"w" * 4000)
        assert {(a.label, a.pinned) for a in store.anchors()} <= {
            ("a", False), ("b", True), ("gone", False)
        }  # fmt: skip
        self.found = store.verify(fix=True)
        assert state == "without index" or good == 4 or self.found
        assert store.verify() == []
        assert self.fill(store).reason is None
        assert kit.good_blocks(store, self.ids) == 4
        assert store.read_snapshot(self.key) == b"w" * 4000
        assert (store.notice, store.read_only) == (None, False)
        store.close()
        with kit.open() as store:
            assert store.verify() == []
            assert kit.good_blocks(store, self.ids) == 4
        return good


@pytest.fixture
def part(kit: Any) -> Part:
    return Part(kit)


@pytest.mark.parametrize("state", ONE_IS_QUICK)
def test_a_segment_cut_at_any_sector_of_a_record(part: Part, state: str) -> None:
    offset, header = part.record(Kind.BLOCK)
    for cut in range(0, SPAN + 1, SECTOR):
        is_whole = cut >= HEADER_BYTES + header.length
        if state == "closed":
            # Cut within its padding, too: what is appended next would begin inside it.
            is_whole = cut == SPAN
        assert part.torn(part.raw[: offset + cut], state) == 2 + is_whole, cut
        if state == "without index":
            # What is cut is not taken for a record that was damaged later.
            assert bool(part.found) == (is_whole and cut < SPAN)


@pytest.mark.parametrize("state", ONE_IS_QUICK)
@pytest.mark.parametrize("how", ["zeros", "old bytes"])
def test_a_record_of_which_some_sectors_never_came(part: Part, how: str, state: str) -> None:
    offset, header = part.record(Kind.BLOCK)
    old = bytes(SPAN) if how == "zeros" else part.raw[offset - SPAN : offset]
    for cut in range(0, SPAN + 1, SECTOR):
        end = offset + SPAN
        raw = part.raw[: offset + cut] + old[cut:] + part.raw[end:]
        expected = 4 if cut >= HEADER_BYTES + header.length else 2
        assert part.torn(raw, state) == expected, cut


OTHERS = [Kind.SNAPSHOT, Kind.ANCHOR, Kind.FINGERPRINT, Kind.REMOVED]


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_block_costs_no_block(part: Part, kind: Kind, state: str) -> None:
    offset, header = part.record(kind)
    for cut in range(0, span(header.length), SECTOR):
        zeros = bytes(span(header.length) - cut)
        raw = part.raw[: offset + cut] + zeros + part.raw[offset + cut + len(zeros) :]
        assert part.torn(raw, state) == 4, cut


@pytest.mark.slow
@pytest.mark.parametrize("state", ["closed", "without index"])
@pytest.mark.parametrize("kind", [Kind.BLOCK, *OTHERS])
def test_a_flipped_bit_of_any_kind_of_record(part: Part, kind: Kind, state: str) -> None:
    offset, header = part.record(kind)
    last = HEADER_BYTES + header.length - 1
    for at in (*range(0, HEADER_BYTES, 9), 127, 128, 128 + header.length // 2, last):
        raw = bytearray(part.raw)
        raw[offset + at] ^= 1 << at % 8
        assert part.torn(bytes(raw), state) == (2 if kind is Kind.BLOCK else 4), at


@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_half_way(kit: Any, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    kit.fill()
    pristine = shutil.copytree(kit.directory, kit.directory.with_name("pristine"))
    ids = kit.ids(3, seed=1)
    for n_bytes in (0, 1, 100, 4096, SPAN, SPAN + 700, 3 * SPAN - 1):
        shutil.rmtree(kit.directory)
        shutil.copytree(pristine, kit.directory)
        store = kit.open()

        def some(
            files: Files, fd: int, pieces: Sequence[bytes], at: int, n_bytes: int = n_bytes
        ) -> None:
            os.pwrite(fd, b"".join(pieces)[:n_bytes], at)
            raise OSError(kind, os.strerror(kind))

        with monkeypatch.context() as broken:
            broken.setattr(Files, "pwritev", some)
            assert kit.commit(store, ids).reason == "read_only"
        assert store.notice is not None
        assert os.strerror(kind) in store.notice
        assert kit.good_blocks(store, kit.ids(4)) == 4
        store.close()
        # What is whole of it may come back with a new index, and is right.
        for lost in (False, True):
            if lost:
                shutil.rmtree(kit.directory / "index")
            with kit.open() as store:
                assert store.verify() == []
                assert kit.good_blocks(store, kit.ids(4)) == 4
                assert kit.good_blocks(store, ids) == (3 if lost else 0)
                assert kit.commit(store, ids).blocks == (0 if lost else 3)


def test_a_disk_that_is_full_for_the_index(kit: Any) -> None:
    """A limit on the size of files stands for the disk: it stops LMDB's own writes, too."""
    store = kit.open(max_bytes=2 << 20)
    data: Path = kit.directory / "index" / "data.mdb"
    for seed in range(1, 100):
        kit.commit(store, kit.ids(2, seed=seed))
        if data.stat().st_size > 100_000:
            break
    held, before = kit.ids(2, seed=seed), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (data.stat().st_size, before[1]))
    try:
        reasons = [kit.commit(store, kit.ids(2, seed=s)).reason for s in range(100, 200)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert reasons[-1] == "read_only"
    assert store.notice is not None
    assert os.strerror(errno.EFBIG) in store.notice
    assert kit.good_blocks(store, held) == 2
    stored = reasons.index("read_only")
    store.close()
    store = kit.open(max_bytes=2 << 20)
    assert store.verify() == []
    for seed in range(100, 100 + stored):
        assert kit.good_blocks(store, kit.ids(2, seed=seed)) == 2
    assert kit.commit(store, kit.ids(3, seed=999)).blocks == 3
