"""Windowed encoder layers: a stopped prefill or re-run leaves nothing that a later answer can tell.

`cancelled()` is polled before every tile, of a re-run too, and before the replay; here it is true
at the n-th poll, for every n there is.
"""

import shutil

import pytest
from windowed_runs import (
    answer,
    cold,
    publish,
    slow,
    some_ids,
    tensor_bytes,
    with_store,
    write_windowed,
)

from cedagent.engine.llama.windows import LlamaWindows
from cedagent.errors import EngineError

IDS = some_ids(650)
SUFFIX = some_ids(20, seed=1)
RERUN = 384
"""W = 100, three windowed layers: an empty start lies 3 * 99 rows back, in the third tile."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_windowed(tmp_path_factory.mktemp("w100") / "model", window=100)


@pytest.fixture(scope="module")
def expected(model):
    return cold(model, IDS + SUFFIX)


@pytest.fixture(scope="module")
def bare(model, tmp_path_factory):
    """A store without snapshots."""
    kv = tmp_path_factory.mktemp("bare") / "kv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaWindows, "snapshot", lambda self, state: None)
        publish(model, kv, IDS)
    return kv


@pytest.fixture
def engine(model, bare, tmp_path):
    opened = with_store(model, shutil.copytree(bare, tmp_path / "kv"))
    assert opened.store.match(IDS).snapshots == ()
    yield opened
    opened.close()


def at_poll(n):
    """`cancelled` that is true at the n-th poll, counted from 0, and never again."""
    polls = iter([*[False] * n, True])
    return lambda: next(polls, False)


@pytest.mark.parametrize("n", [4, *map(slow, (0, 1, 2, 3, 5, 6))])
def test_a_stopped_prefill_keeps_whole_tiles_and_goes_on(model, tmp_path, expected, n):
    engine = with_store(model, tmp_path / "kv")
    sequence = engine.sequence()
    usage = sequence.prefill(IDS, cancelled=at_poll(n))
    assert usage.cancelled
    # The last, partial tile may have run; what it left is not settled.
    assert usage.encoded == min(n, 5) * 128
    with pytest.raises(EngineError, match="no logits"):
        _ = sequence.logits
    assert sequence.settle() == 0
    usage = sequence.prefill(SUFFIX)
    assert tensor_bytes(sequence.logits) == expected
    assert (usage.reused_ram, usage.rerun) == (min(n, 5) * 128, 0)
    assert not engine.notices
    engine.close()
    restarted = with_store(model, tmp_path / "kv")
    got, usage = answer(restarted, IDS, SUFFIX)
    assert (got, usage.rerun) == (expected, 0)
    assert not restarted.notices
    restarted.close()


@pytest.mark.parametrize("n", [1, 3, *map(slow, (0, 2, 4))])
def test_a_stopped_rerun_from_empty_windows_goes_on(engine, expected, n):
    sequence = engine.sequence(IDS)
    usage = sequence.prefill(SUFFIX[:3], cancelled=at_poll(n))
    assert usage.cancelled
    assert (usage.reused_disk, usage.encoded) == (640, 0)
    assert usage.rerun == min(n, 3) * 128
    usage = sequence.prefill(SUFFIX[3:])
    # Windows that began empty are worth nothing until they are whole.
    assert usage.rerun == (RERUN if n < 3 else 0)
    assert tensor_bytes(sequence.logits) == expected
    # Nothing was wrong with what is stored, so nothing is said or thrown away.
    assert engine.notices == []
    assert engine.store.match(IDS).blocks == 5


@pytest.mark.parametrize("n", [2, slow(0), slow(1), slow(3)])
def test_a_stopped_rerun_publishes_no_snapshot_of_unfinished_windows(
    model, engine, expected, n, tmp_path
):
    engine.sequence(IDS).prefill(SUFFIX[:3], cancelled=at_poll(n))
    assert engine.store.match(IDS).snapshots == (() if n < 3 else (640,))
    engine.close()
    restarted = with_store(model, tmp_path / "kv")
    assert answer(restarted, IDS, SUFFIX)[0] == expected
    assert restarted.notices == []
    restarted.close()


@pytest.mark.parametrize("n", [2, slow(0), slow(1), slow(3)])
def test_another_sequence_takes_nothing_unfinished_from_a_stopped_one(engine, expected, n):
    stopped = engine.sequence(IDS)
    stopped.prefill(SUFFIX[:3], cancelled=at_poll(n))
    got, usage = answer(engine, IDS, SUFFIX)
    assert got == expected
    assert usage.reused_ram == 640
    assert engine.notices == []
    fork = stopped.fork(len(IDS))
    fork.prefill(SUFFIX)
    assert tensor_bytes(fork.logits) == expected


@pytest.mark.parametrize("n", [0, 1, slow(2)])
def test_a_stopped_rerun_from_whole_windows_goes_on_where_it_was(model, tmp_path, n):
    """From a snapshot at 384, which is as near as an empty start would be, or nearer."""
    publish(model, tmp_path / "kv", IDS[:384])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaWindows, "snapshot", lambda self, state: None)
        publish(model, tmp_path / "kv", IDS)
    engine = with_store(model, tmp_path / "kv")
    assert engine.store.match(IDS).snapshots == (384,)
    sequence = engine.sequence(IDS)
    first = sequence.prefill(SUFFIX[:3], cancelled=at_poll(n))
    second = sequence.prefill(SUFFIX[3:])
    assert first.cancelled
    assert (first.rerun, second.rerun) == (128 * n, 256 - 128 * n)
    assert tensor_bytes(sequence.logits) == cold(model, IDS + SUFFIX)
    assert engine.notices == []
    engine.close()


def test_stopping_again_and_again(engine, expected):
    sequence = engine.sequence(IDS)
    for token in SUFFIX[:5]:
        assert sequence.prefill([token], cancelled=at_poll(1)).cancelled
    sequence.prefill(SUFFIX[5:])
    assert tensor_bytes(sequence.logits) == expected
    assert engine.notices == []


@pytest.mark.parametrize("n", [1, slow(0), slow(2)])
def test_an_interrupted_rerun_goes_on_too(engine, expected, monkeypatch, n):
    sequence, windows = engine.sequence(IDS), engine.family.windows
    rerun_tile, polls = windows.rerun_tile, at_poll(n)

    def interrupted(*args, **options):
        found = rerun_tile(*args, **options)
        if polls():
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(windows, "rerun_tile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sequence.prefill(SUFFIX[:3])
    sequence.prefill(SUFFIX[3:])
    assert tensor_bytes(sequence.logits) == expected
    assert engine.notices == []


def test_rows_of_a_rerun_that_are_not_exact_are_lent_to_nobody(model, engine):
    """Stopped between the re-run and the first tile: windows at 640 are exact, at 512 not yet."""
    stopped = engine.sequence(IDS)
    usage = stopped.prefill(SUFFIX[:3], cancelled=at_poll(3))
    assert (usage.cancelled, usage.rerun) == (True, RERUN)
    fork = stopped.fork(520)
    usage = fork.prefill(SUFFIX)
    assert (usage.reused_ram, usage.rerun) == (512, 384)
    assert tensor_bytes(fork.logits) == cold(model, IDS[:520] + SUFFIX)
