"""V4.1: a prefill or a re-run that was stopped leaves nothing behind that a later answer can tell.

`cancelled()` is polled before every tile, of a re-run too, and before the replay; here it is true
at the n-th poll, for every n there is.
"""

import shutil

import pytest
from v41_runs import (
    answer,
    cold,
    publish,
    slow,
    some_ids,
    tensor_bytes,
    with_store,
    write_wide,
)

from cedagent.engine.v41.windows import V41Windows
from cedagent.errors import EngineError

IDS = some_ids(650)
SUFFIX = some_ids(20, seed=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """W = 100: an empty start lies 100 + 4 * 99 rows back, so a re-run to 640 has four tiles."""
    return write_wide(tmp_path_factory.mktemp("w100") / "model", n_encoder_layers=4)


@pytest.fixture(scope="module")
def expected(model):
    return cold(model, IDS + SUFFIX)


@pytest.fixture(scope="module")
def bare(model, tmp_path_factory):
    """A store without snapshots."""
    kv = tmp_path_factory.mktemp("bare") / "kv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(V41Windows, "snapshot", lambda self, state: None)
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


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, *map(slow, (0, 1, 5, 6))])
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
    assert answer(restarted, IDS, SUFFIX)[0] == expected
    assert not restarted.notices
    restarted.close()


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3, *map(slow, (0, 2, 4, 5))])
def test_a_stopped_rerun_from_empty_windows_goes_on(engine, expected, n):
    sequence = engine.sequence(IDS)
    usage = sequence.prefill(SUFFIX[:3], cancelled=at_poll(n))
    assert usage.cancelled
    assert (usage.reused_disk, usage.encoded) == (640, 0)
    assert usage.rerun == min(n, 4) * 128
    sequence.prefill(SUFFIX[3:])
    assert tensor_bytes(sequence.logits) == expected
    # Nothing was wrong with what is stored, so nothing is said or thrown away.
    assert engine.notices == []
    assert engine.store.match(IDS).blocks == 5


@pytest.mark.parametrize("n", [3, *map(slow, (1, 2, 4))])
def test_a_stopped_rerun_publishes_no_snapshot_of_unfinished_windows(
    model, engine, expected, n, tmp_path
):
    engine.sequence(IDS).prefill(SUFFIX[:3], cancelled=at_poll(n))
    engine.close()
    restarted = with_store(model, tmp_path / "kv")
    assert answer(restarted, IDS, SUFFIX)[0] == expected
    assert restarted.notices == []
    restarted.close()


@pytest.mark.parametrize("n", [2, *map(slow, (1, 3, 4))])
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


@pytest.mark.slow
@pytest.mark.parametrize("n", range(3))
def test_a_stopped_rerun_from_a_snapshot_goes_on_where_it_was(model, tmp_path, n):
    publish(model, tmp_path / "kv", IDS, replay_windows=2)
    engine = with_store(model, tmp_path / "kv", replay_windows=2)
    sequence = engine.sequence(IDS)
    first = sequence.prefill(SUFFIX[:3], cancelled=at_poll(n))
    second = sequence.prefill(SUFFIX[3:])
    assert first.cancelled
    assert first.rerun + second.rerun == 256
    assert tensor_bytes(sequence.logits) == cold(model, IDS + SUFFIX, replay_windows=2)
    assert engine.notices == []
    engine.close()


@pytest.mark.slow
def test_stopping_again_and_again(engine, expected):
    sequence = engine.sequence(IDS)
    for token in SUFFIX[:5]:
        assert sequence.prefill([token], cancelled=at_poll(1)).cancelled
    sequence.prefill(SUFFIX[5:])
    assert tensor_bytes(sequence.logits) == expected
    assert engine.notices == []


@pytest.mark.parametrize("n", [1, slow(0), slow(3)])
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
