"""Windowed encoder layers: one prefill and every way of splitting it leave the same bits.

In logits, streams, E_out, and the window rows of both halves.
"""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from windowed_runs import PATHS, alone, run, slow, some_ids, write_windowed

EDGES = (1, 127, 128, 129, 255, 256, 257)
OFTEN = ["native", slow("reference"), slow("float32")]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {w: write_windowed(folder / f"{w}", window=w) for w in (16, 100, 128)}


def pieces(ids, cuts):
    edges = [0, *sorted(set(cuts)), len(ids)]
    return [ids[a:b] for a, b in itertools.pairwise(edges)]


def test_two_texts_differ_in_everything_that_is_compared(models):
    """So that equal runs below mean something."""
    a, b = (run(alone(models[16]), some_ids(139, seed=seed)) for seed in (0, 1))
    assert a.logits != b.logits
    assert a.e_out != b.e_out
    assert [len(part) for part in (a.streams, a.encoder_windows, a.decoder_windows)] == [2, 5, 2]
    ours = a.streams + a.encoder_windows + a.decoder_windows
    theirs = b.streams + b.encoder_windows + b.decoder_windows
    assert all(x != y for x, y in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("window", [100, slow(16), slow(128)])
@pytest.mark.parametrize("path", OFTEN)
def test_one_cut_on_each_side_of_every_edge(models, path, window):
    ids, engine = some_ids(271), alone(models[window], path)
    expected = run(engine, ids)
    for cut in EDGES:
        assert run(engine, ids[:cut], ids[cut:]) == expected, f"cut at {cut}"


@pytest.mark.parametrize(
    "cuts",
    [
        (1, 2, 127, 128, 129),
        slow((1, 2, 3, 4, 5)),
        slow((255, 256, 257)),
        slow(tuple(range(0, 391, 13))[1:]),
    ],
    ids=["over 128", "single tokens", "over 256", "odd pieces"],
)
def test_many_cuts(models, cuts):
    ids = some_ids(max(cuts) + 5, seed=2)
    assert run(alone(models[100]), *pieces(ids, cuts)) == run(alone(models[100]), ids)


@pytest.mark.parametrize("n", [1, 128, *map(slow, (127, 129, 257))])
def test_an_append_of_nothing_changes_nothing(models, n):
    ids = some_ids(n, seed=n)
    assert run(alone(models[16]), ids, [], []) == run(alone(models[16]), ids)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_split_of_any_length(models, data):
    window = data.draw(st.sampled_from((16, 100, 128)), label="window")
    path = data.draw(st.sampled_from(list(PATHS)), label="path")
    mode = data.draw(st.sampled_from(("bounded", "exact", "full")), label="mode")
    engine = alone(models[window], path, mode=mode)
    ids = some_ids(data.draw(st.integers(2, 500), label="tokens"), seed=8)
    cuts = data.draw(st.sets(st.integers(1, len(ids) - 1), max_size=5), label="cuts")
    assert run(engine, *pieces(ids, cuts)) == run(engine, ids)


@pytest.mark.parametrize("path", OFTEN)
@pytest.mark.parametrize("n", [17, 129, slow(1), slow(100), slow(200)])
def test_a_row_does_not_depend_on_what_shares_its_tile(models, n, path):
    """Rows of a prefix: alone, where the rest of the tile is padding, and before other texts."""
    engine, prefix = alone(models[16], path, mode="full"), some_ids(n)

    def rows(ids):
        state = engine.family.new_state()
        with engine.forward():
            for tile in range(-(-len(ids) // 128)):
                engine.family.encode_tile(state, ids, tile=tile)
            found = [part[:, :, :n].clone() for c in state.encoder for part in c.rows(0, n)
                     if part is not None]  # fmt: skip
            return [*found, state.e_out(0, n)]

    by_itself = rows(prefix)
    for seed, more in ((1, 1), (2, 100), (3, 200)):
        longer = rows(prefix + some_ids(more, seed=seed))
        assert all(bool((a == b).all()) for a, b in zip(longer, by_itself, strict=True)), more
