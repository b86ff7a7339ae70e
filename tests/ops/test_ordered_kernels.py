"""Ordered float32: one order of summation, so the same bits in any company and in compiled code."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ced_kernels.ordered.kernel_set import OrderedReference, PickedRows
from ced_kernels.ordered.norm import ordered_rms_norm
from ced_kernels.ordered.rounded import (
    ordered_sum,
    rounded_exp,
    rounded_root_softplus,
    rounded_sigmoid,
    rounded_softmax,
)

REFERENCE = OrderedReference()
SHAPES = [(1, 1, 1), (1, 63, 64), (3, 100, 65), (4, 128, 64), (5, 7, 129), (128, 33, 200)]


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def attention(t=5, heads=3, width=24, n=19, rows=40, picks=7, *, seed=0):
    """Return arguments of `attend`: hidden window keys, skipped picks, one query without keys."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, n, (t,), generator=generator, dtype=torch.int32)
    last = torch.minimum(first + torch.arange(t, dtype=torch.int32) * 3, torch.tensor(n)).int()
    chosen = torch.randint(-1, rows, (t, picks), generator=generator)
    chosen[0] = -1
    arguments = (
        values(t, heads, width, seed=seed),
        values(n, width, seed=seed + 1),
        (first, last),
        PickedRows(values(rows, width, seed=seed + 2), chosen),
    )
    return arguments, {"sinks": values(heads, seed=seed + 3), "scale": width**-0.5}


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_a_product_adds_in_the_order_of_k_and_rounds_each_time(m, k, n):
    x, weight = values(m, k), values(k, n, seed=1)
    sums = np.zeros((m, n), dtype=np.float32)
    for i in range(k):
        sums = sums + x[:, i : i + 1].numpy() * weight[i].numpy()
    assert np.array_equal(REFERENCE.product(x, weight).numpy(), sums)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("m", "k", "n"), [*SHAPES, (130, 300, 260)])
def test_compiled_products_have_the_reference_bits(ordered, m, k, n, threads):
    torch.set_num_threads(threads)
    x, weight = values(m, k), values(k, n, seed=1)
    assert torch.equal(ordered.product(x, weight), REFERENCE.product(x, weight))
    assert torch.equal(ordered.product(x.t().contiguous().t(), weight), ordered.product(x, weight))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 100), (8, 63), (17, 512)])
def test_compiled_row_dots_have_the_reference_bits(ordered, m, n):
    a, b = values(m, n), values(m, n, seed=1)
    assert torch.equal(ordered.row_dots(a, b), REFERENCE.row_dots(a, b))
    sums = np.zeros(m, dtype=np.float32)
    for i in range(n):
        sums = sums + a[:, i].numpy() * b[:, i].numpy()
    assert np.array_equal(REFERENCE.row_dots(a, b).numpy(), sums)


@pytest.mark.parametrize("shape", [{}, {"n": 0}, {"picks": 0}, {"t": 1}, {"heads": 9, "width": 7}])
@pytest.mark.parametrize("seed", [0, 1])
def test_compiled_attention_has_the_reference_bits(ordered, shape, seed):
    if shape.get("n") == 0:
        arguments, more = attention(seed=seed)
        none = torch.zeros(5, dtype=torch.int32)
        arguments = (arguments[0], arguments[1][:0], (none, none), arguments[3])
    else:
        arguments, more = attention(**shape, seed=seed)
    got, expected = ordered.attend(*arguments, **more), REFERENCE.attend(*arguments, **more)
    assert torch.equal(got, expected)
    assert not got[0].any()


