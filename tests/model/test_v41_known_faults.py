"""Faults that other engines had with this architecture, each as the symptom that must not show.

Others of the list are tested where their subject is: hits and keys in test_v41_reuse.py, scales and
bytes in test_release_checkpoint.py, gate and clamps in test_v41_pieces.py, rotation in
test_v41_breaks.py.
"""

import math
import random
from pathlib import Path

import pytest
import torch
from naive_v41 import NaiveV41
from v41_trace import blocks_of, trace_full

from ced_kernels.index_picks import top_picks
from cedagent.engine import Engine
from cedagent.engine.v41 import encode
from cedagent.model.forward import batch_forward, row_forward, tile_forward
from cedagent.model.rope import Ropes
from cedagent.model.source import SourceRows
from cedagent.model.tiny_v41 import write_tiny_v41

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "vectors" / "v41_tiny"
IDS = random.Random(4).choices(range(352), k=600)
WINDOW = 16


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_v41(
        tmp_path_factory.mktemp("m") / "model",
        n_encoder_layers=3, n_decoder_layers=3, n_experts=4, vocab_size=352, window=WINDOW,
        index_topk=9, candidate_topk_blocks=40, engram=False, quantized=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def engine(model_dir):
    return Engine.load(model_dir)


@pytest.fixture(scope="module")
def traced(engine):
    """Stages of 300 tokens, three tiles."""
    with pytest.MonkeyPatch.context() as patch:
        return trace_full(engine, IDS[:300], patch)


def encoded(engine, ids):
    state = engine.family.new_state()
    with engine.forward():
        for tile in range(-(-len(ids) // 128)):
            engine.family.encode_tile(state, ids, tile=tile)
    return state


def stored_rows(source, n_rows):
    return [part for kind in (source.latents, source.keys) for part in kind.stored(0, n_rows)]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("layer", [2, 3, 5])
def test_a_row_of_the_first_tile_can_be_picked_from_the_third(engine, traced, layer):
    """Index rows that are not kept from tile to tile put a needle out of reach.

    https://github.com/ml-explore/mlx-lm/pull/1189
    """
    assert layer in engine.family.config.index_source_layer_ids
    ratio = engine.family.config.ratio(layer)
    picked = [[j * ratio // 128 for j in row] for row in traced["picks", layer][256:]]
    assert sum(0 in tiles for tiles in picked) > 30
    assert sum(1 in tiles for tiles in picked) > 30


@pytest.mark.parametrize("layer", [2, 3])
def test_one_token_at_a_time_compresses_as_a_tile_does(engine, layer):
    """Decoding with one row gave other latents and keys than a prefill.

    https://github.com/ml-explore/mlx-lm/pull/1189
    """
    family = engine.family
    source = family.model.encoder._sources[layer]
    x = randn(128, family.config.hidden_size)
    by_tile, by_row = (SourceRows(family.config, layer=layer) for _ in range(2))
    source.tile(x, tile_forward(0, window=WINDOW, n_tokens=128), by_tile, n_tokens=128)
    for pos in range(128):
        source.row(x[pos : pos + 1], pos, by_row)
        assert by_row.latents.stop == (pos + 1) // by_row.ratio
        assert (by_row.pending is None) == ((pos + 1) % by_row.ratio == 0)
    for kind in ("latents", "keys"):
        whole, single = (getattr(s, kind).values(0, 128 // s.ratio) for s in (by_tile, by_row))
        assert torch.equal(whole, single)


@pytest.mark.parametrize("n_fed", [1, 2, 3])
def test_a_group_begun_in_a_prefill_is_completed_by_decoding(engine, n_fed):
    """The pending token of an odd length waits for its partner; nothing else takes its place."""
    sequence = engine.sequence()
    sequence.prefill(IDS[:131])
    for token in IDS[131 : 131 + n_fed]:
        sequence.feed(token)
    n = 131 + n_fed
    expected = encoded(engine, IDS[:n])
    source, other = sequence._state.sources[2], expected.sources[2]
    assert (source.pending is None) == (n % 2 == 0)
    mine, theirs = source.latents.values(0, n // 2), other.latents.values(0, n // 2)
    assert torch.equal(mine, theirs)
    sequence.close()


@pytest.mark.parametrize("n_tokens", [1, 2, 5, 127, 129])
def test_padding_is_in_no_group(engine, monkeypatch, n_tokens):
    """A compressor that knew no lengths put the first token's rows, or padding, into the first full
    group. https://github.com/GDzhu01/vllm-ascend-deepseekv4/pull/77"""
    state = encoded(engine, IDS[:n_tokens])
    monkeypatch.setattr(encode, "PADDING_ID", 77)
    other = encoded(engine, IDS[:n_tokens])
    longer = encoded(engine, IDS[:256])
    for layer, source in state.sources.items():
        n_rows = n_tokens // source.ratio
        rows = stored_rows(source, n_rows)
        assert same(rows, stored_rows(other.sources[layer], n_rows))
        assert same(rows, stored_rows(longer.sources[layer], n_rows))
        assert (source.pending is None) == (n_tokens % source.ratio == 0)
        if source.pending is not None:
            assert same(source.pending[:1], other.sources[layer].pending[:1])


@pytest.mark.parametrize("company", ["alone", "shorter", "other rows"])
def test_a_compressor_gives_the_same_bits_in_any_company(engine, company):
    """Rows differed alone and in an uneven batch.

    https://github.com/vllm-project/vllm-ascend/issues/9496
    """
    compressor = engine.family.model.encoder._sources[2]._compressor
    x = randn(128, engine.family.config.hidden_size)
    whole = compressor.latents(compressor.project(x))
    for group in (0, 7, 63):
        rows = slice(2 * group, 2 * group + 2)
        if company == "other rows":
            part = randn(128, x.shape[1], seed=9)
            part[rows] = x[rows]
            got = compressor.latents(compressor.project(part))[group]
        else:
            first = rows.start if company == "alone" else max(0, rows.start - 6)
            got = compressor.latents(compressor.project(x[first : rows.stop]))[-1]
        assert torch.equal(got, whole[group])


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 7])
def test_texts_shorter_than_window_and_group_are_whole(model_dir, engine, n_tokens):
    """With fewer than 128 tokens a static cache had its diagonal wrong and emitted no group.

    https://github.com/huggingface/transformers/pull/48721
    """
    ids = IDS[:n_tokens]
    with pytest.MonkeyPatch.context() as patch:
        ours = trace_full(engine, ids, patch)
    expected = NaiveV41(model_dir).run(ids, given=ours)
    assert len(ours["latent", 2]) == n_tokens // 2
    assert len(ours["latent", 3]) == n_tokens
    assert ours["picks", 2] == [list(range((t + 1) // 2)) for t in range(n_tokens)]
    assert ours["picks", 3] == [list(range(t + 1)) for t in range(n_tokens)]
    for layer in range(6):
        error = ours["attention", layer].double() - expected["attention", layer]
        assert float(error.abs().max()) < 1e-4
    error = ours["logits", None].double() - expected["logits", None]
    assert float(error.abs().max()) < 1e-4


def test_a_tile_longer_than_the_window_keeps_what_its_rows_need(engine, traced, model_dir):
    """A prefill longer than the ring overwrote keys that its own rows still had to read.

    https://github.com/pytorch/executorch/issues/20346
    """
    oracle = NaiveV41(model_dir)
    n = 300
    low, window = traced["low", 0].double(), traced["window", 0].double()
    none = torch.zeros(0, engine.family.config.head_dim, dtype=torch.float64)
    expected = oracle.attention(low, window, none, [[] for _ in range(n)], 0)
    error = (traced["attention", 0].double() - expected).abs().amax(1)
    assert float(error.max()) < 1e-4
    # Rows far into a tile, and rows whose window lies in the tile before.
    for t in (127, 128, 129, 143, 255, 256, 299):
        assert float(error[t]) < 1e-4


@pytest.mark.parametrize("pos", [130, 131])
def test_a_decoded_token_is_scored_against_its_own_sources_keys(engine, pos):
    """The vendor's code scores odd steps of ratio-2 layers against another layer's keys, so that a
    decoded token differs from the same token in a prefill.

    https://github.com/JustVugg/colibri/pull/1558
    """
    family, seen = engine.family, {}
    sequence = engine.sequence()
    sequence.prefill(IDS[:130])
    for token in IDS[130:pos]:
        sequence.feed(token)
    with pytest.MonkeyPatch.context() as patch:
        for block in blocks_of(family.model):
            if block._indexer is None:
                continue

            def pick(x, q_low, keys, *rest, plain=block._indexer.pick, layer=block.layer):
                seen[layer] = keys.clone()
                plain(x, q_low, keys, *rest)

            patch.setattr(block._indexer, "pick", pick)
        sequence.feed(IDS[pos])
    assert seen.keys() == {2, 3, 5}
    for layer, keys in seen.items():
        owner = sequence._state.sources[family.config.kv_source(layer)]
        assert torch.equal(keys, owner.keys.values(0, (pos + 1) // owner.ratio))
    assert not torch.equal(seen[2], seen[3][: len(seen[2])])
    sequence.close()


@pytest.mark.parametrize("replay_windows", [1, 2])
@pytest.mark.parametrize("n_tokens", [5, 130])
def test_no_row_of_a_replay_reads_below_its_start(model_dir, replay_windows, n_tokens):
    """Windows narrower than what is retained read a page that is not theirs.

    https://github.com/lightseekorg/tokenspeed/pull/1595
    """
    engine = Engine.load(model_dir, replay_windows=replay_windows)
    sequence = engine.sequence()
    sequence.prefill(IDS[:n_tokens])
    start = n_tokens - min(n_tokens, replay_windows * WINDOW)
    windows = sequence._state.decoder_windows
    assert [(w.base, w.stop) for w in windows] == [(start, n_tokens)] * 3
    for token in IDS[n_tokens : n_tokens + 3]:
        pos = len(sequence.ids)
        # Decoding must find a window that is whole from the replay's start on.
        assert row_forward(pos, window=WINDOW).first_key >= start
        sequence.feed(token)


def test_nan_in_a_row_picks_no_row_that_is_not_there(engine):
    """NaN scores became row numbers out of range, an illegal access.

    https://github.com/vllm-project/vllm/issues/49896
    """
    family = engine.family
    block = blocks_of(family.model)[3]
    n = 20
    x = randn(n, family.config.hidden_size)
    x[4] = math.nan
    x[9, 0] = math.inf
    keys = randn(n, family.config.index_head_dim, seed=1)
    keys[6] = math.nan
    rows = batch_forward(0, n, window=WINDOW)
    angles = Ropes(family.config).angles(3, 0, n)
    block._indexer.pick(x, block._attention.low_rank(x), keys, angles, rows)
    picks = rows.shared.picks
    assert picks.shape == (n, 9)
    for t, row in enumerate(picks.tolist()):
        assert all(-1 <= j <= t for j in row)
        kept = [j for j in row if j >= 0]
        assert len(set(kept)) == len(kept)
        assert 6 not in kept
    assert picks[4].eq(-1).all()
    assert sum(picks[19].ge(0).tolist()) == 9


def test_scores_that_are_all_nan_pick_nothing():
    """https://github.com/vllm-project/vllm/issues/49896"""
    assert top_picks(torch.full((3, 40), math.nan), n_picks=12).eq(-1).all()


def test_a_long_session_holds_no_more_windows_than_a_short_one(engine):
    """Snapshots and rings grew with every turn. https://github.com/waybarrios/vllm-mlx/issues/676"""
    sequence = engine.sequence()
    held = []
    for stop in (200, 400, 600):
        sequence.prefill(IDS[len(sequence.ids) : stop])
        state = sequence._state
        rows = [w.stop - w.base for w in (*state.windows, *state.decoder_windows)]
        held.append(max(*rows, state.outputs.stop - state.outputs.base))
        capacity = max(len(w._codes) for w in (*state.windows, *state.decoder_windows))
        assert capacity <= 512
    assert max(held) <= 128 + 128 + WINDOW
    sequence.close()
