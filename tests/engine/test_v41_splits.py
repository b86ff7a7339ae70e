"""V4.1: one prefill and every way of splitting it leave the same bits, in logits and all rows."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from v41_runs import run, some_ids, write_small, write_wide

from cedagent.engine import Engine

EDGES = (1, 2, 3, 15, 16, 17, 127, 128, 129, 255, 256, 257, 399)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return Engine.load(write_small(tmp_path_factory.mktemp("w16") / "model"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return Engine.load(write_wide(tmp_path_factory.mktemp("w100") / "model"))


def pieces(ids, cuts):
    edges = [0, *sorted(set(cuts)), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


def test_two_texts_differ_in_everything_that_is_compared(engine):
    """So that equal runs below mean something."""
    a, b = run(engine, some_ids(301)), run(engine, some_ids(301, seed=1))
    assert a.logits != b.logits
    assert a.sources.keys() == b.sources.keys()
    assert sorted(a.sources) == ["index_key.2", "index_key.4", "latent.2", "latent.4"]
    assert all(a.sources[name] != b.sources[name] for name in a.sources)
    assert a.pending.keys() == b.pending.keys() == {2}
    assert a.pending != b.pending
    assert (len(a.encoder_windows), len(a.decoder_windows)) == (4, 3)
    both = zip(a.encoder_windows + a.decoder_windows, b.encoder_windows + b.decoder_windows,
               strict=True)  # fmt: skip
    assert all(x != y for x, y in both)


def test_one_cut_on_each_side_of_every_edge(engine):
    ids = some_ids(400)
    expected = run(engine, ids)
    for cut in EDGES:
        assert run(engine, ids[:cut], ids[cut:]) == expected, f"cut at {cut}"


@pytest.mark.parametrize(
    "cuts",
    [
        (1, 2, 3, 4, 5),
        (127, 128, 129),
        (128, 256),
        (255, 256, 257),
        (1, 127, 128, 129, 255, 256, 257, 300),
        tuple(range(0, 391, 13))[1:],
    ],
    ids=["single tokens", "around 128", "whole tiles", "around 256", "every edge", "odd pieces"],
)
def test_many_cuts(engine, cuts):
    ids = some_ids(391, seed=2)
    assert run(engine, *pieces(ids, cuts)) == run(engine, ids)


def test_an_append_of_nothing_changes_nothing(engine):
    for n in (1, 127, 128, 129, 257):
        ids = some_ids(n, seed=n)
        assert run(engine, ids, [], []) == run(engine, ids)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_split_of_any_length(engine, data):
    ids = some_ids(data.draw(st.integers(2, 400), label="tokens"), seed=7)
    cuts = data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=4), label="cuts")
    assert run(engine, *pieces(ids, cuts)) == run(engine, ids)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_split_of_any_length_with_a_window_of_100(wide, data):
    ids = some_ids(data.draw(st.integers(2, 400), label="tokens"), seed=8)
    cuts = data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=5), label="cuts")
    assert run(wide, *pieces(ids, cuts)) == run(wide, ids)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"mode": "exact"}, {"mode": "full"}, {"replay_windows": 3}])
def test_splits_in_every_mode(engine, options):
    other = Engine.load(engine.model_dir, **options)
    ids = some_ids(300, seed=3)
    expected = run(other, ids)
    for cut in (1, 16, 127, 128, 129, 255, 256, 257, 299):
        assert run(other, ids[:cut], ids[cut:]) == expected, f"cut at {cut}"
