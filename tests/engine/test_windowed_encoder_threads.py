"""Float32 rows have the same bits with any number of threads: processes with others share a store.

Not with any shape: MKL gives a thread columns or rows of a product, and its routine for a few of
them rounds otherwise. So shapes are made of whole tiles, or of grains.
"""

import pytest
import torch
from windowed_runs import alone, run, slow, some_ids, write_windowed

THREADS = (2, 3, 4, 8)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def write(dst, window):
    # A vocabulary of odd size would have odd logits.
    return write_windowed(dst, window=window, vocab_size=336)


def test_a_product_of_another_shape_shows_the_number_of_threads(threads):
    """99 keys, as many as a window of 100 has before a tile."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, n, 16, generator=random) for n in (384, 99))
    found = []
    for n in (1, 4):
        threads(n)
        found.append(torch.bmm(q, k.transpose(1, 2)))
    if torch.equal(*found):
        pytest.skip("these libraries round alike")


@pytest.mark.parametrize("window", [100, *map(slow, (2, 18, 34, 66, 128, 200))])
def test_rows_of_tiles(tmp_path, threads, window):
    engine, ids = alone(write(tmp_path / "model", window), "float32"), some_ids(384)
    expected = None
    for n in (1, *THREADS):
        threads(n)
        state = engine.family.new_state()
        for tile in range(3):
            engine.encode_tile(state, ids, tile=tile)
        found = [state.e_out(0, 384), *(part for c in state.encoder for part in c.rows(256, 384))]
        expected = expected or found
        pairs = zip(found, expected, strict=True)
        assert all(torch.equal(a, b) for a, b in pairs if a is not None), f"{n} threads"


@pytest.mark.parametrize("n_tokens", [7, 145, *map(slow, (1, 2, 10, 17, 33, 75, 99, 200))])
def test_answers(tmp_path, threads, n_tokens):
    """A replay of a few rows, of an odd number, and behind an odd number of tokens."""
    engine, ids = alone(write(tmp_path / "model", 128), "float32"), some_ids(n_tokens)
    expected = run(engine, ids)
    for n in THREADS:
        threads(n)
        assert run(engine, ids) == expected, f"{n} threads"


def test_rows_that_fill_up_ask_for_no_more_than_there_is(tmp_path):
    """Two rows at the end of what there is memory for, filled up to sixteen."""
    engine, ids = alone(write(tmp_path / "model", 2), "float32"), some_ids(512)
    assert run(engine, ids) == run(engine, ids[:500], ids[500:])
