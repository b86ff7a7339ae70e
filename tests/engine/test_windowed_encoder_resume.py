"""Windowed encoder layers: where a restart starts from; each start gives a cold run's bits.

Windows are taken from a snapshot, or begin empty far enough back; which one it was is read off the
number of rows run again.
"""

import itertools
import shutil

import pytest
from windowed_runs import (
    WINDOWED,
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
SHORT, LONG = some_ids(7, seed=1), some_ids(151, seed=2)
MODES = ({"replay_windows": 2}, {"mode": "exact"}, {"mode": "full"})
WINDOWS = (16, 100, 128)
N = len(WINDOWED)
CASES = [
    (100, "native"),
    *(slow(*case) for case in ((16, "native"), (128, "float32"), (100, "reference"))),
]


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


@pytest.mark.parametrize(("window", "path"), CASES)
def test_with_a_snapshot_nothing_is_run_again(models, reader, window, path):
    engine = reader(window, True, path)
    assert engine.store.match(IDS).snapshots == (640,)
    got, usage = answer(engine, IDS, SHORT)
    assert got == cold(models[window], IDS + SHORT, path)
    assert (usage.reused_disk, usage.rerun, engine.notices) == (640, 0, [])


@pytest.mark.parametrize(("window", "path"), CASES)
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


@pytest.mark.parametrize("mode", [*MODES[:2], slow(MODES[2])], ids=named)
@pytest.mark.parametrize("suffix", [SHORT, slow(LONG)], ids=named)
@pytest.mark.parametrize("with_snapshots", [slow(True), False], ids=["with", "without"])
def test_e_out_is_stored_so_a_mode_needs_nothing_more(models, reader, mode, suffix, with_snapshots):
    engine = reader(100, with_snapshots, **mode)
    got, usage = answer(engine, IDS, suffix)
    assert got == cold(models[100], IDS + suffix, **mode)
    assert usage.rerun == (0 if with_snapshots else 384)
    assert engine.notices == []


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


@pytest.mark.parametrize("window", [slow(1), slow(2), slow(200), slow(300)])
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


EDGES = (127, 128, 129, 255, 256, 385, 511, 512, 513)


@pytest.mark.parametrize(("window", "path"), [slow(100, "native"), slow(128, "float32")])
@pytest.mark.parametrize("with_snapshots", [True, False], ids=["with", "without"])
def test_at_every_edge(models, reader, with_snapshots, window, path):
    engine = reader(window, with_snapshots, path)
    for n_known in EDGES:
        for suffix in ([9], LONG):
            got, usage = answer(engine, IDS[:n_known], suffix)
            assert got == cold(models[window], IDS[:n_known] + suffix, path), n_known
            assert usage.reused_disk == n_known // 128 * 128
    assert not engine.notices


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
