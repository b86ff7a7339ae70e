"""attend: several spans, one softmax, against a loop over queries."""

import pytest
import torch
from ced_kernels.attention import KeySpan, attend
from ced_kernels.int8_product import choose_impl
from ced_kernels.rows import Rows, quantize_rows

H, G, T, D = 2, 3, 5, 16


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def naive(q, keys, values, visible, scale):
    out = torch.zeros(T, H * G * D)
    for head in range(H * G):
        for t in range(T):
            seen = visible[t].nonzero().flatten()
            if len(seen):
                scores = keys[head // G, seen].double() @ q[head, t].double() * scale
                weights = scores.softmax(0)
                out[t, head * D : (head + 1) * D] = weights @ values[head // G, seen].double()
    return out


@pytest.mark.parametrize("int8", [False, True])
def test_spans_share_one_softmax(int8):
    q = randn(H * G, T, D, seed=0)
    sizes, spans, masks = (7, 1, 4), [], []
    all_k, all_v = [], []
    for i, n in enumerate(sizes):
        k, v = randn(H, n, D, seed=10 + i), randn(H, n, D, seed=20 + i)
        mask = None if i == 0 else randn(T, n, seed=30 + i) > 0
        rows = [
            quantize_rows(x, scale_dtype=torch.float16) if int8 else Rows(x, None) for x in (k, v)
        ]
        spans.append(KeySpan(rows[0], rows[1], mask))
        all_k.append(rows[0].values())
        all_v.append(rows[1].values())
        masks.append(torch.ones(T, n, dtype=torch.bool) if mask is None else mask)
    used_q = quantize_rows(q).values() if int8 else q
    expected = naive(used_q, torch.cat(all_k, 1), torch.cat(all_v, 1), torch.cat(masks, 1), 0.25)
    got = attend(q, spans, scale=0.25, impl=choose_impl() if int8 else None)
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)


def test_both_int8_implementations_give_the_same_bits():
    q = randn(H * G, T, D, seed=0)
    k, v = (quantize_rows(randn(H, 33, D, seed=s), scale_dtype=torch.float16) for s in (1, 2))
    results = [
        attend(q, [KeySpan(k, v)], scale=0.25, impl=impl) for impl in (choose_impl(), "int8_fp32")
    ]
    assert torch.equal(*results)


def test_a_query_that_sees_no_key_gives_zero():
    q = randn(H * G, T, D, seed=0)
    k, v = randn(H, 4, D, seed=1), randn(H, 4, D, seed=2)
    mask = torch.ones(T, 4, dtype=torch.bool)
    mask[2] = False
    out = attend(q, [KeySpan(Rows(k, None), Rows(v, None), mask)], scale=1.0)
    assert out[2].eq(0).all()
    assert out[1].ne(0).any()


def test_masked_rows_do_not_reach_the_bits():
    q = randn(H * G, T, D, seed=0)
    k, v = randn(H, 40, D, seed=1), randn(H, 40, D, seed=2)
    mask = torch.arange(40).expand(T, 40) < torch.arange(T).unsqueeze(1) + 20
    clean = attend(q, [KeySpan(Rows(k, None), Rows(v, None), mask)], scale=1.0)
    k[:, 30:], v[:, 30:] = 1e3, -1e3
    assert torch.equal(clean, attend(q, [KeySpan(Rows(k, None), Rows(v, None), mask)], scale=1.0))
