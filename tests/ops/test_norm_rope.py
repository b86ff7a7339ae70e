"""rms_norm and rope against their formulas in float64."""

import torch

from ced_kernels.norm import rms_norm
from ced_kernels.rope import rope_table, rotate


def test_rms_norm_is_its_formula():
    x = torch.randn(7, 33, generator=torch.Generator().manual_seed(0))
    weight = torch.linspace(-1, 2, 33)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, eps=1e-5), exact.float(), atol=1e-6, rtol=1e-6)


def test_rms_norm_rows_are_independent():
    x = torch.randn(128, 576, generator=torch.Generator().manual_seed(0))
    weight = torch.ones(576)
    whole = rms_norm(x, weight, eps=1e-5)
    assert torch.equal(whole[5:6], rms_norm(x[5:6], weight, eps=1e-5))


def test_rotation_turns_half_split_pairs_by_their_angle():
    cos, sin = rope_table(100, 8, theta=100.0)
    x = torch.randn(3, 1, 8, generator=torch.Generator().manual_seed(0))
    turned = rotate(x, cos[77:78], sin[77:78])
    for i in range(4):
        angle = torch.tensor(77 * 100.0 ** (-2 * i / 8), dtype=torch.float64)
        pair = torch.complex(x[..., i].double(), x[..., i + 4].double())
        expected = pair * torch.polar(torch.ones_like(angle), angle)
        got = torch.complex(turned[..., i].double(), turned[..., i + 4].double())
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


def test_scores_depend_on_the_distance_alone():
    cos, sin = rope_table(5000, 16, theta=10000.0)
    q, k = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(1)).unbind(0)

    def score(i: int, j: int) -> float:
        return float(
            (
                rotate(q, cos[i : i + 1], sin[i : i + 1])
                * rotate(k, cos[j : j + 1], sin[j : j + 1])
            ).sum()
        )

    assert abs(score(9, 2) - score(4907, 4900)) < 1e-5
    assert abs(score(9, 2) - score(9, 3)) > 1e-3
