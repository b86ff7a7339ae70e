"""The sparse index: scores and picks against sorting in Python, with ties, NaN and no rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ced_kernels.index_picks import candidate_blocks, index_scores, keep_candidates, top_picks
from ced_kernels.ordered.kernel_set import OrderedReference

INF = math.inf
KERNELS = OrderedReference()


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def sorted_picks(row, n_picks):
    """What one query picks, by sorting: best first, of equal ones the oldest, then ascending."""
    usable = [j for j, score in enumerate(row) if score > -INF]
    best = sorted(usable, key=lambda j: (-row[j], j))[:n_picks]
    return sorted(best)


def picked(scores, n_picks):
    return [[j for j in row if j >= 0] for row in top_picks(scores, n_picks=n_picks).tolist()]


# Few distinct values, so that ties are everywhere.
SCORES = st.sampled_from([-INF, -1.5, -0.0, 0.0, 0.25, 2.0, math.nan])


@st.composite
def score_rows(draw):
    width = draw(st.integers(0, 40))
    n_rows = draw(st.integers(1, 4))
    return [[draw(SCORES) for _ in range(width)] for _ in range(n_rows)], width


def tensor_of(rows, width):
    return torch.tensor(rows, dtype=torch.float32).view(len(rows), width)


# Scores.


@pytest.mark.parametrize(("n_rows", "n_heads", "n_keys"), [(5, 3, 41), (1, 1, 1), (2, 4, 5000)])
def test_scores_are_the_formula(n_rows, n_heads, n_keys):
    q, keys, weights = randn(n_rows, n_heads, 32), randn(n_keys, 32, seed=1), randn(n_rows, n_heads)
    visible = torch.arange(n_rows) * n_keys // max(1, n_rows - 1)
    got = index_scores(KERNELS, q, keys, weights, visible=visible)
    for t in range(n_rows):
        for j in {0, 1, n_keys // 2, n_keys - 1} & set(range(n_keys)):
            dots = q[t].double() @ keys[j].double()
            expected = float((weights[t].double() * dots.clamp(min=0)).sum())
            if j >= int(visible[t]):
                assert got[t, j] == -INF
            else:
                assert float(got[t, j]) == pytest.approx(expected, abs=2e-5)


def test_a_score_does_not_depend_on_the_rows_beside_it():
    q, keys, weights = randn(9, 4, 32), randn(70, 32, seed=1), randn(9, 4, seed=2)
    seen = torch.full((9,), 70)
    whole = index_scores(KERNELS, q, keys, weights, visible=seen)
    for t in range(9):
        alone = torch.zeros_like(q)
        alone[t] = q[t]
        assert torch.equal(index_scores(KERNELS, alone, keys, weights, visible=seen)[t], whole[t])


def test_scores_of_no_keys_and_of_no_queries_are_empty():
    for n_rows, n_keys in ((3, 0), (0, 5)):
        q, keys, weights = randn(n_rows, 2, 32), randn(n_keys, 32), randn(n_rows, 2)
        seen = torch.zeros(n_rows, dtype=torch.int64)
        assert index_scores(KERNELS, q, keys, weights, visible=seen).shape == (n_rows, n_keys)


def test_a_key_against_a_query_scores_zero_and_not_less():
    """relu: without it a head that disagrees would count against the row."""
    q = torch.ones(1, 2, 32)
    keys = torch.stack((torch.ones(32), -torch.ones(32)))
    scores = index_scores(KERNELS, q, keys, torch.ones(1, 2), visible=torch.tensor([2]))
    assert scores.tolist() == [[64.0, 0.0]]


# Picks.


@given(score_rows(), st.integers(0, 45))
@settings(max_examples=150, deadline=None)
def test_picks_are_those_of_sorting(rows, n_picks):
    rows, width = rows
    picks = top_picks(tensor_of(rows, width), n_picks=n_picks)
    assert picks.dtype is torch.int64
    assert picks.shape == (len(rows), min(n_picks, width))
    got = [[j for j in row if j >= 0] for row in picks.tolist()]
    assert got == [sorted_picks(row, n_picks) for row in rows]


def test_of_equal_scores_the_oldest_wins():
    scores = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0, 2.0], [0.0] * 6, [0, 3, 3, 3, 3, 0]])
    assert picked(scores, 3) == [[0, 1, 5], [0, 1, 2], [1, 2, 3]]


def test_zeros_of_both_signs_are_equal():
    assert picked(torch.tensor([[-0.0, 0.0, -0.0, 0.0]]), 2) == [[0, 1]]


@pytest.mark.parametrize("bad", [math.nan, -INF])
def test_what_is_no_score_never_becomes_a_row(bad):
    scores = torch.tensor([[bad, 1.0, bad, -2.0, bad], [bad] * 5])
    picks = top_picks(scores, n_picks=4)
    assert sorted(picks[0].tolist()) == [-1, -1, 1, 3]
    assert picks[1].tolist() == [-1] * 4


def test_fewer_rows_than_picks_give_each_row_once():
    assert top_picks(torch.tensor([[5.0, 7.0], [-INF, 1.0]]), n_picks=12).tolist() == [
        [0, 1],
        [-1, 1],
    ]
    assert top_picks(torch.zeros(3, 0), n_picks=12).shape == (3, 0)


def test_no_queries_pick_nothing():
    assert top_picks(torch.zeros(0, 9), n_picks=4).shape == (0, 4)
    none = torch.zeros(0, dtype=torch.int64)
    assert candidate_blocks(torch.zeros(0, 9), visible=none, n_blocks=2, block=4).shape == (0, 3)


def test_picks_ascend():
    for row in picked(randn(20, 57), 13):
        assert row == sorted(set(row))
        assert len(row) == 13


def test_hidden_rows_never_become_picks():
    q, keys, weights = randn(30, 3, 32), randn(29, 32, seed=1), randn(30, 3, seed=2)
    scores = index_scores(KERNELS, q, keys, weights, visible=torch.arange(30))
    for t, row in enumerate(picked(scores, 12)):
        assert len(row) == min(t, 12)
        assert all(j < t for j in row)


# Candidate blocks.


def sorted_blocks(row, seen, n_blocks, block):
    """Which blocks one query keeps, by sorting: its newest first, then the best, oldest of ties."""
    best = {}
    for j in range(min(seen, len(row))):
        score = -INF if math.isnan(row[j]) else row[j]
        best[j // block] = max(best.get(j // block, -INF), score)
    best = {b: score for b, score in best.items() if score > -INF}
    if seen:
        best[(seen - 1) // block] = INF
    return set(sorted(best, key=lambda b: (-best[b], b))[:n_blocks])


FINITE = st.sampled_from([-1.5, -0.0, 0.0, 0.25, 2.0])


@given(st.data(), st.integers(1, 40), st.integers(1, 9), st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_blocks_are_those_of_sorting(data, width, block, n_blocks):
    n_rows = data.draw(st.integers(1, 3))
    rows = [[data.draw(FINITE) for _ in range(width)] for _ in range(n_rows)]
    seen = [data.draw(st.integers(0, width)) for _ in range(n_rows)]
    visible = torch.tensor(seen)
    scores = tensor_of(rows, width)
    scores.masked_fill_(torch.arange(width) >= visible.unsqueeze(1), -INF)
    kept = candidate_blocks(scores, visible=visible, n_blocks=n_blocks, block=block)
    assert kept.shape == (n_rows, -(-width // block))
    got = [set(row.nonzero()[:, 0].tolist()) for row in kept]
    assert got == [
        sorted_blocks(row, seen[t], n_blocks, block) for t, row in enumerate(scores.tolist())
    ]


def test_the_newest_block_is_kept_though_it_is_the_worst():
    scores = torch.arange(40, 0, -1).float().expand(40, 40).clone()
    visible = torch.arange(1, 41)
    scores.masked_fill_(torch.arange(40) >= visible.unsqueeze(1), -INF)
    for n_blocks in (1, 2, 5):
        kept = candidate_blocks(scores, visible=visible, n_blocks=n_blocks, block=4)
        for t in range(40):
            assert kept[t, t // 4], t
            # The best others are the oldest here.
            n_others = min(n_blocks - 1, t // 4)
            assert kept[t].nonzero()[:, 0].tolist() == [*range(n_others), t // 4]


def test_of_equal_blocks_the_oldest_are_kept():
    scores, visible = torch.zeros(1, 24), torch.tensor([24])
    kept = candidate_blocks(scores, visible=visible, n_blocks=3, block=4)
    assert kept[0].tolist() == [True, True, False, False, False, True]


def test_a_block_counts_its_best_row_and_not_their_sum():
    scores = torch.tensor([[1.0, 1.0, 1.0, 1.0, 3.0, -9.0, -9.0, -9.0, 0.0, 0.0, 0.0, 0.0]])
    kept = candidate_blocks(scores, visible=torch.tensor([12]), n_blocks=2, block=4)
    assert kept[0].tolist() == [False, True, True]


def test_a_query_that_sees_nothing_has_no_block():
    scores = torch.full((2, 9), -INF)
    kept = candidate_blocks(scores, visible=torch.zeros(2, dtype=torch.int64), n_blocks=3, block=4)
    assert not kept.any()


def test_blocks_that_cover_everything_change_nothing():
    scores, visible = randn(50, 50), torch.arange(1, 51)
    scores.masked_fill_(torch.arange(50) >= visible.unsqueeze(1), -INF)
    kept = candidate_blocks(scores, visible=visible, n_blocks=13, block=4)
    bounded = keep_candidates(scores, kept, block=4)
    assert torch.equal(bounded, scores)
    assert torch.equal(top_picks(bounded, n_picks=12), top_picks(scores, n_picks=12))


def test_shrunken_blocks_change_picks_and_are_all_that_is_picked_from():
    scores, visible = randn(50, 50), torch.arange(1, 51)
    scores.masked_fill_(torch.arange(50) >= visible.unsqueeze(1), -INF)
    # Another layer's scores: it picks inside the source's blocks.
    other = scores + randn(50, 50, seed=1)
    kept = candidate_blocks(scores, visible=visible, n_blocks=3, block=4)
    bounded, free = picked(keep_candidates(other, kept, block=4), 10), picked(other, 10)
    assert sum(a != b for a, b in zip(bounded, free, strict=True)) > 30
    for t, row in enumerate(bounded):
        assert {j // 4 for j in row} <= set(kept[t].nonzero()[:, 0].tolist())
        assert len(row) == min(10, sum(kept[t, j // 4] for j in range(t + 1)))
    for t in range(12):
        assert bounded[t] == free[t], "three blocks cover the first 12 rows"


@given(st.integers(1, 30), st.integers(1, 9), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_what_may_be_picked_is_bounded_by_blocks(width, block, n_blocks):
    visible = torch.arange(1, width + 1)
    scores = randn(width, width, seed=width)
    scores.masked_fill_(torch.arange(width) >= visible.unsqueeze(1), -INF)
    kept = candidate_blocks(scores, visible=visible, n_blocks=n_blocks, block=block)
    bounded = keep_candidates(scores, kept, block=block)
    inside = kept.repeat_interleave(block, 1)[:, :width]
    assert torch.equal(bounded > -INF, inside & (scores > -INF))
    assert torch.equal(bounded[inside], scores[inside])
    assert int(kept.sum(1).max()) <= n_blocks
