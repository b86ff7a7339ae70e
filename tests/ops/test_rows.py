"""quantize_rows: what is stored is what is read."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ced_kernels.rows import Rows, quantize_rows


@pytest.mark.slow
@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.float32])
@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=33))
def test_error_is_at_most_one_code(scale_dtype, values):
    x = torch.tensor([values])
    rows = quantize_rows(x, scale_dtype=scale_dtype)
    assert rows.codes.abs().max() <= 127
    # A scale is at most half of its type's smallest step off, or too small to be used at all.
    smallest = torch.finfo(scale_dtype).smallest_normal * torch.finfo(scale_dtype).eps
    bound = float(x.abs().max()) / 127 + 127 * max(smallest / 2, 2.0**-126)
    assert float((rows.values() - x).abs().max()) <= bound


def test_a_row_too_small_for_a_scale_is_zero_and_finite():
    rows = quantize_rows(torch.tensor([[1e-42, 0.0, -1e-43]]))
    assert rows.codes.eq(0).all()
    assert rows.values().eq(0).all()


def test_zero_row_has_zero_scale_and_codes():
    rows = quantize_rows(torch.zeros(2, 5), scale_dtype=torch.float16)
    assert rows.codes.eq(0).all()
    assert rows.scale.eq(0).all()
    assert rows.values().eq(0).all()


def test_rows_are_independent():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(9, 17, generator=generator)
    whole, alone = quantize_rows(x), quantize_rows(x[4:5])
    assert torch.equal(whole.codes[4:5], alone.codes)
    assert torch.equal(whole.scale[4:5], alone.scale)


def test_codes_are_taken_after_the_scale_was_rounded():
    x = torch.tensor([[1.0, 0.3333]])
    rows = quantize_rows(x, scale_dtype=torch.float16)
    expected = (x / rows.scale.float().unsqueeze(-1)).round().clamp(-127, 127)
    assert torch.equal(rows.codes.float(), expected)


def test_huge_values_saturate_instead_of_becoming_infinite():
    rows = quantize_rows(torch.tensor([[1e30, 1.0]]), scale_dtype=torch.float16)
    assert torch.isfinite(rows.values()).all()


def test_float32_rows_are_their_own_values():
    x = torch.randn(2, 3)
    assert Rows(x, None).values() is x
