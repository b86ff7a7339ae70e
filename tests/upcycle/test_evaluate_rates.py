"""Shares have Wilson's interval, means the error of a ratio of sums; nothing counted is None."""

import math
import random
import statistics

import pytest

from cedagent.upcycle.evaluation.rates import mean_of, pooled, rate_of, share_of


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        # Newcombe 1998, table I, method 3 (Wilson's score without continuity correction).
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_the_published_one(right, n, low, high):
    found = rate_of(right, n)
    assert (found.right, found.n, found.value) == (right, n, right / n)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    mirrored = rate_of(n - right, n)
    assert mirrored.low == pytest.approx(1 - found.high)
    assert mirrored.high == pytest.approx(1 - found.low)


def test_what_was_not_judged_does_not_count():
    found = share_of([True, None, False, True, None])
    assert (found.right, found.n) == (2, 3)
    assert share_of([None, None]) is None
    assert rate_of(0, 0) is None


def test_pooled_rates_are_one_rate_over_all_outcomes():
    assert pooled([rate_of(3, 4), None, rate_of(0, 5)]) == rate_of(3, 9)
    assert pooled([None]) is None


def test_a_mean_is_per_token_whatever_the_stretches():
    found = mean_of([(1.0, 10), (5.0, 2)])
    assert (found.value, found.n) == (0.5, 12)
    assert mean_of([(1.0, 4)]).error is None
    assert mean_of([]) is None


def test_the_error_of_equal_stretches_is_the_usual_one():
    sums = [1.0, 2.5, 0.5, 4.0]
    means = [total / 8 for total in sums]
    expected = statistics.stdev(means) / math.sqrt(len(means))
    assert mean_of([(total, 8) for total in sums]).error == pytest.approx(expected)


def test_the_error_says_how_far_means_of_other_draws_lie_apart():
    rng = random.Random(3)

    def draw():
        # Tokens of a stretch go together, which an error over tokens would miss.
        stretches = []
        for _ in range(40):
            level = rng.gauss(1.0, 0.5)
            stretches.append((sum(rng.gauss(level, 0.1) for _ in range(9)), 9))
        return mean_of(stretches)

    draws = [draw() for _ in range(200)]
    spread = statistics.stdev(found.value for found in draws)
    assert statistics.mean(found.error for found in draws) == pytest.approx(spread, rel=0.15)
