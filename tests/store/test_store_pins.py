"""Pins: what a live process uses stays, whoever makes room; what a dead one used does not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_race import hold

from ced_kvstore import Files
from ced_kvstore.drop import UNREADABLE
from ced_kvstore.pins import parse


def pin_files(kit: Any) -> list[Path]:
    return sorted((kit.directory / "pins").iterdir())


def test_a_pinned_path_stays_until_it_is_unpinned(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(4))
    kit.commit(store, kit.ids(3, seed=1))
    key = store.hashes(kit.ids(4))[2]
    store.pin(key)
    store.pin(key)
    store.match(kit.ids(3, seed=1))
    store.evict(0)
    assert kit.good_blocks(store, kit.ids(4)) == 3
    store.match(kit.ids(3, seed=1))
    store.unpin(key)
    store.evict(0)
    assert store.match(kit.ids(4)).blocks == 3
    store.match(kit.ids(3, seed=1))
    store.unpin(key)
    store.evict(0)
    assert store.match(kit.ids(4)).blocks == 0
    assert store.match(kit.ids(3, seed=1)).blocks == 3


@pytest.mark.parametrize("key", [b"short", b"", "x" * 32, None, bytearray(32)])
def test_what_is_no_hash_is_not_pinned(kit: Any, key: Any) -> None:
    store, ids = kit.open(), kit.ids(2)
    kit.commit(store, ids)
    for door in (store.pin, store.unpin, store.read_snapshot, lambda key: store.quarantine([key])):
        with pytest.raises(ValueError, match="expected 32 bytes"):
            door(key)
    assert store.match(ids).blocks == 2
    assert [parse(path.read_bytes()) for path in pin_files(kit)] == [{store.hashes(ids)[1]}]
    assert store.notice is None


def test_the_path_that_a_commit_goes_on_from_stays(kit: Any) -> None:
    """Also when another session of the process was the last to match."""
    store = kit.open(max_bytes=1 << 20)
    ids, other = kit.ids(12), kit.ids(30, seed=1)
    kit.commit(store, ids[: 10 * 128])
    kit.anchored(store, other, "other")
    store.match(other)
    for seed in range(2, 6):
        kit.anchored(store, kit.ids(10, seed=seed), f"session:{seed}")
    before = store.stats().blocks_evicted
    done = kit.commit(store, kit.ids(40), first_block=10)
    assert store.stats().blocks_evicted > before
    assert (done.blocks, done.reason) == (30, None)
    assert kit.good_blocks(store, kit.ids(40)) == 40


def test_what_a_live_process_uses_stays_and_what_a_dead_one_used_goes(kit: Any, peer: Any) -> None:
    store, other = kit.open(), peer()
    other("store = kit.open()")
    pinned, matched, rest = kit.ids(3), kit.ids(2, seed=1), kit.ids(2, seed=2)
    for ids in (pinned, matched, rest):
        kit.commit(store, ids)
    other("store.pin(store.hashes(kit.ids(3))[1])")
    other("store.match(kit.ids(2, seed=1)).blocks")
    assert [parse(path.read_bytes()) for path in pin_files(kit)] == [
        {store.hashes(pinned)[1], store.hashes(matched)[1]}
    ]
    store.evict(0)
    assert store.stats().blocks == 4
    assert store.gc().blocks == 0
    assert store.remove(store.hashes(pinned)[0]).reason == "another process is using it (2 blocks)"
    assert other("kit.good_blocks(store, kit.ids(3))") == 2
    assert other("kit.good_blocks(store, kit.ids(2, seed=1))") == 2
    other.kill()
    assert len(pin_files(kit)) == 1
    assert store.gc().blocks == 4
    assert pin_files(kit) == []
    assert store.stats().blocks == 0


@pytest.mark.slow
def test_a_removal_drops_the_anchors_and_leaves_what_is_in_use(kit: Any, peer: Any) -> None:
    store, other = kit.open(), peer()
    other("store = kit.open()")
    kit.anchored(store, kit.ids(5), "session:a")
    other("store.match(kit.ids(2)).blocks")
    done = store.remove("session:a", purge=True)
    assert (done.anchors, done.blocks) == (1, 3)
    assert done.reason == "2 blocks stay: another process is using them"
    assert other("kit.good_blocks(store, kit.ids(5))") == 2
    other("store.close()")
    assert store.gc().blocks == 2


def test_a_closed_store_leaves_no_pin_file(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2))
    assert pin_files(kit) == []
    store.match(kit.ids(2))
    store.pin(store.root)
    assert len(pin_files(kit)) == 1
    store.close()
    assert pin_files(kit) == []


def test_a_round_is_left_out_when_a_pin_file_is_not_whole(kit: Any) -> None:
    store = kit.open(max_bytes=1 << 20)
    kit.commit(store, kit.ids(20))
    torn = kit.directory / "pins" / "0123.pin"
    torn.write_bytes(b"CEDP\1\0\0\0 half of it")
    fd = hold(torn)
    assert store.evict(0) == 0
    assert store.remove(store.hashes(kit.ids(1))[0]).reason == UNREADABLE
    assert store.gc().reason == UNREADABLE
    done = kit.commit(store, kit.ids(150, seed=1))
    assert 0 < done.blocks < 150
    assert done.reason == UNREADABLE
    assert kit.good_blocks(store, kit.ids(20)) == 20
    assert store.notice is None
    # Its process has died.
    os.close(fd)
    assert store.gc().blocks > 0
    assert not torn.exists()


def test_a_round_is_left_out_when_a_pin_file_may_not_be_read(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another user's, who needs what it names."""
    store = kit.open()
    kit.commit(store, kit.ids(2))
    (kit.directory / "pins" / "0123.pin").touch()
    plain = Files.open

    def forbidden(files: Files, path: Path, **options: bool) -> int:
        if path.suffix == ".pin":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return plain(files, path, **options)

    monkeypatch.setattr(Files, "open", forbidden)
    assert store.gc().reason == UNREADABLE
    assert store.evict(0) == 0
    assert store.stats().blocks == 2
    assert (store.notice, store.read_only) == (None, False)


def test_a_pin_file_that_fails_half_way_hinders_nobody(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2))
    store.match(kit.ids(2))
    (path,) = pin_files(kit)

    def torn(files: Files, fd: int, pieces: Any, offset: int) -> None:
        os.pwrite(fd, pieces[0][:20], offset)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Files, "pwritev", torn)
        store.pin(store.root)
    assert not path.exists()
    assert store.notice is None


def test_foreign_files_among_the_pins_do_not_matter(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2))
    (kit.directory / "pins" / "notes.txt").write_text("mine")
    (kit.directory / "pins" / "odd.pin").mkdir()
    assert store.gc().blocks == 2
    assert (store.notice, (kit.directory / "pins" / "notes.txt").exists()) == (None, True)


@pytest.mark.parametrize("method", ["create", "pwritev", "lock"])
def test_a_pin_that_cannot_be_written_is_no_trouble(
    kit: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2))
    kit.commit(store, kit.ids(2, seed=1))

    def full(*args: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Files, method, full)
        store.pin(store.hashes(kit.ids(2))[1])
        assert store.match(kit.ids(2, seed=1)).blocks == 2
    assert (store.notice, store.read_only) == (None, False)
    # This process knows them all the same.
    store.evict(0)
    assert store.match(kit.ids(2)).blocks == 2


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda raw: b"CEDP\1\0\0\0" + raw))
def test_no_bytes_are_pins_by_accident(raw: bytes) -> None:
    assert parse(raw) is None
