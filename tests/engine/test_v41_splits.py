"""V4.1: one prefill and every way of splitting it leave the same bits, in logits and all rows."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from v41_runs import alone, run, slow, some_ids, write_small, write_wide

EDGES = (1, 127, 128, 129, 255, 256, 257)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("w16") / "model")


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return write_wide(tmp_path_factory.mktemp("w100") / "model")


def pieces(ids, cuts):
    edges = [0, *sorted(set(cuts)), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


def test_two_texts_differ_in_everything_that_is_compared(small):
    """So that equal runs below mean something."""
    a, b = (run(alone(small), some_ids(139, seed=seed)) for seed in (0, 1))
    assert a.logits != b.logits
    assert a.sources.keys() == b.sources.keys()
    assert sorted(a.sources) == ["index_key.2", "index_key.4", "latent.2", "latent.4"]
    assert all(a.sources[name] != b.sources[name] for name in a.sources)
    assert a.pending.keys() == b.pending.keys() == {2}
    assert a.pending != b.pending
    assert (len(a.encoder_windows), len(a.decoder_windows)) == (4, 3)
    ours, theirs = a.encoder_windows + a.decoder_windows, b.encoder_windows + b.decoder_windows
    assert all(x != y for x, y in zip(ours, theirs, strict=True))


@pytest.mark.slow
def test_one_cut_on_each_side_of_every_edge(small):
    ids = some_ids(271)
    expected = run(alone(small), ids)
    for cut in EDGES:
        assert run(alone(small), ids[:cut], ids[cut:]) == expected, f"cut at {cut}"


@pytest.mark.parametrize(
    "cuts",
    [
        (1, 2, 127, 128, 129),
        slow((1, 2, 3, 4, 5)),
        slow((128, 256)),
        slow((255, 256, 257)),
        slow((15, 16, 17, 127, 128, 129, 255, 256, 257, 300)),
        slow(tuple(range(0, 391, 13))[1:]),
    ],
    ids=["over 128", "single tokens", "whole tiles", "over 256", "every edge", "odd pieces"],
)
def test_many_cuts(small, cuts):
    ids = some_ids(max(cuts) + 5, seed=2)
    assert run(alone(small), *pieces(ids, cuts)) == run(alone(small), ids)


@pytest.mark.parametrize("n", [1, 128, slow(127), slow(129), slow(257)])
def test_an_append_of_nothing_changes_nothing(small, n):
    ids = some_ids(n, seed=n)
    assert run(alone(small), ids, [], []) == run(alone(small), ids)


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_any_split_of_any_length(small, data):
    ids = some_ids(data.draw(st.integers(2, 400), label="tokens"), seed=7)
    cuts = data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=3), label="cuts")
    assert run(alone(small), *pieces(ids, cuts)) == run(alone(small), ids)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_split_of_any_length_with_a_window_of_100(wide, data):
    ids = some_ids(data.draw(st.integers(2, 400), label="tokens"), seed=8)
    cuts = data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=5), label="cuts")
    assert run(alone(wide), *pieces(ids, cuts)) == run(alone(wide), ids)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"mode": "exact"}, {"mode": "full"}, {"replay_windows": 3}])
def test_splits_in_every_mode(small, options):
    engine, ids = alone(small, **options), some_ids(400, seed=3)
    expected = run(engine, ids)
    for cut in (1, 2, 3, 15, 16, 17, 127, 128, 129, 255, 256, 257, 399):
        assert run(engine, ids[:cut], ids[cut:]) == expected, f"cut at {cut}"
