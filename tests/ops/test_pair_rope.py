"""Rotation of adjacent pairs, its inverse, and YaRN's frequencies."""

import math

import pytest
import torch

from ced_kernels.rope import Yarn, pair_table, rope_table, rotate, rotate_pairs

RELEASED = Yarn(factor=16, beta_fast=32, beta_slow=1, original_positions=65536)


def rows(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def frequencies(yarn, *, dim, theta):
    """Return the frequencies that the table's angles at position 1 have."""
    cos, sin = pair_table(2, dim, theta=theta, yarn=yarn)
    return torch.atan2(sin[1].double(), cos[1].double())


def test_pairs_turn_by_their_positions_angle():
    cos, sin = pair_table(100, 8, theta=100.0, yarn=None)
    assert cos.shape == sin.shape == (100, 4)
    x = rows(1, 3, 20)
    turned = rotate_pairs(x, cos[77:78], sin[77:78])
    assert torch.equal(turned[..., :12], x[..., :12])
    for i in range(4):
        angle = torch.tensor(77 * 100.0 ** (-2 * i / 8), dtype=torch.float64)
        a, b = 12 + 2 * i, 13 + 2 * i
        pair = torch.complex(x[..., a].double(), x[..., b].double())
        expected = pair * torch.polar(torch.ones_like(angle), angle)
        got = torch.complex(turned[..., a].double(), turned[..., b].double())
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


def test_heads_of_a_row_share_its_angle():
    cos, sin = pair_table(7, 6, theta=50.0, yarn=None)
    x = rows(7, 5, 10)
    whole = rotate_pairs(x, cos, sin)
    for head in range(5):
        assert torch.equal(whole[:, head], rotate_pairs(x[:, head], cos, sin))
    assert torch.equal(whole[3:4], rotate_pairs(x[3:4], cos[3:4], sin[3:4]))


def test_the_inverse_turns_back():
    cos, sin = pair_table(9, 16, theta=10000.0, yarn=None)
    x = rows(9, 3, 40)
    back = rotate_pairs(rotate_pairs(x, cos, sin), cos, sin, inverse=True)
    torch.testing.assert_close(back, x, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(rotate_pairs(x, cos, sin, inverse=True), rotate_pairs(x, cos, sin))


def test_a_row_that_is_all_rope_is_turned_whole():
    cos, sin = pair_table(3, 8, theta=100.0, yarn=None)
    x = rows(3, 8)
    norms = [y.unflatten(-1, (4, 2)).norm(dim=-1) for y in (x, rotate_pairs(x, cos, sin))]
    torch.testing.assert_close(*norms)


def test_scores_depend_on_the_distance_alone():
    cos, sin = pair_table(5000, 16, theta=160000.0, yarn=RELEASED)
    q, k = rows(2, 1, 16, seed=1).unbind(0)

    def score(i, j):
        turned = rotate_pairs(q, cos[i : i + 1], sin[i : i + 1])
        return float((turned * rotate_pairs(k, cos[j : j + 1], sin[j : j + 1])).sum())

    # Half a float32 step of an angle of 4,900 is 2.4e-4.
    assert abs(score(9, 2) - score(4907, 4900)) < 2e-3
    assert abs(score(9, 2) - score(9, 3)) > 2e-2


def test_pairs_are_not_halves():
    x = rows(4, 8)
    cos, sin = pair_table(4, 8, theta=100.0, yarn=None)
    halves = rotate(x, *rope_table(4, 8, theta=100.0))
    assert not torch.allclose(rotate_pairs(x, cos, sin)[1:], halves[1:], atol=1e-2)
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    torch.testing.assert_close(rotate_pairs(x[:, order], cos, sin), halves[:, order])


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_ramps_between():
    theta, dim = 160000.0, 64
    plain = torch.tensor([theta ** (-2 * i / dim) for i in range(dim // 2)], dtype=torch.float64)
    got = frequencies(RELEASED, dim=dim, theta=theta)
    # Pairs that turn 32 times and once within 65536 positions: 15.45 and 24.71.
    low, high = 15, 25
    for i in range(dim // 2):
        slow = min(max((i - low) / (high - low), 0), 1)
        expected = plain[i] * (1 - slow) + plain[i] / 16 * slow
        assert math.isclose(got[i], expected, rel_tol=1e-6), i
    assert math.isclose(got[15], plain[15], rel_tol=1e-6)
    assert not math.isclose(got[16], plain[16], rel_tol=1e-2)
    assert math.isclose(got[25], plain[25] / 16, rel_tol=1e-6)
    assert not math.isclose(got[24], plain[24] / 16, rel_tol=1e-2)


def test_yarn_clamps_the_ramp_to_the_pairs_there_are():
    # Within 64 positions no pair turns 32 times: the ramp starts at 0.
    yarn = Yarn(factor=16, beta_fast=32, beta_slow=1, original_positions=64)
    theta, dim = 160000.0, 16
    got = frequencies(yarn, dim=dim, theta=theta)
    plain = torch.tensor([theta ** (-2 * i / dim) for i in range(dim // 2)], dtype=torch.float64)
    ratio = got / plain
    expected = [1, 0.5 + 0.5 / 16, *[1 / 16] * 6]
    torch.testing.assert_close(
        ratio, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=0
    )


def test_yarn_without_a_ramp_is_a_step():
    # Both ends at 0: pair 0 is kept, all others are slow.
    yarn = Yarn(factor=4, beta_fast=32, beta_slow=16, original_positions=64)
    got = frequencies(yarn, dim=8, theta=10000.0)
    plain = torch.tensor([10000.0 ** (-2 * i / 8) for i in range(4)], dtype=torch.float64)
    assert torch.isfinite(got).all()
    scaled = torch.tensor([1, 1 / 4, 1 / 4, 1 / 4], dtype=torch.float64)
    torch.testing.assert_close(got / plain, scaled, rtol=1e-5, atol=0)


def test_yarn_scales_no_query_and_no_key():
    cos, sin = pair_table(3000, 64, theta=160000.0, yarn=RELEASED)
    torch.testing.assert_close(cos.square() + sin.square(), torch.ones_like(cos))


@pytest.mark.parametrize("yarn", [None, RELEASED], ids=["plain", "yarn"])
def test_angles_are_float32_numbers_whose_cosines_are_exact(yarn):
    theta, dim, far = 160000.0, 16, 100_000
    cos, sin = pair_table(far + 1, dim, theta=theta, yarn=yarn)
    plain = [theta ** (-2 * i / dim) for i in range(dim // 2)]
    exact = torch.tensor(plain, dtype=torch.float64)
    if yarn is not None:
        exact = yarn.frequencies(exact, theta=theta)
    nearest = exact.float()
    # A frequency is one of the float32 numbers around the exact one; so is its angle, a product.
    around = [torch.nextafter(nearest, torch.full_like(nearest, to)) for to in (0, math.inf)]
    angles = torch.stack([far * frequency for frequency in (nearest, *around)]).double()
    matches = (angles.cos().float() == cos[far]) & (angles.sin().float() == sin[far])
    assert matches.any(0).all()
    assert not torch.equal(cos[far], (far * exact).cos().float())
    # Pair 0 has frequency 1: its angle is a whole number, its cosine exact at any position.
    assert cos[far, 0] == torch.tensor(math.cos(far), dtype=torch.float32)
    assert sin[far, 0] == torch.tensor(math.sin(far), dtype=torch.float32)
