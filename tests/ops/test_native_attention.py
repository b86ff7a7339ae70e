"""Native attention against its reference: spans, intervals, groups, poison, threads.

Scores before the softmax are the reference's bit for bit (exact products, same roundings);
exponentials and sums are not, so outputs agree within 5e-6 of the largest value.
"""

import pytest
import torch

from ced_kernels.attention import KeySpan
from ced_kernels.kernel_set import ReferenceKernels
from ced_kernels.native.build import NativeUnavailable
from ced_kernels.native.library import load_native
from ced_kernels.rows import Rows, quantize_rows

REFERENCE = ReferenceKernels("int_mm")


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_buffer(n_kv: int, capacity: int, dim: int, *, seed: int) -> Rows:
    return quantize_rows(randn(2, n_kv, capacity, dim, seed=seed), scale_dtype=torch.float16)


def queries(n_heads: int, n_queries: int, dim: int, *, seed: int = 0) -> Rows:
    return quantize_rows(randn(n_heads, n_queries, dim, seed=seed) * 2)


def causal(buffer: Rows, n_queries: int, start: int) -> list[KeySpan]:
    """A tile at `start`: everything before it, then itself."""
    seen_to = torch.arange(1, n_queries + 1, dtype=torch.int32)
    own = KeySpan(buffer, start, start + n_queries, torch.zeros_like(seen_to), seen_to)
    return [KeySpan(buffer, 0, start), own] if start else [own]


