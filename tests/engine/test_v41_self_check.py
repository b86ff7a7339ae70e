"""V4.1: rows run again are compared with the stored ones on every restore, and a wrong one found.

Wrong rows are committed as a store would take right ones, with a checksum that fits: only the
model can tell. The answer is a cold run's, one line says so, and the store is mended.
"""

import itertools

import pytest
import torch
from v41_runs import (
    answer,
    cold,
    publish,
    slow,
    some_ids,
    with_store,
    write_small,
    write_wide,
)

from ced_kvstore import Anchor
from cedagent.engine.buffers import empty_buffers, raw
from cedagent.model.source import Source

IDS = some_ids(390)
SUFFIX = some_ids(20, seed=1)
LAST = 2
"""The block [256, 384): a restore of IDS runs it again, from a snapshot at 256."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """W = 100, so that empty windows would begin further back than the snapshot."""
    return write_wide(tmp_path_factory.mktemp("w100") / "model", n_encoder_layers=4)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("w16") / "model")


@pytest.fixture(scope="module")
def expected(model):
    return cold(model, IDS + SUFFIX)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """What a store of IDS should hold: {stream: [3, block bytes]}, {position: snapshot}."""
    kv = tmp_path_factory.mktemp("whole") / "kv"
    publish(model, kv, IDS)
    return read_all(model, kv)


def read_all(model, kv):
    engine = with_store(model, kv)
    store, match = engine.store, engine.store.match(IDS)
    assert (match.blocks, match.reason) == (3, "hit")
    rows = empty_buffers(engine.family.streams(), match.blocks)
    assert store.read(match, {name: raw(part) for name, part in rows.items()}) == match.blocks
    snapshots = {p: store.read_snapshot(match.block_hash(p)) for p in match.snapshots}
    engine.close()
    return rows, snapshots


def forge(model, kv, rows, snapshots):
    """Commit blocks and snapshots as they are given, right or wrong."""
    engine = with_store(model, kv)
    path = IDS[: LAST * 128 + 128]
    hashes = engine.store.hashes(path)
    commit = engine.store.commit(
        path,
        first_block=0,
        rows={name: raw(part) for name, part in rows.items()},
        anchors=[Anchor(hashes[-1], "forged")],
        snapshots={hashes[p // 128 - 1]: data for p, data in snapshots.items()},
    )
    assert (commit.blocks, commit.reason) == (3, None)
    engine.close()


def expect_mended(model, kv, whole, expected):
    """The first restore says that it does not trust the store; the second has nothing to say."""
    engine = with_store(model, kv)
    got, usage = answer(engine, IDS, SUFFIX)
    assert got == expected
    assert usage.reused_disk == usage.reused_ram == 0
    assert usage.encoded == 410
    (notice,) = engine.notices
    assert "are not what the model computes" in notice
    assert engine.store.stats().blocks_bad > 0
    engine.close()
    again = with_store(model, kv)
    got, usage = answer(again, IDS, SUFFIX)
    assert (got, usage.reused_disk, usage.rerun) == (expected, 384, 128)
    assert again.notices == []
    again.close()
    rows, snapshots = read_all(model, kv)
    assert all(torch.equal(rows[name], whole[0][name]) for name in rows)
    assert snapshots == whole[1]


def test_what_was_read_is_a_clean_hit(model, tmp_path, whole, expected):
    assert list(whole[1]) == [256]
    forge(model, tmp_path / "kv", *whole)
    engine = with_store(model, tmp_path / "kv")
    got, usage = answer(engine, IDS, SUFFIX)
    assert (got, usage.reused_disk, usage.rerun) == (expected, 384, 128)
    assert engine.notices == []
    engine.close()


STREAMS = ("latent.2", "index_key.2", "latent.4", "index_key.4")


PLACES = ("first byte", "a scale", "last byte")
QUICK = [("latent.2", "a scale"), ("index_key.4", "last byte")]


@pytest.mark.parametrize(
    ("stream", "place"),
    [c if c in QUICK else slow(*c) for c in itertools.product(STREAMS, PLACES)],
)
def test_one_bit_of_a_row_that_is_run_again(model, tmp_path, whole, expected, stream, place):
    rows = {name: part.clone() for name, part in whole[0].items()}
    block = rows[stream][LAST]
    # Codes come first: four bits each; then a byte of scale for 16 or 32 of them.
    n_codes = len(block) * (8 if "latent" in stream else 16) // (9 if "latent" in stream else 17)
    at = dict(zip(PLACES, (0, n_codes + 5, len(block) - 1), strict=True))[place]
    block[at] ^= 1
    forge(model, tmp_path / "kv", rows, whole[1])
    expect_mended(model, tmp_path / "kv", whole, expected)


@pytest.mark.parametrize(
    ("stream", "block"),
    [("latent.2", 0), slow("latent.2", 1), slow("index_key.2", 0), slow("index_key.2", 1)],
)
def test_a_wrong_block_before_those_is_mended_when_it_shows(
    model, tmp_path, whole, expected, stream, block
):
    """The rows run again attend to it, so what they give is another thing than what is stored."""
    rows = {name: part.clone() for name, part in whole[0].items()}
    rows[stream][block] ^= 0x35
    forge(model, tmp_path / "kv", rows, whole[1])
    expect_mended(model, tmp_path / "kv", whole, expected)


@pytest.mark.parametrize("layer", [0, *map(slow, (1, 2, 3))])
def test_a_wrong_snapshot(model, tmp_path, whole, expected, layer):
    rows, snapshots = whole
    data = bytearray(snapshots[256])
    part = len(data) // 4
    # The signs of the newest rows' codes: 99 rows of 64 bytes, and 2 of scales.
    for i in range(layer * part + 60 * 64, layer * part + 99 * 64):
        data[i] ^= 0x80
    forge(model, tmp_path / "kv", rows, {256: bytes(data)})
    expect_mended(model, tmp_path / "kv", whole, expected)


@pytest.mark.parametrize("stream", ["latent.4", *map(slow, STREAMS[:2]), slow("index_key.4")])
def test_also_where_empty_windows_could_begin_at_the_snapshot(tmp_path, small, stream):
    """With W = 16 an empty start would do; the snapshot lets every row of the tile be checked."""
    publish(small, tmp_path / "whole", IDS)
    rows, snapshots = read_all(small, tmp_path / "whole")
    assert list(snapshots) == [256]
    rows[stream][LAST][40] ^= 1
    forge(small, tmp_path / "kv", rows, snapshots)
    engine = with_store(small, tmp_path / "kv")
    got, _ = answer(engine, IDS, SUFFIX)
    assert got == cold(small, IDS + SUFFIX)
    assert len(engine.notices) == 1
    engine.close()


def test_every_row_run_again_is_compared_on_every_restore(model, tmp_path, whole, monkeypatch):
    found = []
    compare = Source.compare

    def spy(self, x, rows, stored, comparison):
        compare(self, x, rows, stored, comparison)
        found.append((self.layer, rows.start, comparison.compared, comparison.differs_at))

    monkeypatch.setattr(Source, "compare", spy)
    forge(model, tmp_path / "kv", *whole)
    for _ in range(2):
        engine = with_store(model, tmp_path / "kv")
        found.clear()
        answer(engine, IDS[:385], SUFFIX)
        assert found == [(2, 256, 64, None), (4, 256, 128, None)]
        engine.close()


@pytest.mark.slow
def test_without_a_snapshot_exactly_the_exact_rows_are_compared(
    model, tmp_path, whole, monkeypatch
):
    """Layer i is exact i * 99 rows after an empty start; rows before that are not compared."""
    found = {}
    compare = Source.compare

    def spy(self, x, rows, stored, comparison):
        compare(self, x, rows, stored, comparison)
        found.setdefault(self.layer, []).append(comparison.compared)

    monkeypatch.setattr(Source, "compare", spy)
    long = some_ids(650)
    publish(model, tmp_path / "kv", long)
    engine = with_store(model, tmp_path / "kv")
    monkeypatch.setattr(engine.store, "read_snapshot", lambda block_hash: None)
    _, usage = answer(engine, long, SUFFIX)
    # 640 - 100 - 4 * 99 = 144, in the tile at 128.
    assert usage.rerun == 512
    assert sum(found[2]) == (640 - (128 + 2 * 99)) // 2
    assert sum(found[4]) == 640 - (128 + 4 * 99)
    assert engine.notices == []
    engine.close()
