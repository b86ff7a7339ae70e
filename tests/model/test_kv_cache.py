"""KvCache: rows that are forgotten are gone, the others stay, and any bit makes a difference."""

import pytest
import torch
from interruption import interrupted

from cedagent.model.llama import cache as module
from cedagent.model.llama.cache import KvCache
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.tiny import write_tiny


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return LlamaConfig.load(write_tiny(tmp_path_factory.mktemp("tiny"), n_kv_heads=1, int8=False))


def filled(config, n_rows, *, int8, base=0, seed=0):
    """A cache whose rows base .. base + n_rows - 1 are random."""
    cache, random = KvCache(config, int8=int8, base=base), torch.Generator().manual_seed(seed)
    rows = cache.room(base, base + n_rows)
    if int8:
        rows.codes.copy_(torch.randint(-127, 128, rows.codes.shape, generator=random))
        rows.scale.copy_(torch.rand(rows.scale.shape, generator=random))
    else:
        rows.codes.copy_(torch.randn(rows.codes.shape, generator=random))
    return cache


def parts(cache, start, stop):
    return [part.clone() for part in cache.rows(start, stop) if part is not None]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("start", [1, 127, 699, 700, 900])
def test_rows_after_the_dropped_ones_stay_at_their_positions(config, int8, start):
    cache = filled(config, 700, int8=int8)
    kept = min(start, 700)
    expected = parts(cache, kept, 700)
    cache.drop_before(start)
    assert cache.base == start
    if start < 700:
        assert same(parts(cache, start, 700), expected)
    cache.reserve(start + 5000)
    if start < 700:
        assert same(parts(cache, start, 700), expected)
    for read in (cache.span, cache.rows):
        with pytest.raises(AssertionError):
            read(start - 1, start)


@pytest.mark.parametrize("int8", [True, False])
def test_a_cache_that_begins_there_is_left_alone(config, int8):
    cache = filled(config, 100, int8=int8, base=50)
    expected, memory = parts(cache, 50, 150), cache.rows(50, 51).codes.data_ptr()
    for start in (0, 49, 50):
        cache.drop_before(start)
    assert (cache.base, cache.rows(50, 51).codes.data_ptr()) == (50, memory)
    assert same(parts(cache, 50, 150), expected)


def test_rows_without_memory_cannot_be_read(config):
    cache = filled(config, 700, int8=True, base=50)
    assert cache.capacity == 700
    assert cache.rows(749, 750).codes.shape[2] == 1
    for read in (cache.span, cache.rows):
        with pytest.raises(AssertionError, match="position 751 of 700 from 50 on"):
            read(750, 751)


def test_long_memory_is_given_back(config):
    cache = filled(config, 5000, int8=True)
    cache.drop_before(1000)
    assert cache.capacity == 4000
    cache.drop_before(4900)
    assert cache.capacity == 512


def test_rows_may_be_dropped_outside_of_inference_mode(config):
    with torch.inference_mode():
        cache = filled(config, 300, int8=True)
    cache.drop_before(100)
    with torch.inference_mode():
        cache.room(300, 301).codes[:] = 1


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize(
    "move", [lambda c: c.reserve(900), lambda c: c.drop_before(60)], ids=["reserve", "drop"]
)
def test_ctrl_c_while_rows_move_loses_none(config, int8, move):
    expected, n = parts(filled(config, 700, int8=int8), 60, 700), 0
    while True:
        cache = filled(config, 700, int8=int8)
        if not interrupted(lambda held=cache: move(held), n, module):
            break
        assert same(parts(cache, 60, 700), expected), f"line {n}"
        rows = cache.room(700, 701)
        assert rows.scale is None or rows.scale.shape == rows.codes.shape[:3], f"line {n}"
        n += 1
    assert n > 5


@pytest.mark.parametrize("int8", [True, False])
def test_the_first_row_with_another_bit_is_found(config, int8):
    """In keys or values, codes or scales; the base of either cache does not matter."""
    a = filled(config, 300, int8=int8)
    b = KvCache(config, int8=int8, base=100)
    b.copy_rows(a, 100, 300)
    assert a.differs_at(b, 100, 300) is None
    assert a.differs_at(b, 300, 300) is None
    for part in [p for p in b.rows(100, 300) if p is not None]:
        for which, position in ((1, 250), (0, 170), (1, 101)):
            integers = part.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[part.itemsize])
            before = integers.clone()
            integers[which, 0, [position - 100, 199]] ^= 1
            assert a.differs_at(b, 100, 300) == b.differs_at(a, 100, 300) == position
            assert a.differs_at(b, position + 1, 299) is None
            assert a.differs_at(b, 100, position) is None
            integers.copy_(before)


def test_a_zero_with_another_sign_is_another_row(config):
    a, b = (KvCache(config, int8=False) for _ in range(2))
    for cache in (a, b):
        cache.reserve(10)
    b.rows(0, 10).codes[0, 0, 7, 3] = -0.0
    assert a.differs_at(b, 0, 10) == 7
