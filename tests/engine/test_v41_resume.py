"""V4.1: where a resume starts from, and that every start gives the bits of a cold run.

A re-run begins at a snapshot, in another sequence's windows, or with empty windows far enough back;
which one it was is read off the number of rows run again.
"""

import itertools
import shutil

import pytest
from v41_runs import (
    alone,
    answer,
    cold,
    publish,
    slow,
    some_ids,
    with_store,
    write_small,
    write_wide,
)

from cedagent.engine.v41.windows import V41Windows

IDS = some_ids(650)
SHORT, LONG = some_ids(7, seed=1), some_ids(151, seed=2)
EVERY = ({}, {"replay_windows": 2}, {"mode": "exact"}, {"mode": "full"})


def cases(*quick):
    """Every model, setting and suffix; all but the settings given here wait for the long run."""
    every = itertools.product(("W = 16", "W = 100"), EVERY, (SHORT, LONG))
    at_once = [("W = 100", options, SHORT) for options in quick]
    return [case if case in at_once else slow(*case) for case in every]


def named(value):
    if isinstance(value, dict):
        return " ".join(map(str, value.values())) or "1"
    return value if isinstance(value, str) else f"{len(value)} new"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "W = 16": write_small(folder / "small"),
        "W = 100": write_wide(folder / "wide"),
    }


@pytest.fixture(scope="module")
def stores(models, tmp_path_factory):
    """Makes, once, the store that R = 1 fills for a model, with its snapshots or without."""
    folder = tmp_path_factory.mktemp("stores")

    def of(name, with_snapshots):
        kv = folder / f"{name}, {with_snapshots}"
        if not kv.exists():
            with pytest.MonkeyPatch.context() as patch:
                if not with_snapshots:
                    patch.setattr(V41Windows, "snapshot", lambda self, state: None)
                publish(models[name], kv, IDS)
        return kv

    return of


@pytest.fixture
def reader(models, stores, tmp_path):
    """Opens engines on copies of the stores: a reader publishes too."""
    opened = []

    def load(name, with_snapshots, options):
        kv = shutil.copytree(stores(name, with_snapshots), tmp_path / f"kv{len(opened)}")
        opened.append(with_store(models[name], kv, **options))
        return opened[-1]

    yield load
    for engine in opened:
        engine.close()


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


@pytest.mark.parametrize(("name", "options", "suffix"), cases(EVERY[0]), ids=named)
@pytest.mark.slow
def test_without_a_snapshot_windows_begin_empty_further_back(models, reader, name, options, suffix):
    engine = reader(name, False, options)
    assert engine.store.match(IDS).snapshots == ()
    got, usage = answer(engine, IDS, suffix)
    assert got == cold(models[name], IDS + suffix, **options)
    assert (usage.reused_disk, engine.notices) == (640, [])
    assert usage.rerun == empty_rerun(engine.family.config, options, 640)


def test_how_many_tiles_these_are(models):
    """One at the small shape; with W = 100 the encoder's own windows alone span more than two."""
    rows = {n: empty_rerun(alone(model).family.config, {}, 640) for n, model in models.items()}
    assert rows == {"W = 16": 128, "W = 100": 512}


@pytest.mark.parametrize(("name", "options", "suffix"), cases(*EVERY[1:3]), ids=named)
@pytest.mark.slow
def test_a_store_of_one_setting_serves_every_other(models, reader, name, options, suffix):
    engine = reader(name, True, options)
    assert engine.store.match(IDS).snapshots == (512,)
    got, usage = answer(engine, IDS, suffix)
    assert got == cold(models[name], IDS + suffix, **options)
    assert (usage.reused_disk, engine.notices) == (640, [])
    if name == "W = 100":
        # A snapshot at 512 serves a replay that reaches back one tile and no other.
        empty = empty_rerun(engine.family.config, options, 640)
        assert usage.rerun == (128 if options == {} else empty)


