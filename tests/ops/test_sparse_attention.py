"""Attention over a window and picked rows: one softmax with a sink, against a loop in float64.

Rows that nobody sees must be finite by contract (live rows are written as zeros before they are
used), but their values must not reach a bit of the result; NaN there is not part of the promise.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ced_kernels.native.build import NativeUnavailable
from ced_kernels.ordered.kernel_set import OrderedReference, PickedRows
from ced_kernels.ordered.native import load_ordered

T, H, D, N_WINDOW, N_ROWS, N_PICKS = 7, 3, 48, 19, 23, 5
SCALE = D**-0.5


@pytest.fixture(scope="module", params=["reference", "native"])
def kernels(request, tmp_path_factory):
    if request.param == "reference":
        return OrderedReference()
    try:
        return load_ordered(tmp_path_factory.mktemp("ordered"))
    except NativeUnavailable as error:
        pytest.skip(f"no native kernels here: {error}")


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def some_picks(n_rows, n_picks, n_stored, *, seed=0):
    """[T, K] with -1 for about a third."""
    picks = torch.randint(
        0, n_stored, (n_rows, n_picks), generator=torch.Generator().manual_seed(seed)
    )
    return picks.masked_fill(randn(n_rows, n_picks, seed=seed + 1) < -0.4, -1)


def intervals(n_rows, n_window, *, seed=0):
    """First and last key of each query; some see nothing."""
    shape = (2, n_rows)
    ends = torch.randint(0, n_window + 1, shape, generator=torch.Generator().manual_seed(seed))
    return ends.amin(0).int(), ends.amax(0).int()


class Case:
    """Inputs of one call, to be changed one at a time."""

    def __init__(self, seed=0, *, t=T, h=H, d=D, n=N_WINDOW, stored=N_ROWS, k=N_PICKS):
        self.q = randn(t, h, d, seed=seed)
        self.window = randn(n, d, seed=seed + 1)
        self.seen = intervals(t, n, seed=seed + 2)
        self.rows = randn(stored, d, seed=seed + 3)
        self.picks = some_picks(t, k if stored else 0, max(1, stored), seed=seed + 4)
        self.sinks = randn(h, seed=seed + 5)
        self.scale = d**-0.5

    def run(self, kernels):
        return kernels.attend(
            self.q,
            self.window,
            self.seen,
            PickedRows(self.rows, self.picks),
            sinks=self.sinks,
            scale=self.scale,
        )

    def keys(self, t):
        """What query t sees, in order; a row that is named twice is there twice."""
        kept = self.window[int(self.seen[0][t]) : int(self.seen[1][t])]
        picked = [j for j in self.picks[t].tolist() if j >= 0]
        return torch.cat((kept, self.rows[picked])).double()

    def naive(self):
        out = torch.zeros(self.q.shape, dtype=torch.float64)
        for t in range(len(self.q)):
            keys = self.keys(t)
            for head in range(self.q.shape[1]):
                logits = [float(self.q[t, head].double() @ key) * self.scale for key in keys]
                sink = float(self.sinks[head])
                largest = max([*logits, sink])
                weights = [math.exp(logit - largest) for logit in logits]
                total = sum(weights) + math.exp(sink - largest)
                for weight, key in zip(weights, keys, strict=True):
                    out[t, head] += weight / total * key
        return out


def expect_close(got, expected):
    assert got.dtype is torch.float32
    torch.testing.assert_close(got.double(), expected, atol=3e-6, rtol=1e-5)


SHAPES = [
    {},
    {"t": 1, "h": 1, "d": 32, "n": 1, "stored": 0},
    {"t": 1, "h": 5, "d": 64, "n": 16, "stored": 3, "k": 12},
    {"t": 33, "h": 2, "d": 32, "n": 143, "stored": 40, "k": 1},
    {"t": 4, "h": 1, "d": 96, "n": 1, "stored": 9, "k": 9},
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s.values())) or "odd")
def test_one_softmax_over_window_picks_and_sink(kernels, shape):
    case = Case(seed=11, **shape)
    expect_close(case.run(kernels), case.naive())


@given(
    st.integers(1, 6), st.integers(1, 3), st.integers(1, 20), st.integers(0, 9),
    st.integers(1, 6), st.integers(0, 10**6),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_any_shape(t, h, n, stored, k, seed):
    case = Case(seed=seed, t=t, h=h, d=32, n=n, stored=stored, k=k)
    expect_close(case.run(OrderedReference()), case.naive())


def test_a_query_that_sees_no_key_gives_zero(kernels):
    case = Case()
    case.seen[0][3] = case.seen[1][3] = 4
    case.picks[3] = -1
    out = case.run(kernels)
    assert out[3].eq(0).all()
    assert out.isfinite().all()
    for bottom in (-1e4, -30.0):
        case.sinks[:] = bottom
        assert case.run(kernels)[3].eq(0).all(), "whatever the sink"


def test_no_window_and_no_picks_give_zero(kernels):
    case = Case(stored=0)
    case.window, case.seen = case.window[:0], (case.seen[0] * 0, case.seen[1] * 0)
    assert case.run(kernels).eq(0).all()


def test_a_sink_joins_the_denominator_alone(kernels):
    case = Case()
    case.sinks = torch.full((H,), -1e4)
    without = case.run(kernels)
    case.sinks = torch.tensor([0.0, 2.0, -1e4])
    with_sinks = case.run(kernels)
    assert torch.equal(with_sinks[:, 2], without[:, 2])
    for t in range(T):
        keys = case.keys(t)
        for head in (0, 1):
            logits = case.q[t, head].double() @ keys.t() * case.scale
            total = float(logits.exp().sum())
            shrunk = total / (total + math.exp(float(case.sinks[head])))
            expect_close(with_sinks[t, head], without[t, head].double() * shrunk)


def test_the_sink_is_not_scaled_by_the_root_of_the_width(kernels):
    case = Case()
    case.sinks = torch.full((H,), 1.7)
    expect_close(case.run(kernels), case.naive())


def test_sinks_are_used_in_float32(kernels):
    """A sink rounded to bf16 is off by up to 2^-9 of itself, which would show in every output."""
    case = Case()
    case.sinks = torch.tensor([3.0078125 + 2**-10, 1.00390625 - 2**-12, 2.0])
    exact = case.run(kernels)
    expect_close(exact, case.naive())
    case.sinks = case.sinks.bfloat16().float()
    rounded = case.run(kernels)
    off = (rounded - exact).abs().amax((0, 2))
    assert float(off[:2].min()) > 1e-5
    assert float(off[2]) == 0


def test_a_row_that_is_named_twice_counts_twice(kernels):
    """By window and by pick, or by two picks: nothing is taken out, as the model was trained."""
    case = Case(n=6, stored=6, k=3)
    case.rows = case.window.clone()
    case.seen = torch.zeros(T, dtype=torch.int32), torch.full((T,), 6, dtype=torch.int32)
    case.picks = torch.tensor([[2, 2, -1]] * T)
    expect_close(case.run(kernels), case.naive())
    once = Case(n=6, stored=6, k=3)
    once.rows, once.seen, once.picks = case.rows, case.seen, torch.full((T, 3), -1)
    assert (case.run(kernels) - once.run(kernels)).abs().max() > 1e-3


def test_minus_one_is_no_row(kernels):
    case = Case()
    case.picks[:, 2:] = -1
    few = case.run(kernels)
    case.picks = case.picks[:, :2]
    assert torch.equal(case.run(kernels), few), "not the last row, and no bit of any"


def test_values_of_unseen_rows_do_not_reach_the_bits(kernels):
    case = Case()
    case.seen[0].clamp_(min=3)
    case.seen[1].clamp_(max=15).copy_(case.seen[1].maximum(case.seen[0]))
    case.picks[case.picks == 7] = 6
    clean = case.run(kernels)
    for poison in (1e3, -1e3, 1e18):
        case.window[:3], case.window[15:] = poison, -poison
        case.rows[7] = poison
        assert torch.equal(case.run(kernels), clean)


def test_a_row_does_not_depend_on_the_rows_beside_it(kernels):
    case = Case(t=20)
    whole = case.run(kernels)
    for t in range(20):
        alone = Case(t=20)
        alone.q, alone.picks = case.q[t : t + 1], case.picks[t : t + 1]
        alone.seen = tuple(end[t : t + 1] for end in case.seen)
        assert torch.equal(alone.run(kernels)[0], whole[t])


def test_keys_that_are_hidden_change_no_bit(kernels):
    """A row decoded alone gathers its window; in a tile it sees a part of a longer one."""
    case = Case(t=1)
    case.seen = torch.tensor([4], dtype=torch.int32), torch.tensor([15], dtype=torch.int32)
    whole = case.run(kernels)
    case.window = case.window[4:15]
    case.seen = torch.tensor([0], dtype=torch.int32), torch.tensor([11], dtype=torch.int32)
    assert torch.equal(case.run(kernels), whole)


def test_logits_far_apart_stay_finite(kernels):
    case = Case()
    case.q *= 200
    out = case.run(kernels)
    assert out.isfinite().all()
    torch.testing.assert_close(out.double(), case.naive(), atol=1e-4, rtol=1e-3)
