"""int8_product: exact whatever the implementation, so that rows do not depend on company."""

import pytest
import torch

from ced_kernels.int8_product import choose_impl, int8_product, is_exact

IMPLS = [choose_impl(), "int8_fp32"]


def codes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-127, 128, shape, generator=generator).to(torch.int8)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 64, 5), (3, 1025, 31), (63, 100, 7), (128, 1536, 65)]
)
def test_product_equals_int64(impl, m, k, n):
    a, b = codes(m, k), codes(n, k, seed=1)
    assert torch.equal(int8_product(a, b, impl=impl).long(), a.long() @ b.long().t())


@pytest.mark.parametrize("impl", IMPLS)
def test_extreme_codes_are_exact_beyond_float32_integers(impl):
    a = torch.full((3, 4096), 127, dtype=torch.int8)
    b = torch.full((5, 4096), -127, dtype=torch.int8)
    b[1] = 127
    b[2, ::2] = 126
    assert torch.equal(int8_product(a, b, impl=impl).long(), a.long() @ b.long().t())


@pytest.mark.parametrize("impl", IMPLS)
def test_a_row_does_not_depend_on_the_rows_beside_it(impl):
    a, b = codes(128, 576), codes(31, 576, seed=1)
    whole = int8_product(a, b, impl=impl)
    for row in (0, 1, 63, 127):
        assert torch.equal(whole[row : row + 1], int8_product(a[row : row + 1], b, impl=impl))


def test_float32_codes_serve_the_fallback():
    a, b = codes(7, 300), codes(9, 300, seed=1)
    kept = int8_product(a, b.float(), impl="int8_fp32")
    assert torch.equal(kept, int8_product(a, b, impl="int8_fp32"))


def test_a_saturating_product_is_found_at_load(monkeypatch):
    def saturating(a, b):
        # What pmaddubsw does without VNNI: a is shifted to unsigned, pairs are summed in 16 bits.
        pairs = (a.long() + 128).unsqueeze(2) * b.long().unsqueeze(0)
        pairs = pairs.unflatten(1, (-1, 2)).sum(2).clamp(-(2**15), 2**15 - 1)
        return (pairs.sum(1) - 128 * b.long().sum(0)).int()

    monkeypatch.setattr(torch, "_int_mm", saturating)
    assert not is_exact("int_mm")
    assert choose_impl() == "int8_fp32"
