"""Windowed encoder layers: where a resume starts from, and that each start gives a cold run's bits.

Windows are taken from the sequence itself, a snapshot or another sequence, or begin empty far
enough back; which one it was is read off the number of rows run again.
"""

import itertools
import shutil

import pytest
import torch
from windowed_runs import (
    PATHS,
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

from cedagent.engine.llama.windows import LlamaWindows

IDS = some_ids(650)
SHORT, LONG = some_ids(7, seed=1), some_ids(151, seed=2)
MODES = ({}, {"replay_windows": 2}, {"mode": "exact"}, {"mode": "full"})
WINDOWS = (16, 100, 128)
N = len(WINDOWED)
BOTH = [case if case[1] == "native" else slow(*case) for case in itertools.product(WINDOWS, PATHS)]


def named(value):
    if isinstance(value, dict):
        return " ".join(map(str, value.values())) or "bounded"
    return f"{len(value)} new" if isinstance(value, list) else str(value)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {window: write_windowed(folder / f"{window}", window=window) for window in WINDOWS}


@pytest.fixture(scope="module")
def stores(models, tmp_path_factory):
    """Makes, once, the store of IDS for a model and path, with its snapshots or without."""
    folder = tmp_path_factory.mktemp("stores")

    def of(window, path, with_snapshots):
        kv = folder / f"{window} {path} {with_snapshots}"
        if not kv.exists():
            with pytest.MonkeyPatch.context() as patch:
                if not with_snapshots:
                    patch.setattr(LlamaWindows, "snapshot", lambda self, state: None)
                publish(models[window], kv, IDS, path=path)
        return kv

    return of


@pytest.fixture
def reader(models, stores, tmp_path):
    """Opens engines on copies of the stores: a reader publishes too."""
    opened = []

    def load(window, with_snapshots, path="native", **options):
        kv = shutil.copytree(stores(window, path, with_snapshots), tmp_path / f"kv{len(opened)}")
        opened.append(with_store(models[window], kv, path, **options))
        return opened[-1]

    yield load
    for engine in opened:
        engine.close()


@pytest.mark.parametrize(("window", "path"), BOTH)
def test_with_a_snapshot_nothing_is_run_again(models, reader, window, path):
    engine = reader(window, True, path)
    assert engine.store.match(IDS).snapshots == (640,)
    got, usage = answer(engine, IDS, SHORT)
    assert got == cold(models[window], IDS + SHORT, path)
    assert (usage.reused_disk, usage.rerun, engine.notices) == (640, 0, [])


@pytest.mark.parametrize(("window", "path"), BOTH)
def test_without_one_windows_begin_empty_further_back(models, reader, window, path):
    engine = reader(window, False, path)
    assert engine.store.match(IDS).snapshots == ()
    got, usage = answer(engine, IDS, SHORT)
    assert got == cold(models[window], IDS + SHORT, path)
    assert (usage.reused_disk, usage.encoded, engine.notices) == (640, 17, [])
    assert usage.rerun == empty_rerun(window, N, 640)
    # What was made again is a snapshot from now on.
    assert engine.store.match(IDS).snapshots == (640,)
    assert answer(engine, IDS, SHORT)[1].rerun == 0


def test_how_many_tiles_these_are():
    """Three windows of 16 span 45 rows, of 128 more than two tiles; ten of 128 are ten tiles."""
    assert [empty_rerun(window, N, 640) for window in WINDOWS] == [128, 384, 384]
    assert empty_rerun(128, 10, 2048) == 1280
    assert [empty_rerun(128, 10, settled) for settled in (0, 128, 1280)] == [0, 128, 1280]


@pytest.mark.parametrize("mode", [*MODES[1:3], slow({}), slow(MODES[3])], ids=named)
@pytest.mark.parametrize("suffix", [SHORT, slow(LONG)], ids=named)
@pytest.mark.parametrize("with_snapshots", [True, False], ids=["with", "without"])
def test_e_out_is_stored_so_a_mode_needs_nothing_more(models, reader, mode, suffix, with_snapshots):
    engine = reader(100, with_snapshots, **mode)
    got, usage = answer(engine, IDS, suffix)
    assert got == cold(models[100], IDS + suffix, **mode)
    assert usage.rerun == (0 if with_snapshots else 384)
    assert engine.notices == []


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


@pytest.mark.parametrize(
    "global_layers",
    [(1, 4), (), *map(slow, ((0, 2, 4), (0, 1), (2, 3), (3,)))],
    ids=str,
)
def test_windowed_layers_alone_are_counted_and_not_one_row_too_many(tmp_path, global_layers):
    """Each windowed layer below puts off what is exact by W - 1 rows; a global one by none."""
    model = write_windowed(tmp_path / "model", window=50, global_layers=global_layers)
    found = exact_rows(alone(model, "float32"), start=256)
    windowed = [layer for layer in range(5) if layer not in global_layers]
    expected = {layer: 256 + 49 * sum(w < layer for w in windowed) for layer in range(5)}
    assert found == {**expected, "E_out": 256 + 49 * len(windowed)}


@pytest.mark.slow
@pytest.mark.parametrize("path", ["native", "reference"])
def test_no_row_is_exact_later_on_the_int8_path(models, path):
    found = exact_rows(alone(models[100], path), start=128)
    latest = {0: 128, 1: 227, 2: 227, 3: 326, 4: 425, "E_out": 425}
    assert all(found[name] <= latest[name] for name in latest)


@pytest.mark.parametrize("window", [16, slow(100), slow(128)])
def test_an_empty_start_one_tile_later_would_not_do(models, reader, monkeypatch, window):
    engine = reader(window, False, "float32")
    right = engine.family.windows.empty_start(640)
    monkeypatch.setattr(LlamaWindows, "empty_start", lambda self, settled: right + 128)
    got, usage = answer(engine, IDS, SHORT)
    assert got != cold(models[window], IDS + SHORT, "float32")
    assert usage.rerun == empty_rerun(window, N, 640) - 128


@pytest.mark.parametrize(
    "global_layers", [(2,), slow((0, 2, 4)), slow(()), slow((0, 1, 2, 3))], ids=str
)
def test_any_alternation_of_layers_resumes(tmp_path, global_layers):
    model = write_windowed(tmp_path / "model", window=128, global_layers=global_layers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaWindows, "snapshot", lambda self, state: None)
        publish(model, tmp_path / "kv", IDS, path="float32")
    engine = with_store(model, tmp_path / "kv", "float32")
    got, usage = answer(engine, IDS, SHORT)
    assert got == cold(model, IDS + SHORT, "float32")
    assert (usage.rerun, engine.notices) == (empty_rerun(128, 5 - len(global_layers), 640), [])
    engine.close()


def test_an_older_snapshot_is_nearer_than_empty_windows(models, tmp_path):
    model = models[100]
    publish(model, tmp_path / "kv", IDS[:512])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaWindows, "snapshot", lambda self, state: None)
        publish(model, tmp_path / "kv", IDS)
    engine = with_store(model, tmp_path / "kv")
    assert engine.store.match(IDS).snapshots == (512,)
    got, usage = answer(engine, IDS, SHORT)
    assert got == cold(model, IDS + SHORT)
    assert (usage.rerun, engine.notices) == (128, [])
    engine.close()