@pytest.mark.parametrize("name", ["reference", "ordered"])
def test_a_row_has_the_same_bits_alone_and_in_company(name, request):
    kernels = REFERENCE if name == "reference" else request.getfixturevalue("ordered")
    x, weight = values(37, 65), values(65, 70, seed=1)
    whole = kernels.product(x, weight)
    normed = ordered_rms_norm(kernels, x, values(65), eps=1e-20)
    (q, window, seen, picked), more = attention(t=11)
    attended = kernels.attend(q, window, seen, picked, **more)
    for row in (0, 5, 36):
        assert torch.equal(kernels.product(x[row : row + 1], weight)[0], whole[row])
        alone = ordered_rms_norm(kernels, x[row : row + 1], values(65), eps=1e-20)
        assert torch.equal(alone[0], normed[row])
    for row in (0, 3, 10):
        kept = slice(row, row + 1)
        first, last = int(seen[0][row]), int(seen[1][row])
        # Only what the query sees: no hidden key, no skipped pick.
        chosen = picked.picks[kept][picked.picks[kept] >= 0].view(1, -1)
        own = torch.tensor([0], dtype=torch.int32), torch.tensor([last - first], dtype=torch.int32)
        alone = kernels.attend(
            q[kept], window[first:last], own, PickedRows(picked.rows, chosen), **more
        )
        assert torch.equal(alone[0], attended[row])


@pytest.mark.parametrize("name", ["reference", "ordered"])
def test_attention_agrees_with_its_formula(name, request):
    kernels = REFERENCE if name == "reference" else request.getfixturevalue("ordered")
    (q, window, seen, picked), more = attention(t=9, seed=4)
    got = kernels.attend(q, window, seen, picked, **more)
    for t in range(9):
        own = window[int(seen[0][t]) : int(seen[1][t])]
        chosen = picked.rows[picked.picks[t][picked.picks[t] >= 0]]
        keys = torch.cat((own, chosen)).double()
        for head in range(3):
            logits = keys @ q[t, head].double() * more["scale"]
            logits = torch.cat((logits, more["sinks"][head : head + 1].double()))
            expected = torch.softmax(logits, 0)[:-1] @ keys
            assert torch.allclose(got[t, head].double(), expected, atol=1e-6)


def test_a_row_named_by_window_and_picks_counts_twice(ordered):
    rows = values(6, 8)
    q = values(1, 2, 8, seed=1)
    seen = torch.tensor([0], dtype=torch.int32), torch.tensor([6], dtype=torch.int32)
    more = {"sinks": torch.full((2,), -30.0), "scale": 1.0}
    none = torch.empty(1, 0, dtype=torch.int64)
    twice = ordered.attend(q, rows, seen, PickedRows(rows, torch.tensor([[2]])), **more)
    once = ordered.attend(q, rows, seen, PickedRows(rows, none), **more)
    by_hand = ordered.attend(
        q, torch.cat((rows, rows[2:3])), (seen[0], seen[1] + 1), PickedRows(rows, none), **more
    )
    assert torch.equal(twice, by_hand)
    assert not torch.equal(twice, once)


def test_keys_beyond_memory_are_refused(ordered):
    (q, window, seen, picked), more = attention()
    beyond = PickedRows(picked.rows, torch.full_like(picked.picks, len(picked.rows)))
    with pytest.raises(AssertionError):
        ordered.attend(q, window, seen, beyond, **more)
    with pytest.raises(AssertionError):
        ordered.attend(q, window, (seen[0], seen[1] + len(window)), picked, **more)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-90, 80, width=32), min_size=1, max_size=9))
def test_rounded_functions_are_the_nearest_float32(numbers):
    x = torch.tensor(numbers)
    assert torch.equal(rounded_exp(x), torch.from_numpy(np.exp(x.double().numpy())).float())
    for got, exact in (
        (rounded_sigmoid(x), torch.sigmoid(x.double())),
        (rounded_softmax(x, dim=0), torch.softmax(x.double(), 0)),
        (ordered_sum(x, dim=0), x.double().sum(0)),
    ):
        assert torch.allclose(got.double(), exact, rtol=1e-6, atol=1e-5)


def test_root_softplus_does_not_vanish_at_minus_100():
    got = rounded_root_softplus(torch.tensor([-100.0, -80.0, 0.0, 100.0]))
    expected = [np.sqrt(np.log1p(np.exp(np.float64(x)))) for x in (-100, -80, 0, 100)]
    assert got[0] > 0
    assert np.allclose(got.numpy()[1:], expected[1:], rtol=1e-6)
