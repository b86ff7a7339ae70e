"""Which keys a row sees, and where rows lie: masks and window rows by absolute position.

Lengths are never multiples of the window alone: faults in either show only at others.
"""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cedagent.engine import Engine
from cedagent.model.config import TILE
from cedagent.model.forward import batch_forward, row_forward, tile_forward
from cedagent.model.tiny_v41 import write_tiny_v41

WINDOW = 16


def seen_positions(rows):
    """The positions that each row of a forward sees."""
    first, last = (end.tolist() for end in rows.seen)
    return [
        list(range(rows.first_key + a, rows.first_key + b))
        for a, b in zip(first, last, strict=True)
    ]


def window_of(t, window, start=0):
    return list(range(max(start, t - window + 1), t + 1))


@given(st.integers(0, 4), st.integers(1, 300), st.integers(0, 2 * TILE))
@settings(max_examples=30, deadline=None)
def test_a_tiles_rows_see_their_window(tile, window, extra):
    start = tile * TILE
    rows = tile_forward(tile, window=window, n_tokens=start + extra)
    assert (rows.start, rows.n, rows.stop) == (start, TILE, start + TILE)
    assert rows.first_key == max(0, start - window + 1)
    assert seen_positions(rows) == [window_of(t, window) for t in range(start, start + TILE)]
    assert rows.routed.tolist() == [t < start + extra for t in range(start, start + TILE)]


@given(st.integers(0, 3), st.integers(1, 150), st.integers(0, 4 * TILE))
@settings(max_examples=30, deadline=None)
def test_rows_of_an_exact_replay_see_nothing_before_their_layers_start(tile, window, first_row):
    start = tile * TILE
    rows = tile_forward(tile, window=window, n_tokens=start + TILE, first_row=first_row)
    for t, seen in zip(range(start, start + TILE), seen_positions(rows), strict=True):
        # A row before the start is not used; it sees itself, so that it stays finite.
        assert seen == (window_of(t, window, first_row) if t >= first_row else [t])
    assert rows.routed.tolist() == [t >= first_row for t in range(start, start + TILE)]


@given(st.integers(0, 500), st.integers(1, 300), st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_a_batchs_window_is_clipped_where_it_starts(start, n, window):
    rows = batch_forward(start, start + n, window=window)
    assert (rows.start, rows.n, rows.first_key) == (start, n, start)
    assert seen_positions(rows) == [window_of(t, window, start) for t in range(start, start + n)]
    assert rows.routed.all()


@given(st.integers(0, 500), st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_a_decoded_row_sees_what_it_would_see_in_a_tile(pos, window):
    rows = row_forward(pos, window=window)
    assert seen_positions(rows) == [window_of(pos, window)]
    tile = tile_forward(pos // TILE, window=window, n_tokens=pos + 1)
    assert seen_positions(rows)[0] == seen_positions(tile)[pos % TILE]


@given(st.integers(0, 300), st.integers(1, 40), st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_a_row_sees_complete_groups_up_to_itself(start, n, ratio):
    rows = batch_forward(start, start + n, window=WINDOW)
    expected = [
        sum((group + 1) * ratio <= t + 1 for group in range(t + 1)) for t in range(start, start + n)
    ]
    assert rows.visible(ratio).tolist() == expected


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    dst = tmp_path_factory.mktemp("m") / "model"
    write_tiny_v41(dst, n_decoder_layers=3, n_experts=4, vocab_size=352, window=WINDOW)
    return Engine.load(dst, mode="full")


IDS = random.Random(0).choices(range(352), k=277)


def layers_of(state):
    return [*state.windows, *state.decoder_windows]


@pytest.fixture(scope="module")
def whole(engine):
    sequence = engine.sequence()
    sequence.prefill(IDS)
    return layers_of(sequence._state)


@pytest.mark.slow
@pytest.mark.parametrize("n_tokens", [1, 15, 17, 127, 130])
def test_window_rows_are_at_their_absolute_positions(engine, whole, n_tokens):
    """Slot by slot: a prefix leaves, in every layer, the rows of the longer run."""
    sequence = engine.sequence()
    sequence.prefill(IDS[:n_tokens])
    found = layers_of(sequence._state)
    assert len(found) == 7
    for layer, (mine, longer) in enumerate(zip(found, whole, strict=True)):
        for pos in range(max(0, n_tokens - WINDOW), n_tokens):
            ours, theirs = mine.stored(pos, pos + 1), longer.stored(pos, pos + 1)
            assert torch.equal(ours.codes, theirs.codes), (layer, pos)
            assert torch.equal(ours.scales, theirs.scales), (layer, pos)
    sequence.close()


def test_neighbouring_positions_hold_different_rows(whole):
    """So that a slot that is one off would show above."""
    for rows in whole:
        codes = rows.stored(0, len(IDS)).codes
        assert not any(torch.equal(codes[t], codes[t + 1]) for t in range(len(IDS) - 1))


def test_decoded_rows_are_at_their_absolute_positions(engine, whole):
    """Slot by slot, too: a row has the same bits decoded and in a tile."""
    sequence = engine.sequence()
    sequence.prefill(IDS[:121])
    for token in IDS[121:137]:
        sequence.feed(token)
    for mine, longer in zip(layers_of(sequence._state), whole, strict=True):
        ours, theirs = mine.values(121, 137), longer.values(121, 137)
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours[1:], theirs[:-1])
    sequence.close()