def expect_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=5e-6 * float(expected.abs().max()))


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Outputs and scratch start as NaN (bytes of 255, which is a NaN as float32 and float16)."""
    empty = torch.empty

    def poisoned(*shape, **options):
        out = empty(*shape, **options)
        return out.fill_(255 if out.dtype is torch.uint8 else float("nan"))

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.mark.slow
@pytest.mark.parametrize("n_queries", [1, 2, 63, 128])
@pytest.mark.parametrize("start", [0, 1, 100, 1024, 4096])
def test_the_default_shape(native, n_queries, start):
    q = queries(9, n_queries, 64)
    spans = causal(a_buffer(3, start + n_queries + 5, 64, seed=1), n_queries, start)
    got, expected = (k.attend(q, spans, scale=0.125) for k in (native, REFERENCE))
    expect_close(got, expected)


@pytest.mark.parametrize("n_queries", [1, 7])
@pytest.mark.parametrize("dim", [4, 12, 16, 32, 48, 64, 80, 96, 112, 128])
@pytest.mark.parametrize(("n_kv", "group"), [(1, 1), (1, 3), (2, 4), (1, 25)])
def test_odd_shapes(native, n_queries, dim, n_kv, group):
    q = queries(n_kv * group, n_queries, dim)
    spans = causal(a_buffer(n_kv, 700, dim, seed=1), n_queries, 601)
    got, expected = (k.attend(q, spans, scale=dim**-0.5) for k in (native, REFERENCE))
    expect_close(got, expected)


@pytest.mark.parametrize("n_queries", [1, 50])
@pytest.mark.parametrize("seed", range(6))
def test_intervals_over_several_spans(native, n_queries, seed):
    q = queries(6, n_queries, 16, seed=seed)
    spans = []
    for i, n in enumerate((7, 520, 1, 64, 1100)):
        buffer = a_buffer(2, n + 3, 16, seed=10 * seed + i)
        generator = torch.Generator().manual_seed(100 * seed + i)
        ends = torch.randint(0, n + 1, (2, n_queries), generator=generator).int()
        interval = (None, None) if (i + seed) % 4 == 0 else (ends.amin(0), ends.amax(0))
        spans.append(KeySpan(buffer, 2, 2 + n, *interval))
    got, expected = (k.attend(q, spans, scale=0.25) for k in (native, REFERENCE))
    expect_close(got, expected)


@pytest.mark.parametrize("n_queries", [1, 30])
def test_scores_have_the_reference_bits(native, n_queries):
    """Scores near 10,000 that differ little: one last bit in a score is 0.001 of its weight."""
    q, buffer = queries(1, n_queries, 64), a_buffer(1, 700, 64, seed=3)
    noise = torch.randint(-1, 2, (700, 64), generator=torch.Generator().manual_seed(4))
    buffer.codes[0, 0] = (q.codes[0, 0] + noise).clamp(-127, 127)
    buffer.scale[0] = 0.0231
    score = float((q.values()[0, 0] * buffer.values()[0, 0, 0]).sum())
    got, expected = (
        k.attend(q, [KeySpan(buffer, 0, 700)], scale=1e4 / score) for k in (native, REFERENCE)
    )
    expect_close(got, expected)


@pytest.mark.parametrize("n_queries", [1, 30])
def test_a_query_that_sees_no_key_gives_zero(native, n_queries):
    seen_to = torch.full((n_queries,), 90, dtype=torch.int32)
    seen_to[0] = 0
    span = KeySpan(a_buffer(1, 90, 64, seed=1), 0, 90, torch.zeros_like(seen_to), seen_to)
    out = native.attend(queries(3, n_queries, 64), [span], scale=0.125)
    assert out[0].eq(0).all()
    assert out.isfinite().all()
    assert out[1:].ne(0).all()


@pytest.mark.parametrize("n_queries", [1, 30])
def test_unseen_and_unused_rows_do_not_reach_the_bits(native, n_queries):
    q, buffer = queries(3, n_queries, 64), a_buffer(1, 300, 64, seed=1)
    seen_from = torch.full((n_queries,), 20, dtype=torch.int32)
    span = KeySpan(buffer, 10, 290, seen_from, seen_from + 241)
    clean = native.attend(q, [span], scale=0.125)
    for rows in (slice(0, 30), slice(271, 300)):
        buffer.codes[:, :, rows] = -128
        buffer.scale[:, :, rows] = float("nan")
    assert torch.equal(native.attend(q, [span], scale=0.125), clean)


def test_a_nan_in_a_seen_row_is_seen(native):
    buffer = a_buffer(1, 300, 64, seed=1)
    buffer.scale[0, 0, 7] = float("nan")
    for n_queries in (1, 30):
        out = native.attend(queries(3, n_queries, 64), [KeySpan(buffer, 0, 300)], scale=0.125)
        assert out.isnan().all()


@pytest.mark.parametrize("n_queries", [1, 128])
def test_bits_do_not_depend_on_threads_or_capacity(native, n_queries):
    q, buffer = queries(9, n_queries, 64), a_buffer(3, 2600, 64, seed=1)
    larger = Rows(
        torch.cat((buffer.codes, torch.full_like(buffer.codes, 99)), 2),
        torch.cat((buffer.scale, torch.full_like(buffer.scale, float("nan"))), 2),
    )
    threads = torch.get_num_threads()
    expected = native.attend(q, causal(buffer, n_queries, 2300), scale=0.125)
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            for rows in (buffer, larger):
                got = native.attend(q, causal(rows, n_queries, 2300), scale=0.125)
                assert torch.equal(got, expected)
    finally:
        torch.set_num_threads(threads)


def test_a_query_does_not_depend_on_the_queries_beside_it(native):
    q, buffer = queries(9, 128, 64), a_buffer(3, 900, 64, seed=1)
    whole = native.attend(q, [KeySpan(buffer, 0, 900)], scale=0.125)
    part = Rows(q.codes[:, 50:93].contiguous(), q.scale[:, 50:93].contiguous())
    alone = native.attend(part, [KeySpan(buffer, 0, 900)], scale=0.125)
    assert torch.equal(whole[50:93], alone)


def test_spans_cut_elsewhere_give_the_same_values(native):
    """Each output channel is one chain in key order; only the sum of weights is cut differently."""
    q, buffer = queries(9, 128, 64), a_buffer(3, 900, 64, seed=1)
    whole = native.attend(q, [KeySpan(buffer, 0, 900)], scale=0.125)
    cut = [KeySpan(buffer, 0, 333), KeySpan(buffer, 333, 900)]
    torch.testing.assert_close(native.attend(q, cut, scale=0.125), whole, rtol=5e-7, atol=0)


def test_peaked_and_flat_scores(native):
    """Probabilities from 1 down to those that vanish, and all equal ones."""
    buffer = a_buffer(1, 500, 64, seed=1)
    for factor in (0.0, 1e-3, 30.0, 1e4):
        q = quantize_rows(randn(3, 9, 64, seed=2) * factor)
        got, expected = (
            k.attend(q, [KeySpan(buffer, 0, 500)], scale=0.125) for k in (native, REFERENCE)
        )
        expect_close(got, expected)


@pytest.mark.parametrize("head_dim", [6, 132])
def test_a_head_dimension_that_is_not_served_is_refused(native_dir, head_dim):
    with pytest.raises(NativeUnavailable, match=f"got {head_dim}"):
        load_native(native_dir, head_dim=head_dim)
