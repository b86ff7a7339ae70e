"""V4.1: what is settled is written once; a re-run never writes below its floor, nor a neighbour's.

Poisoned rows are still poisoned after a re-run, and every row that a sequence holds keeps its bytes
while others that share its prefix run.
"""

import pytest
import torch
from v41_runs import (
    alone,
    answer,
    cold,
    publish,
    row_bytes,
    run,
    slow,
    some_ids,
    source_rows,
    taken,
    tensor_bytes,
    with_store,
    write_small,
    write_wide,
)

from cedagent.engine import Engine
from cedagent.model.stored_rows import StoredRows

IDS = some_ids(300)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("w16") / "model")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_wide(tmp_path_factory.mktemp("w100") / "model")


@pytest.mark.parametrize(
    ("layer", "where"), [(2, "keys"), (4, "latents"), slow(2, "latents"), slow(4, "keys")]
)
def test_a_poisoned_row_is_reported_and_not_written(small, layer, where):
    engine = alone(small)
    sequence, windows = engine.sequence(), engine.family.windows
    sequence.prefill(IDS[:257])
    state = sequence._state
    rows = getattr(state.sources[layer], where)
    place = 250 // state.sources[layer].ratio
    with engine.forward():
        rows.stored(place, place + 1).codes.fill_(0x5A)
        poisoned, stop = source_rows(state, 256), rows.stop
        memory = rows.stored(0, 1).codes.data_ptr()
        windows.begin_empty(state, start=128)
        differs_at = windows.rerun_tile(state, IDS, tile=1, empty_from=128)
    # Reported as the group's first token.
    assert differs_at == place * state.sources[layer].ratio
    assert source_rows(state, 256) == poisoned
    assert (rows.stored(0, 1).codes.data_ptr(), rows.stop) == (memory, stop)


@pytest.mark.parametrize("with_snapshot", [False, slow(True)])
def test_a_restore_writes_no_row_that_it_read(model, tmp_path, monkeypatch, with_snapshot):
    publish(model, tmp_path / "kv", IDS)
    engine = with_store(model, tmp_path / "kv")
    if not with_snapshot:
        monkeypatch.setattr(engine.store, "read_snapshot", lambda block_hash: None)
    windows, write = engine.family.windows, StoredRows.write
    rerun_tile, running, written = windows.rerun_tile, [], []

    def spy_rerun(state, *args, **options):
        running.append([s.latents for s in state.sources.values()])
        running[-1] += [s.keys for s in state.sources.values()]
        before = source_rows(state, 256)
        try:
            return rerun_tile(state, *args, **options)
        finally:
            assert source_rows(state, 256) == before
            running.append(None)

    def spy_write(self, start, rows):
        if running and running[-1] is not None:
            written.append(any(self is source for source in running[-1]))
        write(self, start, rows)

    monkeypatch.setattr(windows, "rerun_tile", spy_rerun)
    monkeypatch.setattr(StoredRows, "write", spy_write)
    _, usage = answer(engine, IDS, [5])
    assert usage.rerun == len(running) // 2 * 128 == (128 if with_snapshot else 256)
    # Each tile wrote a window per encoder layer and nothing else.
    assert written == [False] * (3 * len(running) // 2)
    engine.close()


def test_what_is_restored_are_the_cold_runs_rows(model, tmp_path):
    publish(model, tmp_path / "kv", IDS)
    engine = with_store(model, tmp_path / "kv")
    assert run(engine, IDS) == run(alone(model), IDS)
    assert engine.store.stats().blocks_read == 2
    engine.close()


@pytest.mark.slow
def test_sequences_that_share_a_prefix_do_not_disturb_each_other(small):
    engine = alone(small)
    ours, theirs = IDS[:150] + some_ids(70, seed=1), IDS[:150] + some_ids(70, seed=2)
    a, b = engine.sequence(), engine.sequence()
    a.prefill(ours)
    before = taken(a)
    usage = b.prefill(theirs)
    assert usage.reused_ram == 128
    assert taken(a) == before
    assert taken(b) == run(Engine(engine.family, engine.model_dir), theirs)
    for token in some_ids(9, seed=3):
        a.feed(token)
        b.feed(token + 1 if token < 300 else token)
    rows = taken(a)
    b.settle()
    b.prefill(some_ids(40, seed=4))
    assert taken(a) == rows
    by_itself = Engine(engine.family, engine.model_dir).sequence()
    by_itself.prefill(ours)
    for token in some_ids(9, seed=3):
        by_itself.feed(token)
    assert taken(by_itself) == rows


def test_what_was_copied_shares_no_memory(small):
    engine = alone(small)
    a = engine.sequence()
    a.prefill(IDS[:200])
    b = a.fork()
    b.prefill([7])
    before = taken(a)
    state = b._state
    with engine.forward():
        for mine in (*state.windows, *(source.latents for source in state.sources.values())):
            mine.stored(mine.base, mine.stop).codes.fill_(0x11)
            mine.values(mine.base, mine.stop).fill_(1e3)
        state.outputs.rows(state.outputs.base, state.outputs.stop).streams.fill_(1e3)
    assert taken(a) == before
    a.prefill([])
    assert tensor_bytes(a.logits) == cold(small, IDS[:200])


def test_an_append_keeps_every_settled_row(small):
    engine = alone(small)
    sequence = engine.sequence()
    sequence.prefill(IDS[:200])
    before = source_rows(sequence._state, 128)
    for n in (1, 60, 0):
        sequence.prefill(some_ids(n, seed=n))
        sequence.feed(3)
        sequence.settle()
        assert source_rows(sequence._state, 128) == before


def test_the_windows_of_a_snapshot_are_those_of_the_live_state(model, tmp_path):
    """Their bytes: codes, then scales, of rows [s - (W - 1), s) of each encoder layer."""
    engine = with_store(model, tmp_path / "kv")
    sequence = engine.sequence()
    sequence.prefill(IDS)
    match = engine.store.match(IDS)
    assert match.snapshots == (128,)
    data = engine.store.read_snapshot(match.block_hash(128))
    parts = [row_bytes(own, 128 - 99, 128) for own in sequence._state.windows]
    assert data == b"".join(parts)
    assert len({len(part) for part in parts}) == 1
    assert not torch.equal(*(w.values(127, 128) for w in sequence._state.windows[:2]))
    engine.close()
