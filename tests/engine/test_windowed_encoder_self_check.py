"""Windowed encoder layers: rows run again are compared with the stored ones, and a wrong one found.

Wrong rows are committed as a store would take right ones, with a checksum that fits: only the
model can tell. The answer is a cold run's, one line says so, and the store is mended.
"""

import functools
import itertools

import pytest
import torch
from windowed_runs import (
    GLOBAL,
    PATHS,
    alone,
    answer,
    cold,
    publish,
    slow,
    some_ids,
    with_store,
    write_windowed,
)

from ced_kvstore import Anchor
from cedagent.engine.buffers import empty_buffers, raw
from cedagent.engine.llama.state import SequenceState
from cedagent.model.llama.cache import KvCache

IDS = some_ids(650)
SUFFIX = some_ids(20, seed=1)
N_BLOCKS, LAST = 5, 4
FIRST_EXACT = {1: 256 + 99, 4: 256 + 297, "e_out": 256 + 297}
"""Windows of 100 begin empty at 256: from where rows of each stream are compared."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_windowed(tmp_path_factory.mktemp("w100") / "model", window=100)


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """What a store of IDS should hold: {stream: [5, block bytes]}, {position: windows}."""

    @functools.cache
    def of(path):
        kv = tmp_path_factory.mktemp(path) / "kv"
        publish(model, kv, IDS[:512], IDS, path=path)
        return read_all(model, kv, path)

    return of


def read_all(model, kv, path):
    engine = with_store(model, kv, path)
    store, match = engine.store, engine.store.match(IDS)
    assert (match.blocks, match.reason) == (N_BLOCKS, "hit")
    rows = empty_buffers(engine.family.streams(), match.blocks)
    assert store.read(match, {name: raw(part) for name, part in rows.items()}) == match.blocks
    snapshots = {p: store.read_snapshot(match.block_hash(p)) for p in match.snapshots}
    engine.close()
    return rows, snapshots


def forge(model, kv, rows, snapshots, path="native"):
    """Commit blocks and snapshots as they are given, right or wrong."""
    engine = with_store(model, kv, path)
    ids = IDS[: 128 * N_BLOCKS]
    hashes = engine.store.hashes(ids)
    commit = engine.store.commit(
        ids,
        first_block=0,
        rows={name: raw(part) for name, part in rows.items()},
        anchors=[Anchor(hashes[-1], "forged")],
        snapshots={hashes[p // 128 - 1]: data for p, data in snapshots.items()},
    )
    assert (commit.blocks, commit.reason) == (N_BLOCKS, None)
    engine.close()


def altered(rows, stream, block, at, mask=1):
    made = {name: part.clone() for name, part in rows.items()}
    made[stream][block][at] ^= mask
    return made


def expect_mended(model, kv, expected_store, path="native"):
    """The first restore says that it does not trust the store; the second has nothing to say."""
    expected = cold(model, IDS + SUFFIX, path)
    engine = with_store(model, kv, path)
    got, usage = answer(engine, IDS, SUFFIX)
    assert got == expected
    assert usage.reused_disk == usage.reused_ram == 0
    assert usage.encoded == 670
    (notice,) = engine.notices
    assert "are not what the model computes" in notice
    assert engine.store.stats().blocks_bad > 0
    engine.close()
    again = with_store(model, kv, path)
    got, usage = answer(again, IDS, SUFFIX)
    assert (got, usage.reused_disk, usage.rerun) == (expected, 640, 0)
    assert again.notices == []
    again.close()
    rows, snapshots = read_all(model, kv, path)
    assert all(torch.equal(rows[name], expected_store[0][name]) for name in rows)
    assert snapshots[640] == expected_store[1][640]


def at_row(stream, row, *, path):
    """Where a byte of row `row` of its block begins, in codes or values: [2, H, 128, d]."""
    if stream == "e_out":
        return row * 48 * (4 if path == "float32" else 2)
    return row * 16 * (4 if path == "float32" else 1)


@pytest.mark.parametrize("path", ["native", slow("reference"), slow("float32")])
def test_what_was_read_is_a_clean_hit(model, tmp_path, whole, path):
    rows, snapshots = whole(path)
    assert sorted(rows) == ["e_out", *(f"kv.{layer}" for layer in GLOBAL)]
    assert sorted(snapshots) == [512, 640]
    expected = cold(model, IDS + SUFFIX, path)
    for n, kept in enumerate(({640: snapshots[640]}, {512: snapshots[512]}, {})):
        forge(model, tmp_path / f"kv{n}", rows, kept, path)
        engine = with_store(model, tmp_path / f"kv{n}", path)
        got, usage = answer(engine, IDS, SUFFIX)
        assert (got, usage.rerun) == (expected, (0, 128, 384)[n])
        assert engine.notices == []
        engine.close()


@pytest.mark.parametrize(
    ("stream", "path", "place"),
    [
        ("kv.4", "native", "last"),
        ("e_out", "native", "last"),
        *itertools.starmap(slow, itertools.product(("kv.1", "e_out"), PATHS, ("first", "end"))),
    ],
)
def test_one_bit_of_a_row_that_is_run_again(model, tmp_path, whole, stream, path, place):
    """From a snapshot at 512 every row of the last block is compared: scales and values, too."""
    rows = whole(path)[0]
    last = at_row(stream, 127, path=path)
    at = {"first": 0, "last": last, "end": rows[stream].shape[1] - 1}[place]
    forge(model, tmp_path / "kv", altered(rows, stream, LAST, at), {512: whole(path)[1][512]}, path)
    expect_mended(model, tmp_path / "kv", whole(path), path)


@pytest.mark.parametrize("stream", ["kv.1", slow("kv.4"), slow("e_out")])
def test_the_first_row_that_is_exact_after_an_empty_start(model, tmp_path, whole, stream):
    kind = stream if stream == "e_out" else int(stream.removeprefix("kv."))
    position = FIRST_EXACT[kind]
    at = at_row(stream, position % 128, path="native")
    rows = altered(whole("native")[0], stream, position // 128, at)
    forge(model, tmp_path / "kv", rows, {})
    expect_mended(model, tmp_path / "kv", whole("native"))


@pytest.mark.parametrize("block", [0, slow(1), slow(2)])
@pytest.mark.parametrize("stream", ["kv.1", slow("kv.4")])
def test_a_wrong_block_before_those_is_mended_when_it_shows(model, tmp_path, whole, stream, block):
    """The rows run again attend to it, so what they give is another thing than what is stored."""
    rows = {name: part.clone() for name, part in whole("native")[0].items()}
    rows[stream][block] ^= 0x35
    forge(model, tmp_path / "kv", rows, {})
    expect_mended(model, tmp_path / "kv", whole("native"))


@pytest.mark.parametrize("windowed", [0, slow(1), slow(2)])
def test_a_wrong_snapshot_that_rows_are_run_again_from(model, tmp_path, whole, windowed):
    rows, snapshots = whole("native")
    data = bytearray(snapshots[512])
    part = len(data) // 3
    # The newest rows' codes: 2 * 99 rows of 16 bytes, then the scales.
    for at in range(windowed * part + 60 * 16, windowed * part + 99 * 16):
        data[at] ^= 0x2A
    forge(model, tmp_path / "kv", rows, {512: bytes(data)})
    expect_mended(model, tmp_path / "kv", whole("native"))


@pytest.fixture
def compared(monkeypatch):
    """Every comparison: (rows of what, from, to)."""
    found, kv, e_out = [], KvCache.differs_at, SequenceState.e_out_differs_at

    def spy_kv(self, other, start, stop):
        if start < stop:
            found.append(("kv", start, stop))
        return kv(self, other, start, stop)

    def spy_e_out(self, start, rows):
        if len(rows):
            found.append(("e_out", start, start + len(rows)))
        return e_out(self, start, rows)

    monkeypatch.setattr(KvCache, "differs_at", spy_kv)
    monkeypatch.setattr(SequenceState, "e_out_differs_at", spy_e_out)
    return found


def test_every_row_run_again_from_a_snapshot_is_compared(model, tmp_path, whole, compared):
    rows, snapshots = whole("native")
    forge(model, tmp_path / "kv", rows, {512: snapshots[512]})
    engine = with_store(model, tmp_path / "kv")
    answer(engine, IDS, SUFFIX)
    assert compared == [("kv", 512, 640), ("kv", 512, 640), ("e_out", 512, 640)]
    compared.clear()
    answer(engine, IDS, SUFFIX)
    assert compared == []
    engine.close()


def test_without_a_snapshot_exactly_the_exact_rows_are_compared(model, tmp_path, whole, compared):
    forge(model, tmp_path / "kv", whole("native")[0], {})
    engine = with_store(model, tmp_path / "kv")
    answer(engine, IDS, SUFFIX)
    assert compared == [
        ("kv", FIRST_EXACT[1], 384),
        ("kv", 384, 512),
        ("kv", 512, 640), ("kv", FIRST_EXACT[4], 640), ("e_out", FIRST_EXACT["e_out"], 640),
    ]  # fmt: skip
    assert engine.notices == []
    engine.close()


def test_from_the_beginning_of_a_text_every_row_is_compared(model, compared):
    """Windows that begin there are whole, though they are empty."""
    engine = alone(model)
    source = engine.sequence()
    source.prefill(IDS[:300])
    _, usage = answer(engine, IDS[:130], SUFFIX)
    assert (usage.reused_ram, usage.rerun) == (128, 128)
    assert compared == [("kv", 0, 128), ("kv", 0, 128), ("e_out", 0, 128)]
    source.close()


def test_an_output_of_zero_with_another_sign_is_another_output(model):
    state = alone(model, "float32").family.new_state()
    rows = torch.zeros(9, 48)
    state.write_e_out(100, rows)
    rows[5, 17] = -0.0
    assert state.e_out_differs_at(100, rows) == 105
    assert state.e_out_differs_at(106, rows[6:]) is None
