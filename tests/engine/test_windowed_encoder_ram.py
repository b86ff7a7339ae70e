"""Windowed encoder layers: windows that an open sequence holds, for itself and for another one.

They stand at its settled end alone. Which start was taken is read off the rows run again.
"""

import pytest
from windowed_runs import (
    WINDOWED,
    alone,
    answer,
    cold,
    empty_rerun,
    publish,
    slow,
    some_ids,
    tensor_bytes,
    with_store,
    write_windowed,
)

IDS = some_ids(650)
SHORT, LONG = some_ids(7, seed=1), some_ids(151, seed=2)
WINDOWS = (16, 100, 128)
N = len(WINDOWED)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {window: write_windowed(folder / f"{window}", window=window) for window in WINDOWS}


@pytest.mark.parametrize(
    ("window", "path"),
    [(100, "native"), slow(16, "native"), slow(128, "float32"), slow(100, "reference")],
)
def test_from_ram_behind_where_the_other_sequence_stands(models, window, path):
    """A fork behind the settled end finds settled rows, and windows that are long gone."""
    engine = alone(models[window], path)
    source = engine.sequence()
    source.prefill(IDS)
    for n_tokens in (640, 513, 300, 128):
        fork = source.fork(n_tokens)
        got, usage = answer(engine, fork.ids, SHORT)
        assert got == cold(models[window], IDS[:n_tokens] + SHORT, path)
        settled = n_tokens // 128 * 128
        assert (usage.reused_ram, usage.reused_disk) == (settled, 0)
        assert usage.rerun == (0 if settled == 640 else empty_rerun(window, N, settled))
    source.close()


def test_windows_behind_lead_on_through_tiles_that_another_sequence_knows(models):
    """A short sequence goes on from its own windows at 256 where a longer one knows the rest."""
    engine = alone(models[128])
    short, longer = engine.sequence(), engine.sequence()
    short.prefill(IDS[:260])
    longer.prefill(IDS)
    usage = short.prefill(IDS[260:520])
    assert (usage.reused_ram, usage.rerun, usage.encoded) == (512, 256, 8)
    assert tensor_bytes(short.logits) == cold(models[128], IDS[:520])
    # At the longer one's own end its windows are nearer.
    usage = short.prefill(IDS[520:])
    assert (usage.reused_ram, usage.rerun, usage.encoded) == (640, 0, 10)
    assert tensor_bytes(short.logits) == cold(models[128], IDS)
    short.close()
    longer.close()


def test_going_on_after_an_output_needs_no_rerun(models):
    """Decoded rows are the overlay's: they never take the place of the windows at F."""
    engine, ids = alone(models[16]), IDS[:250]
    live = engine.sequence()
    live.prefill(ids)
    for token in SHORT + LONG:
        live.feed(token)
    usage = live.prefill(SHORT)
    assert (usage.reused_ram, usage.rerun) == (128, 0)
    assert tensor_bytes(live.logits) == cold(models[16], ids + SHORT + LONG + SHORT)
    for token in LONG:
        live.feed(token)
    live.settle()
    usage = live.prefill([5])
    assert (usage.rerun, usage.encoded) == (0, len(live.ids) % 128)
    assert tensor_bytes(live.logits) == cold(models[16], list(live.ids))
    live.close()


@pytest.mark.parametrize("window", [200, slow(128), slow(300)])
def test_windows_of_a_snapshot_that_are_all_there_is_of_it_lead_on_from_its_end_alone(
    tmp_path, window
):
    """Where they begin in the first tile, what lies before them is not known, and is not lent."""
    model = write_windowed(tmp_path / "model", window=window)
    settled = (window + 100) // 128 * 128
    ids = IDS[: settled + 9]
    publish(model, tmp_path / "kv", ids)
    engine = with_store(model, tmp_path / "kv")
    restored = engine.sequence(ids)
    assert restored.prefill(SHORT).rerun == 0
    for n_tokens in range(130, settled, 128):
        fork = restored.fork(n_tokens)
        fork.prefill(LONG)
        assert tensor_bytes(fork.logits) == cold(model, IDS[:n_tokens] + LONG)
    engine.close()