@pytest.mark.slow
@pytest.mark.parametrize("options", EVERY[:3], ids=named)
def test_a_snapshot_of_two_windows_serves_one(models, tmp_path, options):
    model = models["W = 100"]
    publish(model, tmp_path / "kv", IDS, replay_windows=2)
    engine = with_store(model, tmp_path / "kv", **options)
    assert engine.store.match(IDS).snapshots == (384,)
    got, usage = answer(engine, IDS, SHORT)
    assert got == cold(model, IDS + SHORT, **options)
    # An exact replay of two layers reaches as far back as two windows, less one row.
    assert (usage.rerun, engine.notices) == (256, [])
    engine.close()


def test_an_older_snapshot_is_nearer_than_empty_windows(models, tmp_path):
    model = models["W = 100"]
    publish(model, tmp_path / "kv", IDS[:512], IDS)
    engine = with_store(model, tmp_path / "kv", replay_windows=2)
    assert engine.store.match(IDS).snapshots == (512, 384)
    got, usage = answer(engine, IDS, SHORT)
    assert got == cold(model, IDS + SHORT, replay_windows=2)
    assert usage.rerun == 256
    engine.close()


@pytest.mark.parametrize("found", [b"other", slow(b""), slow(None)])
def test_a_snapshot_that_cannot_be_read_is_none(models, reader, monkeypatch, found):
    engine = reader("W = 100", True, {})
    asked = []

    def read_snapshot(block_hash):
        asked.append(block_hash)
        return found

    monkeypatch.setattr(engine.store, "read_snapshot", read_snapshot)
    got, usage = answer(engine, IDS, SHORT)
    assert asked == [engine.store.match(IDS).block_hash(512)]
    assert got == cold(models["W = 100"], IDS + SHORT)
    assert usage.rerun == empty_rerun(engine.family.config, {}, 640)


@pytest.mark.parametrize("n_known", [257, *map(slow, (1, 127, 128, 129, 255, 256, 301, 513))])
def test_at_every_edge_with_a_suffix_shorter_and_longer_than_the_window(models, reader, n_known):
    engine = reader("W = 16", True, {})
    for suffix in (SHORT, LONG[:23]):
        got, usage = answer(engine, IDS[:n_known], suffix)
        assert got == cold(models["W = 16"], IDS[:n_known] + suffix)
        assert usage.reused_disk == n_known // 128 * 128


@pytest.mark.slow
@pytest.mark.parametrize("options", EVERY, ids=named)
@pytest.mark.parametrize("with_snapshots", [True, False], ids=["with", "without"])
@pytest.mark.parametrize("name", ["W = 16", "W = 100"])
def test_at_every_edge_in_every_mode(models, reader, name, with_snapshots, options):
    engine = reader(name, with_snapshots, options)
    for n_known in (1, 127, 128, 129, 255, 256, 257, 385, 511, 512, 513, 650):
        for suffix in ([9], SHORT, LONG):
            got, usage = answer(engine, IDS[:n_known], suffix)
            assert got == cold(models[name], IDS[:n_known] + suffix, **options), n_known
            assert usage.reused_disk == n_known // 128 * 128
    assert not engine.notices


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("W = 16", {}), slow("W = 100", {}), slow("W = 100", {"replay_windows": 2})],
    ids=named,
)
def test_from_ram_behind_where_the_other_sequence_stands(models, name, options):
    """A fork behind the settled end finds settled rows; windows or outputs there are gone.

    One block behind, windows are still held, and the outputs that a short suffix needs are not.
    """
    engine = alone(models[name], **options)
    source = engine.sequence()
    source.prefill(IDS)
    for n_tokens in (520, 300, 128):
        fork = source.fork(n_tokens)
        got, usage = answer(engine, fork.ids, SHORT)
        assert got == cold(models[name], IDS[:n_tokens] + SHORT, **options)
        settled = n_tokens // 128 * 128
        assert (usage.reused_ram, usage.reused_disk) == (settled, 0)
        assert usage.rerun == empty_rerun(engine.family.config, options, settled)
    source.close()
