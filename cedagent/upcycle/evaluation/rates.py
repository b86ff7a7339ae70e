"""Figures with their uncertainty: shares with Wilson's interval, means with a standard error.

Knows numbers alone, not what they count. Invariant: a figure without anything to count is None, not
0 or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_Z = 1.959963984540054
"""The 97.5% point of the normal distribution: two-sided 95%."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How many of n were right."""

    right: int
    n: int
    low: float
    """Lower end of Wilson's 95% interval."""
    high: float
    """Upper end."""

    @property
    def value(self) -> float:
        """The share, 0 to 1."""
        return self.right / self.n


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean per token."""

    value: float
    error: float | None
    """Standard error over stretches of text; None where there is one stretch alone."""
    n: int
    """Tokens."""


def rate_of(right: int, n: int) -> Rate | None:
    """Return `right` of `n` with Wilson's 95% interval; None for n = 0."""
    if not n:
        return None
    share, z2 = right / n, _Z * _Z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    # The ends are exact at 0 and 1, where rounding would leave 1e-17 beside them.
    low = 0.0 if right == 0 else max(0.0, middle - half)
    return Rate(right, n, low, 1.0 if right == n else min(1.0, middle + half))


def share_of(outcomes: Iterable[bool | None]) -> Rate | None:
    """Return how many outcomes are True; None among them was not judged and does not count."""
    judged = [outcome for outcome in outcomes if outcome is not None]
    return rate_of(sum(judged), len(judged))


def pooled(rates: Iterable[Rate | None]) -> Rate | None:
    """Return several rates as one."""
    found = [rate for rate in rates if rate is not None]
    return rate_of(sum(rate.right for rate in found), sum(rate.n for rate in found))


def mean_of(stretches: Sequence[tuple[float, int]]) -> Mean | None:
    """Return the mean per token of stretches (sum, tokens); None where there is no token.

    Tokens beside each other are not independent, stretches are taken to be: the error is that of a
    ratio of sums over them.
    """
    n = sum(tokens for _, tokens in stretches)
    if not n:
        return None
    mean = sum(total for total, _ in stretches) / n
    k = len(stretches)
    if k < 2:
        return Mean(mean, None, n)
    squares = sum((total - mean * tokens) ** 2 for total, tokens in stretches)
    return Mean(mean, math.sqrt(squares * k / (k - 1)) / n, n)
