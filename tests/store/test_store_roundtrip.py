"""What was committed comes back, byte for byte, for exactly the ids it was committed under."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ced_kvstore import Anchor, Store, Stream


@pytest.mark.parametrize("extra", [0, 1, 127])
@pytest.mark.parametrize("n_blocks", [1, 2, 3, 80])
def test_only_whole_blocks_match_and_read_back(kit: Any, n_blocks: int, extra: int) -> None:
    store = kit.open()
    ids = kit.ids(n_blocks)
    done = kit.commit(store, ids)
    assert (done.blocks, done.skipped, done.reason) == (n_blocks, 0, None)
    match = store.match(ids + list(range(extra)))
    assert (match.blocks, match.position, match.reason) == (n_blocks, n_blocks * 128, "hit")
    assert match.hashes == store.hashes(ids)
    assert kit.good_blocks(store, ids) == n_blocks


@pytest.mark.parametrize("n", [0, 1, 127])
def test_fewer_ids_than_a_block_are_short(kit: Any, n: int) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(1))
    match = store.match(kit.ids(1)[:n])
    assert (match.blocks, match.reason) == (0, "short")
    assert store.read(match, {}) == 0


def test_a_match_survives_a_restart(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(5))
    store.close()
    assert kit.good_blocks(kit.open(), kit.ids(5)) == 5


@pytest.mark.parametrize("at", [0, 1, 127, 128, 300, 639])
def test_one_other_id_is_a_miss_from_its_block_on(kit: Any, at: int) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(5))
    other = kit.ids(5)
    other[at] += 1
    match = store.match(other)
    assert (match.blocks, match.reason) == (at // 128, "diverged")


def test_any_u32_is_an_id_and_nothing_else(kit: Any) -> None:
    store = kit.open()
    ids = [0, 2**32 - 1] * 64
    kit.commit(store, ids)
    assert kit.good_blocks(store, ids) == 1
    for wrong in (-1, 2**32, 1.5):
        with pytest.raises(ValueError, match="token ids"):
            store.match([wrong] * 128)


def test_numpy_ids_and_buffers_serve_as_well(kit: Any) -> None:
    numpy = pytest.importorskip("numpy")
    store = kit.open()
    ids = kit.ids(3)
    kit.commit(store, ids)
    match = store.match(numpy.array(ids))
    buffers = {s.name: numpy.zeros((3, s.block_bytes), numpy.int8) for s in kit.streams}
    assert store.read(match, buffers) == 3
    assert buffers["k"].tobytes() == kit.rows(ids)["k"]


def test_a_part_of_a_match_can_be_read(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(7)
    kit.commit(store, ids)
    match = store.match(ids)
    buffers = {s.name: bytearray(3 * s.block_bytes) for s in kit.streams}
    assert store.read(match, buffers, first_block=2, n_blocks=3) == 3
    for s in kit.streams:
        whole = kit.rows(ids)[s.name]
        assert buffers[s.name] == whole[2 * s.block_bytes : 5 * s.block_bytes]
    with pytest.raises(ValueError, match="not within"):
        store.read(match, buffers, first_block=5, n_blocks=3)


def test_a_stream_without_a_buffer_is_checked_and_dropped(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(4)
    kit.commit(store, ids)
    buffer = bytearray(4 * 2049)
    assert store.read(store.match(ids), {"e_out": buffer}) == 4
    assert buffer == kit.rows(ids)["e_out"]


def test_wrong_buffers_and_arguments_are_refused(kit: Any) -> None:
    store = kit.open()
    ids = kit.ids(2)
    kit.commit(store, ids)
    match = store.match(ids)
    with pytest.raises(ValueError, match="expected 2006 bytes"):
        store.read(match, {"k": bytearray(2005)})
    with pytest.raises(ValueError, match="read-only"):
        store.read(match, {"k": bytes(2006)})
    with pytest.raises(ValueError, match="unknown streams"):
        store.read(match, {"q": bytearray(2006)})
    with pytest.raises(ValueError, match="multiple of 128"):
        kit.commit(store, ids[:-1])
    with pytest.raises(ValueError, match="missing"):
        store.commit(ids, first_block=0, rows={"k": bytes(2006)})
    with pytest.raises(ValueError, match="32 bytes"):
        store.commit(ids, first_block=2, rows={}, anchors=[Anchor(b"short", "x")])
    with pytest.raises(ValueError, match="name of its own"):
        kit.open(streams=[Stream("a", 1), Stream("a", 2)])
    with pytest.raises(TypeError):
        store.evict("half of it")
    with pytest.raises(ValueError, match="max_bytes"):
        kit.open(max_bytes=-1)
    with pytest.raises(TypeError, match=r"float\.hex"):
        kit.open(fingerprint={"rope_theta": 1.5})
    assert (store.notice, store.read_only) == (None, False)


def test_blocks_that_are_there_are_skipped(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(3))
    before = kit.bytes_on_disk()
    done = kit.commit(store, kit.ids(3))
    assert (done.blocks, done.skipped, done.reason) == (0, 3, None)
    assert kit.bytes_on_disk() == before
    done = kit.commit(store, kit.ids(5), first_block=2)
    assert (done.blocks, done.skipped) == (2, 1)
    assert kit.good_blocks(store, kit.ids(5)) == 5


def test_a_block_without_its_path_is_refused(kit: Any) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(2))
    done = kit.commit(store, kit.ids(4), first_block=3)
    assert done.blocks == 0
    assert "not stored" in done.reason
    assert store.match(kit.ids(4)).blocks == 2


def test_forks_share_their_path(kit: Any) -> None:
    store = kit.open()
    base = kit.ids(3)
    left, right = base + kit.ids(1, seed=5), base + kit.ids(2, seed=6)
    kit.commit(store, left)
    assert kit.commit(store, right).skipped == 3
    assert kit.good_blocks(store, left) == 4
    assert kit.good_blocks(store, right) == 5
    assert store.stats().blocks == 6


def test_two_handles_in_one_process_share_one_store(kit: Any) -> None:
    one, two = kit.open(), kit.open()
    other = kit.open(fingerprint={"family": "another"})
    kit.commit(one, kit.ids(2))
    assert kit.good_blocks(two, kit.ids(2)) == 2
    assert other.match(kit.ids(2)).blocks == 0
    kit.commit(other, kit.ids(1))
    one.close()
    one.close()
    assert kit.good_blocks(two, kit.ids(2)) == 2
    assert kit.commit(two, kit.ids(3), first_block=2).blocks == 1
    two.close()
    other.close()
    assert one.match(kit.ids(2)).reason == "disabled"
    assert kit.commit(one, kit.ids(2)).reason == "disabled"
    assert kit.good_blocks(kit.open(), kit.ids(3)) == 3


def test_threads_match_and_read_while_one_commits(kit: Any) -> None:
    store = kit.open(map_bytes=1 << 18)
    kit.commit(store, kit.ids(6))
    stop, faults = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            try:
                if kit.good_blocks(store, kit.ids(6)) != 6:
                    faults.append("blocks went missing")
            except Exception as error:
                faults.append(repr(error))
                return

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for seed in range(1, 12):
        assert kit.commit(store, kit.ids(20, seed=seed)).reason is None
    stop.set()
    for thread in threads:
        thread.join()
    assert not faults


def test_the_index_map_grows(kit: Any) -> None:
    store = kit.open(map_bytes=1 << 17)
    for seed in range(1, 6):
        assert kit.commit(store, kit.ids(60, seed=seed)).blocks == 60
    assert store.stats().bytes_index > 1 << 17
    assert all(kit.good_blocks(store, kit.ids(60, seed=seed)) == 60 for seed in range(1, 6))
    assert store.verify() == []


def test_stats_count(kit: Any) -> None:
    with Store.open(kit.directory, fingerprint={}, streams=kit.streams, max_bytes=10**8) as store:
        store.match(kit.ids(1))
        kit.commit(store, kit.ids(2))
        kit.good_blocks(store, kit.ids(3)[:300])
        stats = store.stats()
    assert (stats.lookups, stats.hits, stats.blocks_matched) == (2, 1, 2)
    assert (stats.blocks, stats.blocks_read, stats.blocks_written) == (2, 2, 2)
    assert stats.reasons == {"never_stored": 1, "hit": 1}
    assert stats.max_bytes == 10**8
    assert stats.bytes_on_disk == stats.bytes_index + 5 * 4096
