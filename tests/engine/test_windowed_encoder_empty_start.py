"""Windowed encoder layers: how far back windows begin empty, and why there.

Each windowed layer is exact W - 1 rows after the layer below it; a global one reads stored rows, so
it puts off nothing.
"""

import pytest
import torch
from windowed_runs import (
    WINDOWED,
    alone,
    answer,
    cold,
    empty_rerun,
    publish,
    slow,
    some_ids,
    with_store,
    write_windowed,
)

from cedagent.engine.llama.windows import LlamaWindows

IDS = some_ids(650)
SHORT = some_ids(7, seed=1)
WINDOWS = (16, 100, 128)
N = len(WINDOWED)


def publish_without_snapshots(model, kv):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaWindows, "snapshot", lambda self, state: None)
        publish(model, kv, IDS, path="float32")


def test_how_many_tiles_these_are():
    """Three windows of 16 span 45 rows, of 128 more than two tiles; ten of 128 are ten tiles."""
    assert [empty_rerun(window, N, 640) for window in WINDOWS] == [128, 384, 384]
    assert empty_rerun(128, 10, 2048) == 1280
    assert [empty_rerun(128, 10, settled) for settled in (0, 128, 1280)] == [0, 128, 1280]


@pytest.mark.parametrize(
    ("window", "n_windowed", "start"),
    [(129, 1, 512), (130, 1, 384), (65, 2, 512), (66, 2, 384), (1, 2, 640), (640, 3, 0)],
)
def test_no_row_more_or_less(tmp_path, window, n_windowed, start):
    """On both sides of a tile's edge."""
    model = write_windowed(tmp_path / "model", window=window, global_layers=range(n_windowed, 5))
    assert alone(model).family.windows.empty_start(640) == start


def exact_rows(engine, *, start):
    """By layer, the first position from which a re-run with windows empty at `start` is right.

    Of a windowed layer its rows, of a global one what it would have written; "E_out" likewise.
    """
    whole, ids = engine.family.new_state(), IDS[:640]
    encoder = engine.family.model.encoder
    with engine.forward():
        for tile in range(5):
            engine.family.encode_tile(whole, ids, tile=tile)
        scratch = engine.family.windows.begin(whole)
        engine.family.windows.begin_empty(scratch, start=start)
        wrong = {}
        for tile in range(start // 128, 5):
            first = tile * 128
            x = engine.family.model.embed(ids[first : first + 128])
            e_out, made = encoder.rerun(x, scratch.encoder, tile=tile)
            rows = {i: made.get(i, cache) for i, cache in enumerate(scratch.encoder)}
            for layer, cache in rows.items():
                for place in range(first, first + 128):
                    if cache.differs_at(whole.encoder[layer], place, place + 1) is not None:
                        wrong[layer] = place
            for row in range(128):
                if whole.e_out_differs_at(first + row, e_out[row : row + 1]) is not None:
                    wrong["E_out"] = first + row
    return {name: wrong.get(name, start - 1) + 1 for name in (*range(5), "E_out")}


@pytest.mark.parametrize("global_layers", [(1, 4), *map(slow, ((), (0, 2, 4), (3,)))], ids=str)
def test_windowed_layers_alone_are_counted_and_not_one_row_too_many(tmp_path, global_layers):
    """Each windowed layer below puts off what is exact by W - 1 rows; a global one by none."""
    model = write_windowed(tmp_path / "model", window=50, global_layers=global_layers)
    found = exact_rows(alone(model, "float32"), start=256)
    windowed = [layer for layer in range(5) if layer not in global_layers]
    expected = {layer: 256 + 49 * sum(w < layer for w in windowed) for layer in range(5)}
    assert found == {**expected, "E_out": 256 + 49 * len(windowed)}


def test_rows_compared_too_early_would_be_called_damage(tmp_path, monkeypatch):
    """So the formula is needed: before it, what a re-run computes is not what is stored."""
    formula = "cedagent.engine.llama.encode.exact_from"
    monkeypatch.setattr(formula, lambda empty_from, n_below, *, window: empty_from)
    engine = alone(write_windowed(tmp_path / "model", window=100))
    source = engine.sequence()
    source.prefill(IDS)
    fork = source.fork(600)
    usage = fork.prefill(SHORT)
    assert (usage.reused_ram, usage.encoded) == (0, 607)
    source.close()
    fork.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["native", "reference"])
def test_no_row_is_exact_later_on_the_int8_path(tmp_path, path):
    found = exact_rows(alone(write_windowed(tmp_path / "model", window=100), path), start=128)
    latest = {0: 128, 1: 227, 2: 227, 3: 326, 4: 425, "E_out": 425}
    assert all(found[name] <= latest[name] for name in latest)


@pytest.mark.parametrize("window", [16, slow(100), slow(128)])
def test_an_empty_start_one_tile_later_would_not_do(tmp_path, monkeypatch, window):
    model = write_windowed(tmp_path / "model", window=window)
    publish_without_snapshots(model, tmp_path / "kv")
    engine = with_store(model, tmp_path / "kv", "float32")
    right = engine.family.windows.empty_start(640)
    monkeypatch.setattr(LlamaWindows, "empty_start", lambda self, settled: right + 128)
    got, usage = answer(engine, IDS, SHORT)
    assert got != cold(model, IDS + SHORT, "float32")
    assert usage.rerun == empty_rerun(window, N, 640) - 128
    engine.close()


@pytest.mark.parametrize("global_layers", [slow(()), slow((0, 2, 4)), slow((0, 1, 2, 3))], ids=str)
def test_any_alternation_of_layers_resumes(tmp_path, global_layers):
    model = write_windowed(tmp_path / "model", window=128, global_layers=global_layers)
    publish_without_snapshots(model, tmp_path / "kv")
    engine = with_store(model, tmp_path / "kv", "float32")
    got, usage = answer(engine, IDS, SHORT)
    assert got == cold(model, IDS + SHORT, "float32")
    assert (usage.rerun, engine.notices) == (empty_rerun(128, 5 - len(global_layers), 640), [])
    engine.close()


def test_what_is_compared_can_differ(tmp_path):
    logits = [
        alone(write_windowed(tmp_path / f"{window}", window=window)).logits(IDS[:300])
        for window in WINDOWS[:2]
    ]
    assert not torch.equal(*logits)
