"""V4.1: a row's bits do not depend on which rows share its tile, on padding, or on their order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from v41_runs import (
    alone,
    last_rows,
    row_bytes,
    slow,
    some_ids,
    source_rows,
    tensor_bytes,
    write_small,
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return alone(write_small(tmp_path_factory.mktemp("w16") / "model"), mode="full")


def rows_below(engine, ids, n):
    """All that the first `n` tokens of a text leave in both halves, as bytes."""
    sequence = engine.sequence()
    sequence.prefill(ids)
    state = sequence._state
    with engine.forward():
        logits = engine.family.score(state, n_tokens=len(ids))[:n]
    outputs = state.outputs.rows(0, n)
    found = {
        "logits": tensor_bytes(logits),
        "outputs": tensor_bytes(*outputs),
        "encoder windows": last_rows(state.windows, n, n),
        "decoder windows": [row_bytes(own, 0, n) for own in state.decoder_windows],
        **source_rows(state, n),
    }
    sequence.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "n", [1, 17, 129, slow(2), slow(5), slow(16), slow(100), slow(127), slow(200)]
)
def test_a_prefix_alone_and_before_other_texts(engine, n):
    """Alone, the rest of its last tile is padding."""
    prefix = some_ids(n)
    by_itself = rows_below(engine, prefix, n)
    for seed, more in ((1, 1), (2, 100)):
        longer = prefix + some_ids(more, seed=seed)
        assert rows_below(engine, longer, n) == by_itself, f"{more} tokens after it"


def test_a_tile_full_of_one_token(engine):
    """All rows of the rest go to the same experts."""
    prefix = some_ids(20)
    by_itself = rows_below(engine, prefix, 20)
    for token in (0, prefix[-1]):
        assert rows_below(engine, prefix + [token] * 108, 20) == by_itself


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 260), more=st.integers(1, 140), seed=st.integers(1, 1000))
def test_any_prefix_before_any_text(engine, n, more, seed):
    prefix = some_ids(n)
    longer = prefix + some_ids(more, seed=seed)
    assert rows_below(engine, longer, n) == rows_below(engine, prefix, n)


def experts_of(engine, layer):
    """The feed-forward of a layer, as the engine has it."""
    model = engine.family.model
    blocks = [*model.encoder._blocks, *model.decoder._blocks]
    return blocks[layer]._experts


def some_rows(n, width=64, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


ALL = torch.ones(128, dtype=torch.bool)


@pytest.mark.parametrize("layer", [0, 4])
def test_experts_run_a_row_alone_as_in_company(engine, layer):
    experts, x = experts_of(engine, layer), some_rows(128)
    with engine.forward():
        expected = experts(x, ALL)
        for row in (0, 1, 15, 16, 17, 64, 127):
            lonely = torch.zeros(128, 64)
            lonely[row] = x[row]
            routed = torch.arange(128) == row
            assert torch.equal(experts(lonely, routed)[row], expected[row])
            # Also among rows that are not routed, whatever they hold.
            assert torch.equal(experts(x, routed)[row], expected[row])
            # And as the one row of a decoded token.
            assert torch.equal(experts(x[row : row + 1], ALL[:1])[0], expected[row])


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 33, 100])
def test_experts_run_some_rows_as_in_company(engine, n):
    experts, x = experts_of(engine, 2), some_rows(128, seed=n)
    with engine.forward():
        expected = experts(x, ALL)
        routed = torch.arange(128) < n
        assert torch.equal(experts(x, routed)[:n], expected[:n])
        other = some_rows(128, seed=99)
        other[:n] = x[:n]
        assert torch.equal(experts(other, ALL)[:n], expected[:n])


@pytest.mark.parametrize("seed", range(3))
def test_experts_do_not_mind_the_order_of_rows(engine, seed):
    experts, x = experts_of(engine, 3), some_rows(128, seed=5)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(seed))
    with engine.forward():
        assert torch.equal(experts(x[order], ALL), experts(x, ALL)[order])


def test_experts_do_not_mind_crowds(engine):
    """128 equal rows all choose the same two experts."""
    experts, x = experts_of(engine, 1), some_rows(128, seed=6)
    with engine.forward():
        expected = experts(x, ALL)
        for row in (3, 77):
            crowd = experts(x[row].expand(128, -1).contiguous(), ALL)
            assert torch.equal(crowd, expected[row].expand(128, -1))


def test_a_row_that_is_not_routed_meets_the_shared_expert_alone(engine):
    experts, x = experts_of(engine, 2), some_rows(128)
    with engine.forward():
        unrouted = experts(x, ~ALL)
        both = experts(x, ALL)
    assert not torch.equal(unrouted, both)
    assert float(unrouted.abs().max()) > 0
