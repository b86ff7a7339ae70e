"""attend: several spans, one softmax, against a loop over queries."""

import pytest
import torch

from ced_kernels.attention import KeySpan, attend
from ced_kernels.int8_product import choose_impl
from ced_kernels.rows import Rows, quantize_rows

H, G, T, D = 2, 3, 5, 16


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def interval(n: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[T] first and stop key of each query; some see nothing."""
    ends = torch.randint(0, n + 1, (2, T), generator=torch.Generator().manual_seed(seed))
    return ends.amin(0).int(), ends.amax(0).int()


def naive(q, spans, scale):
    """One query at a time in float64."""
    keys, values = (torch.cat([s.part(i).values() for s in spans], 1).double() for i in (0, 1))
    out = torch.zeros(T, H * G * D)
    for head in range(H * G):
        for t in range(T):
            seen, base = [], 0
            for span in spans:
                n = span.stop - span.start
                first, stop = 0, n
                if span.seen_from is not None:
                    first, stop = int(span.seen_from[t]), int(span.seen_to[t])
                seen += range(base + first, base + min(stop, n))
                base += n
            if seen:
                scores = keys[head // G, seen] @ q[head, t].double() * scale
                out[t, head * D : (head + 1) * D] = scores.softmax(0) @ values[head // G, seen]
    return out


@pytest.mark.parametrize("int8", [False, True])
def test_spans_share_one_softmax(int8):
    q = randn(H * G, T, D, seed=0)
    spans = []
    for i, n in enumerate((7, 1, 4)):
        rows = Rows(randn(2, H, n + 3, D, seed=10 + i), None)
        if int8:
            rows = quantize_rows(rows.codes, scale_dtype=torch.float16)
        spans.append(KeySpan(rows, 2, 2 + n, *((None, None) if i == 0 else interval(n, seed=i))))
    q_rows = quantize_rows(q) if int8 else Rows(q, None)
    expected = naive(q_rows.values(), spans, 0.25)
    got = attend(q_rows, spans, scale=0.25, impl=choose_impl() if int8 else None)
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)


def test_both_int8_implementations_give_the_same_bits():
    q = quantize_rows(randn(H * G, T, D, seed=0))
    rows = quantize_rows(randn(2, H, 33, D, seed=1), scale_dtype=torch.float16)
    results = [
        attend(q, [KeySpan(rows, 0, 33)], scale=0.25, impl=impl)
        for impl in (choose_impl(), "int8_fp32")
    ]
    assert torch.equal(*results)


def test_a_query_that_sees_no_key_gives_zero():
    q = Rows(randn(H * G, T, D, seed=0), None)
    seen_to = torch.tensor([4, 4, 0, 4, 4], dtype=torch.int32)
    span = KeySpan(Rows(randn(2, H, 4, D, seed=1), None), 0, 4, torch.zeros_like(seen_to), seen_to)
    out = attend(q, [span], scale=1.0, impl=None)
    assert out[2].eq(0).all()
    assert out[1].ne(0).any()


def test_masked_rows_do_not_reach_the_bits():
    q = Rows(randn(H * G, T, D, seed=0), None)
    kv = randn(2, H, 40, D, seed=1)
    seen_to = torch.arange(20, 20 + T, dtype=torch.int32)
    span = KeySpan(Rows(kv, None), 0, 40, torch.zeros_like(seen_to), seen_to)
    clean = attend(q, [span], scale=1.0, impl=None)
    kv[0, :, 30:], kv[1, :, 30:] = 1e3, -1e3
    assert torch.equal(clean, attend(q, [span], scale=1.0, impl=None))
