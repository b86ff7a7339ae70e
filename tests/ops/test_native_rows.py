"""Native row operations against their references, at real and odd shapes.

Bit for bit where the formula leaves no choice (scales, codes of given values, dequantised products,
rotations); where a sum or an exponential is inside, codes may differ by one and scales in the last
digits.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ced_kernels.kernel_set import Product, ReferenceKernels
from ced_kernels.rope import rope_table
from ced_kernels.rows import Rows

REFERENCE = ReferenceKernels("int_mm")
SHAPES = [(1, 576), (128, 576), (63, 100), (3, 17), (128, 1536), (17, 1)]


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_product(n_rows: int, width: int, *, seed: int = 0) -> Product:
    """Values of magnitude 1 to 10, as the products of real rows are."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-(2**22), 2**22, (n_rows, width), generator=generator, dtype=torch.int32)
    return Product(codes, randn(width, seed=seed + 1).abs() * 2e-6, randn(n_rows, seed=5).abs())


def same(a: Rows, b: Rows) -> bool:
    assert a.scale is not None
    assert b.scale is not None
    return torch.equal(a.codes, b.codes) and torch.equal(a.scale, b.scale)


def expect_close(got: Rows, expected: Rows) -> None:
    assert got.scale is not None
    assert expected.scale is not None
    torch.testing.assert_close(got.scale, expected.scale, rtol=2e-6, atol=0)
    off = (got.codes.int() - expected.codes.int()).abs()
    assert int(off.max()) <= 1
    assert float((off > 0).float().mean()) <= 1e-3


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Outputs start as NaN or -128: what is not written shows."""
    empty = torch.empty

    def poisoned(*shape, **options):
        out = empty(*shape, **options)
        return out.fill_(float("nan") if out.dtype.is_floating_point else out.new_tensor(-128))

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.mark.parametrize("shape", SHAPES)
def test_quantize_has_the_reference_bits(native, shape):
    x = randn(*shape) * torch.logspace(-6, 6, shape[0]).unsqueeze(1)
    assert same(native.quantize(x), REFERENCE.quantize(x))


@settings(max_examples=150, deadline=None)
@given(
    x=hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 3), st.integers(1, 40)),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    )
)
def test_quantize_has_the_reference_bits_for_any_values(native, x):
    rows = torch.from_numpy(x)
    assert same(native.quantize(rows), REFERENCE.quantize(rows))


def test_a_nan_reaches_the_scale_of_its_row_alone(native):
    x = randn(3, 40)
    x[1, 33] = float("nan")
    scale = native.quantize(x).scale
    assert scale.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("shape", SHAPES)
def test_norm_rows(native, shape):
    x, weight = randn(*shape), randn(shape[1], seed=1)
    expect_close(native.norm_rows(x, weight, eps=1e-5), REFERENCE.norm_rows(x, weight, eps=1e-5))


@pytest.mark.parametrize("shape", SHAPES)
def test_dequantize_and_add_have_the_reference_bits(native, shape):
    product, x = a_product(*shape), randn(*shape, seed=3)
    assert torch.equal(native.dequantize(product), REFERENCE.dequantize(product))
    assert torch.equal(native.add(x, product), REFERENCE.add(x, product))


@pytest.mark.parametrize("shape", SHAPES)
def test_add_norm_rows(native, shape):
    product, x, weight = a_product(*shape), randn(*shape, seed=3), randn(shape[1], seed=4)
    total, rows = native.add_norm_rows(x, product, weight, eps=1e-5)
    expected, expected_rows = REFERENCE.add_norm_rows(x, product, weight, eps=1e-5)
    assert torch.equal(total, expected)
    expect_close(rows, expected_rows)
    assert same(rows, native.norm_rows(total, weight, eps=1e-5))


@pytest.mark.parametrize("shape", SHAPES)
def test_gate_rows(native, shape):
    product = a_product(shape[0], 2 * shape[1])
    expect_close(native.gate_rows(product), REFERENCE.gate_rows(product))


def test_gate_rows_at_extreme_gates(native):
    gates = torch.tensor([-1e30, -200.0, -88.0, -1.0, 0.0, 1.0, 88.0, 200.0])
    for gate in gates:
        values = torch.tensor([[float(gate), 1.0]])
        product = Product(torch.ones(1, 2, dtype=torch.int32), values[0], torch.ones(1))
        got, expected = (k.gate_rows(product).values() for k in (native, REFERENCE))
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("n_rows", [1, 5, 128])
@pytest.mark.parametrize(("n_q", "n_kv", "dim"), [(9, 3, 64), (3, 1, 16), (0, 2, 12), (4, 2, 80)])
def test_split_heads_has_the_reference_bits_and_writes_its_rows_alone(
    native, n_rows, n_q, n_kv, dim
):
    product = a_product(n_rows, (n_q + 2 * n_kv) * dim)
    cos, sin = (table[77 : 77 + n_rows] for table in rope_table(300, dim, theta=1e4))
    capacity, first = n_rows + 9, 4
    outs = []
    for kernels in (native, REFERENCE):
        codes = torch.full((2, n_kv, capacity, dim), -128, dtype=torch.int8)
        out = Rows(codes, torch.full((2, n_kv, capacity), float("nan"), dtype=torch.float16))
        q = kernels.split_heads(product, cos, sin, n_q=n_q, out=out, first=first)
        outs.append((q, out))
    (q, out), (expected_q, expected_out) = outs
    assert same(q, expected_q)
    assert torch.equal(out.codes, expected_out.codes)
    torch.testing.assert_close(out.scale, expected_out.scale, rtol=0, atol=0, equal_nan=True)
    written = ~out.scale.isnan()
    assert written[:, :, first : first + n_rows].all()
    assert int(written.sum()) == 2 * n_kv * n_rows
    assert same(native.split_heads(product, cos, sin, n_q=n_q, out=None, first=0), expected_q)


def test_rows_do_not_depend_on_threads_or_company(native):
    x, product = randn(128, 576), a_product(128, 576)
    weight, gates = randn(576, seed=1), a_product(128, 2 * 1536)

    def results(rows: slice) -> list[torch.Tensor]:
        total, normed = native.add_norm_rows(
            x[rows], Product(product.codes[rows], product.channel_scale, product.row_scale[rows]),
            weight, eps=1e-5,
        )  # fmt: skip
        gated = native.gate_rows(
            Product(gates.codes[rows], gates.channel_scale, gates.row_scale[rows])
        )
        return [total, *normed, *gated, *native.norm_rows(x[rows], weight, eps=1e-5)]

    whole = results(slice(None))
    for row in (0, 64, 127):
        alone = results(slice(row, row + 1))
        assert all(torch.equal(a[row : row + 1], b) for a, b in zip(whole, alone, strict=True))
    threads = torch.get_num_threads()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            assert all(map(torch.equal, whole, results(slice(None))))
    finally:
        torch.set_num_threads(threads)
