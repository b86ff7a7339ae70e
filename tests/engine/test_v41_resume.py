"""V4.1: where a resume starts from, and that every start gives the bits of a cold run.

A re-run begins at a snapshot, in another sequence's windows, or with empty windows far enough back;
which one it was is read off the number of rows run again.
"""

import shutil

import pytest
from v41_runs import answer, cold, publish, some_ids, write_small, write_wide

from cedagent.engine import Engine
from cedagent.engine.v41.windows import V41Windows

IDS = some_ids(777)
SHORT, LONG = some_ids(7, seed=1), some_ids(151, seed=2)
EVERY = ({}, {"replay_windows": 2}, {"mode": "exact"}, {"mode": "full"})


def named(options):
    return " ".join(map(str, options.values())) or "R = 1"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "W = 16": write_small(folder / "small"),
        "W = 100": write_wide(folder / "wide"),
    }


@pytest.fixture(scope="module")
def stores(models, tmp_path_factory):
    """For each model a folder that R = 1 filled, with its snapshots and without."""
    folder, made = tmp_path_factory.mktemp("stores"), {}
    for name, model in models.items():
        made[name, True] = folder / f"{name}, with"
        publish(model, made[name, True], IDS)
        made[name, False] = folder / f"{name}, without"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(V41Windows, "snapshot", lambda self, state: None)
            publish(model, made[name, False], IDS)
    return made


@pytest.fixture
def reader(models, stores, tmp_path):
    """Opens engines on copies of the stores: a reader publishes too."""
    opened = []

    def load(name, with_snapshots, options):
        kv = shutil.copytree(stores[name, with_snapshots], tmp_path / f"kv{len(opened)}")
        opened.append(Engine.load(models[name], kv=kv, **options))
        return opened[-1]

    yield load
    for engine in opened:
        engine.close()


@pytest.fixture(scope="module")
def cold_answers(models):
    """A cold answer, worked out once for each model, settings and text."""
    known = {}

    def of(name, options, ids):
        key = name, tuple(options.items()), tuple(ids)
        if key not in known:
            known[key] = cold(Engine.load(models[name], **options), ids)
        return known[key]

    return of


def reach(config, options):
    """Rows before a prefill's end that a replay may run."""
    if options.get("mode") == "exact":
        return config.window + (config.n_decoder_layers - 1) * (config.window - 1)
    return options.get("replay_windows", 1) * config.window


def empty_rerun(config, options, settled):
    """Rows run again when windows begin empty: the formula of the design."""
    if options.get("mode") == "full":
        return settled
    rows = reach(config, options) + config.n_encoder_layers * (config.window - 1)
    return settled - max(0, settled - rows) // 128 * 128


@pytest.mark.parametrize("suffix", [SHORT, LONG], ids=["short suffix", "long suffix"])
@pytest.mark.parametrize("options", EVERY, ids=named)
@pytest.mark.parametrize("name", ["W = 16", "W = 100"])
def test_without_a_snapshot_windows_begin_empty_further_back(
    reader, cold_answers, name, options, suffix
):
    engine = reader(name, False, options)
    assert engine.store.match(IDS).snapshots == ()
    got, usage = answer(engine, IDS, suffix)
    assert got == cold_answers(name, options, IDS + suffix)
    assert (usage.reused_disk, engine.notices) == (768, [])
    assert usage.rerun == empty_rerun(engine.family.config, options, 768)


def test_how_many_tiles_these_are(models):
    """One at the small shape; with W = 100 the encoder's own windows alone span more than two."""
    rows = {
        name: empty_rerun(Engine.load(model).family.config, {}, 768)
        for name, model in models.items()
    }
    assert rows == {"W = 16": 128, "W = 100": 512}