def test_a_snapshot_further_back_than_empty_windows_is_not_read(models, tmp_path, monkeypatch):
    model = models[16]
    publish(model, tmp_path / "kv", IDS[:256])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaWindows, "snapshot", lambda self, state: None)
        publish(model, tmp_path / "kv", IDS)
    engine = with_store(model, tmp_path / "kv")
    assert engine.store.match(IDS).snapshots == (256,)
    monkeypatch.setattr(engine.store, "read_snapshot", lambda block_hash: 1 / 0)
    got, usage = answer(engine, IDS, SHORT)
    assert (got, usage.rerun) == (cold(model, IDS + SHORT), 128)
    engine.close()


@pytest.mark.parametrize("found", [b"other", b"", None])
def test_a_snapshot_that_cannot_be_read_is_none(models, reader, monkeypatch, found):
    engine = reader(100, True)
    asked = []

    def read_snapshot(block_hash):
        asked.append(block_hash)
        return found

    monkeypatch.setattr(engine.store, "read_snapshot", read_snapshot)
    got, usage = answer(engine, IDS, SHORT)
    assert asked == [engine.store.match(IDS).block_hash(640)]
    assert got == cold(models[100], IDS + SHORT)
    assert usage.rerun == 384


@pytest.mark.parametrize("window", [1, slow(2), slow(200), slow(300)])
def test_odd_windows_resume_with_and_without_a_snapshot(tmp_path, window):
    """W = 1 keeps no rows, so it needs neither; beyond a tile a snapshot at 128 is not full."""
    model = write_windowed(tmp_path / "model", window=window)
    publish(model, tmp_path / "kv", IDS[:130], IDS)
    for n_known, read in itertools.product((130, 400, 650), (True, False)):
        kv = shutil.copytree(tmp_path / "kv", tmp_path / f"{n_known} {read}")
        engine = with_store(model, kv)
        if not read:
            engine.store.read_snapshot = lambda block_hash: None
        got, usage = answer(engine, IDS[:n_known], SHORT)
        assert got == cold(model, IDS[:n_known] + SHORT)
        settled = n_known // 128 * 128
        assert (usage.reused_disk, engine.notices) == (settled, [])
        snapshots = {0} if window == 1 else {128, 640}
        if settled in snapshots and read:
            assert usage.rerun == 0
        elif settled != 384 or not read:
            assert usage.rerun == empty_rerun(window, N, settled)
        engine.close()


