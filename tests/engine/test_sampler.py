"""Sampling: the draw is a function of (seed, position); masks and top-p are obeyed."""

import hashlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cedagent.engine.protocol import Sampling
from cedagent.engine.sampler import draw, sample
from cedagent.errors import EngineError


def test_draw_is_the_first_53_bits_of_the_digest():
    digest = hashlib.sha256((5).to_bytes(8, "little") + (130).to_bytes(8, "little")).digest()
    bits = "".join(f"{byte:08b}" for byte in digest)[:53]
    assert draw(5, 130) == int(bits, 2) / 2**53
    assert draw(5, 130) != draw(5, 131) != draw(6, 131)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
def test_draw_lies_in_the_unit_interval(seed, pos):
    assert 0 <= draw(seed, pos) < 1


def test_greedy_takes_the_smallest_id_among_equals():
    logits = torch.zeros(301)
    logits[[17, 40, 200]] = 3.0
    assert sample(logits, Sampling(), pos=0) == 17


def test_frequencies_follow_the_probabilities():
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    counts = [0, 0, 0]
    for pos in range(4000):
        counts[sample(logits, Sampling(temperature=1.0, seed=9), pos=pos)] += 1
    for count, probability in zip(counts, (0.5, 0.3, 0.2), strict=True):
        assert abs(count / 4000 - probability) < 0.03


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = torch.tensor([0.2, 0.5, 0.3]).log()
    taken = {
        sample(logits, Sampling(temperature=1.0, top_p=0.7, seed=1), pos=p) for p in range(300)
    }
    assert taken == {1, 2}
    taken = {
        sample(logits, Sampling(temperature=1.0, top_p=0.4, seed=1), pos=p) for p in range(300)
    }
    assert taken == {1}


@settings(max_examples=80, deadline=None)
@given(
    st.sets(st.integers(0, 299), min_size=1),
    st.floats(0, 3),
    st.floats(0.05, 1),
    st.integers(0, 999),
)
def test_only_allowed_ids_are_drawn(allowed, temperature, top_p, seed):
    mask = bytearray(38)
    for token in allowed:
        mask[token // 8] |= 1 << token % 8
    logits = torch.randn(300, generator=torch.Generator().manual_seed(seed))
    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
    assert sample(logits, sampling, pos=3, allowed=bytes(mask)) in allowed


def test_nothing_allowed_is_an_error_not_a_token():
    with pytest.raises(EngineError, match="no token is allowed"):
        sample(torch.zeros(16), Sampling(), pos=0, allowed=bytes(2))


def test_a_short_mask_is_refused():
    with pytest.raises(EngineError, match="mask of 8 bits for 16"):
        sample(torch.zeros(16), Sampling(), pos=0, allowed=b"\xff")


def test_not_a_number_is_an_error_not_a_token():
    with pytest.raises(EngineError, match="not finite"):
        sample(torch.full((16,), float("nan")), Sampling(), pos=0)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.floats(-6, 6, width=32), min_size=9, max_size=40),
    st.integers(0, 8),
    st.sets(st.integers(0, 8), min_size=1),
)
def test_what_needs_a_majority_is_taken_exactly_with_half_of_what_is_allowed(
    values, majority, allowed
):
    mask = bytearray(5)
    for i in allowed:
        mask[i // 8] |= 1 << i % 8
    logits = torch.tensor(values)
    before = logits.clone()
    taken = sample(logits, Sampling(), pos=3, allowed=bytes(mask), majority=majority)
    weights = {i: math.exp(values[i]) for i in allowed}
    share = weights.get(majority, 0.0) / sum(weights.values())
    if abs(share - 0.5) > 1e-9:
        others = [i for i in sorted(allowed) if i != majority]
        best = max(others, key=lambda i: values[i], default=majority)
        assert taken == (majority if share > 0.5 else best)
    assert torch.equal(logits, before)


def test_the_likeliest_id_is_not_taken_without_a_majority():
    logits = torch.tensor([0.4, 0.2, 0.2, 0.2]).log()
    assert sample(logits, Sampling(), pos=0) == 0
    assert sample(logits, Sampling(), pos=0, majority=0) == 1
    assert sample(logits, Sampling(), pos=0, majority=3) == 0
    # Of what is allowed it has two thirds.
    assert sample(logits, Sampling(), pos=0, allowed=bytes([0b0011]), majority=0) == 0


def test_a_random_draw_needs_no_majority():
    logits = torch.tensor([0.4, 0.2, 0.2, 0.2]).log()
    sampling = Sampling(temperature=1.0, seed=4)
    for pos in range(100):
        plain = sample(logits, sampling, pos=pos)
        assert plain == sample(logits, sampling, pos=pos, majority=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damaged_logits_are_refused_with_a_majority_too(value):
    logits = torch.zeros(8)
    logits[5] = value
    with pytest.raises(EngineError, match="not finite"):
        sample(logits, Sampling(), pos=0, majority=2)