@pytest.mark.parametrize("suffix", [SHORT, LONG], ids=["short suffix", "long suffix"])
@pytest.mark.parametrize("options", EVERY, ids=named)
@pytest.mark.parametrize("name", ["W = 16", "W = 100"])
def test_a_store_of_one_setting_serves_every_other(reader, cold_answers, name, options, suffix):
    engine = reader(name, True, options)
    assert engine.store.match(IDS).snapshots == (640,)
    got, usage = answer(engine, IDS, suffix)
    assert got == cold_answers(name, options, IDS + suffix)
    assert (usage.reused_disk, engine.notices) == (768, [])
    if name == "W = 100":
        # A snapshot at 640 serves a replay that reaches back one tile and no other.
        empty = empty_rerun(engine.family.config, options, 768)
        assert usage.rerun == (128 if options == {} else empty)


@pytest.mark.parametrize("options", EVERY[:3], ids=named)
def test_a_snapshot_of_two_windows_serves_one(models, tmp_path, cold_answers, options):
    model = models["W = 100"]
    publish(model, tmp_path / "kv", IDS, replay_windows=2)
    engine = Engine.load(model, kv=tmp_path / "kv", **options)
    assert engine.store.match(IDS).snapshots == (512,)
    got, usage = answer(engine, IDS, SHORT)
    assert got == cold_answers("W = 100", options, IDS + SHORT)
    # An exact replay of two layers reaches as far back as two windows, less one row.
    assert (usage.rerun, engine.notices) == (256, [])
    engine.close()


def test_an_older_snapshot_is_nearer_than_empty_windows(models, tmp_path, cold_answers):
    model = models["W = 100"]
    publish(model, tmp_path / "kv", IDS[:640], IDS)
    engine = Engine.load(model, kv=tmp_path / "kv", replay_windows=2)
    assert engine.store.match(IDS).snapshots == (640, 512)
    got, usage = answer(engine, IDS, SHORT)
    assert got == cold_answers("W = 100", {"replay_windows": 2}, IDS + SHORT)
    assert usage.rerun == 256
    engine.close()


@pytest.mark.parametrize("found", [None, b"", b"\1" * 1000], ids=["none", "empty", "other shape"])
def test_a_snapshot_that_cannot_be_read_is_none(reader, cold_answers, monkeypatch, found):
    engine = reader("W = 100", True, {})
    asked = []

    def read_snapshot(block_hash):
        asked.append(block_hash)
        return found

    monkeypatch.setattr(engine.store, "read_snapshot", read_snapshot)
    got, usage = answer(engine, IDS, SHORT)
    assert asked == [engine.store.match(IDS).block_hash(640)]
    assert got == cold_answers("W = 100", {}, IDS + SHORT)
    assert usage.rerun == empty_rerun(engine.family.config, {}, 768)


@pytest.mark.parametrize("n_known", [1, 127, 128, 129, 255, 256, 257, 301])
def test_at_every_edge_with_a_suffix_shorter_and_longer_than_the_window(models, reader, n_known):
    engine, alone = reader("W = 16", True, {}), Engine.load(models["W = 16"])
    for suffix in (SHORT, LONG[:23]):
        got, usage = answer(engine, IDS[:n_known], suffix)
        assert got == cold(alone, IDS[:n_known] + suffix)
        assert usage.reused_disk == n_known // 128 * 128


@pytest.mark.slow
@pytest.mark.parametrize("options", EVERY, ids=named)
@pytest.mark.parametrize("with_snapshots", [True, False], ids=["with", "without"])
@pytest.mark.parametrize("name", ["W = 16", "W = 100"])
def test_at_every_edge_in_every_mode(models, reader, name, with_snapshots, options):
    engine, alone = reader(name, with_snapshots, options), Engine.load(models[name], **options)
    for n_known in (1, 127, 128, 129, 255, 256, 257, 385, 639, 640, 641, 777):
        for suffix in ([9], SHORT, LONG):
            got, usage = answer(engine, IDS[:n_known], suffix)
            assert got == cold(alone, IDS[:n_known] + suffix), f"{n_known} + {len(suffix)}"
            assert usage.reused_disk == n_known // 128 * 128
    assert not engine.notices