EDGES = (1, 127, 128, 129, 255, 256, 257, 385, 511, 512, 513, 650)


@pytest.mark.parametrize(
    ("window", "path", "mode"),
    [
        (100, "native", {}),
        *(slow(w, p, {}) for w in WINDOWS for p in PATHS),
        *(slow(100, p, m) for p in PATHS for m in MODES[1:]),
    ],
    ids=named,
)
@pytest.mark.parametrize("with_snapshots", [slow(True), False], ids=["with", "without"])
def test_at_every_edge(models, reader, with_snapshots, window, path, mode):
    engine = reader(window, with_snapshots, path, **mode)
    for n_known in EDGES:
        for suffix in ([9], LONG):
            got, usage = answer(engine, IDS[:n_known], suffix)
            assert got == cold(models[window], IDS[:n_known] + suffix, path, **mode), n_known
            assert usage.reused_disk == n_known // 128 * 128
    assert not engine.notices


@pytest.mark.parametrize(("window", "path"), BOTH)
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


def test_a_warm_prefix_leaves_a_snapshot_at_its_end(models, tmp_path):
    model = models[100]
    writer = with_store(model, tmp_path / "kv")
    assert writer.warm(IDS[:300]).encoded == 256
    assert writer.store.match(IDS).snapshots == (256,)
    assert (writer.warm(IDS[:300]).reused_disk, writer.warm(IDS[:300]).rerun) == (256, 0)
    writer.close()
    engine = with_store(model, tmp_path / "kv")
    got, usage = answer(engine, IDS[:300], SHORT)
    assert got == cold(model, IDS[:300] + SHORT)
    assert (usage.reused_disk, usage.rerun) == (256, 0)
    engine.close()


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


def test_what_is_compared_can_differ(models):
    logits = [alone(models[w]).logits(IDS[:300]) for w in WINDOWS]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(logits, 2))
