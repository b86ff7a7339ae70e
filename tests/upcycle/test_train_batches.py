"""Batches: which rows run, which are scored, and that they follow from seed and step alone."""

from itertools import islice
from random import Random

import pytest
import torch
from training import Made, Texts

from cedagent.errors import UsageError
from cedagent.model.llama.config import LlamaConfig
from cedagent.upcycle.training.batches import Room, TokenStream, plain_passes, transcript_passes

CONFIG = {
    "model_type": "ced_llama", "vocab_size": 384, "hidden_size": 48, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "n_encoder_layers": 2, "encoder_global_layers": [0, 1],
    "decoder_window": 16, "replay_windows": 2,
}  # fmt: skip


def room(*, pass_tokens=600, replay_share=1.0, lengths=(100, 200), **fields):
    config = LlamaConfig.from_json(CONFIG | fields)
    return Room(config, pass_tokens, replay_share, lengths)


def plain(n_tokens, room, seed=0):
    stream = TokenStream(Texts().plain("train", seed))
    return plain_passes(stream, n_tokens=n_tokens, room=room, draw=Random(seed))


def transcripts(n_tokens, room, seed=0):
    examples = Texts().transcripts("train", seed)
    return transcript_passes(examples, n_tokens=n_tokens, room=room, draw=Random(seed))


def scored(batch):
    """(stretch, document in it, position) of every scored row, in order."""
    rows = []
    for stretch in batch.stretches:
        for document in range(stretch.documents.n):
            rows += [(stretch, document, pos) for pos in range(stretch.start, stretch.stop)]
    return [rows[row] for row in batch.rows.tolist()]


@pytest.mark.parametrize("make", [plain, transcripts])
@pytest.mark.parametrize("replay_share", [0.0, 1.0])
def test_rows_and_places_are_the_same_tokens(make, replay_share):
    for batch in make(1500, room(replay_share=replay_share)):
        assert len(batch.ids) <= 600
        assert sum(some.n * some.length for some in batch.documents) == len(batch.ids)
        places = [
            stretch.documents.offset + document * stretch.documents.length + pos
            for stretch, document, pos in scored(batch)
        ]
        assert places == batch.places.tolist()
        assert len(set(places)) == len(places)


def test_replays_start_where_serving_starts_them_and_score_from_the_prefill_end_on():
    for batch in plain(1500, room()):
        (some,) = batch.documents
        ends = []
        for stretch, _, pos in scored(batch):
            if pos == min(p for s, _, p in scored(batch) if s is stretch):
                ends.append(pos + 1)
                assert stretch.start == max(0, pos + 1 - 32)
                assert stretch.stop == min(some.length, pos + 1 + 16)
        # An end every R * W + W rows, so that replays have as many rows as the documents.
        assert {
            b - a for a, b in zip(ends[: -1 : some.n], ends[some.n :: some.n], strict=False)
        } <= {48}
        assert sum(s.n_rows for s in batch.stretches) <= len(batch.ids)


def test_without_a_window_or_a_decoder_texts_run_as_a_whole():
    layers = {"n_encoder_layers": 4, "encoder_global_layers": [0, 1, 2, 3]}
    for fields in ({"decoder_window": 0}, layers):
        for batch in plain(700, room(**fields)):
            assert [(s.start, s.stop) for s in batch.stretches] == [(0, batch.documents[0].length)]


def test_every_output_is_replayed_from_its_own_prefill_end():
    ids, trained = list(range(100)), [False] * 100
    for start, stop in ((0, 2), (40, 47), (60, 61), (95, 100)):
        trained[start:stop] = [True] * (stop - start)
    (batch,) = transcript_passes(iter([Made(ids, trained)]), n_tokens=100, room=room(),
                                 draw=Random(0))  # fmt: skip
    assert [(s.start, s.stop) for s in batch.stretches] == [(0, 1), (8, 46), (28, 60), (63, 99)]
    # The token after each scored row; the very first token follows nothing.
    assert batch.targets.tolist() == [1, *range(40, 47), 60, *range(95, 100)]
    assert batch.kind == "predict"


def test_a_whole_transcript_is_one_stretch_up_to_its_last_trained_token():
    ids, trained = list(range(50)), [False] * 20 + [True] * 5 + [False] * 25
    (batch,) = transcript_passes(iter([Made(ids, trained)]), n_tokens=50,
                                 room=room(replay_share=0.0), draw=Random(0))  # fmt: skip
    assert [(s.start, s.stop) for s in batch.stretches] == [(0, 24)]
    assert batch.targets.tolist() == [20, 21, 22, 23, 24]


@pytest.mark.parametrize("replay_share", [0.0, 1.0])
def test_rows_count_as_much_as_the_tokens_after_them(replay_share):
    counts = {11: 0.25, 12: 1.0, 40: 0.5, 41: 0.75, 90: 0.25}
    made = [
        Made(list(range(100)), [counts.get(i, 0.0) for i in range(100)]),
        Made([500] * 90, [0.0] * 89 + [1.0]),
    ]
    passes = transcript_passes(
        iter(made),
        n_tokens=190,
        room=room(pass_tokens=120, replay_share=replay_share),
        draw=Random(0),
    )
    first, second = passes
    weights = first.weights.tolist()
    assert dict(zip(first.targets.tolist(), weights, strict=True)) == counts
    assert second.weights.tolist() == [1.0]
    # Of the sum of all weights, whatever the number of rows.
    assert [first.share, second.share] == pytest.approx([2.75 / 3.75, 1 / 3.75])


def test_what_is_too_long_or_has_nothing_to_predict_is_left_out():
    fits = Made([1, 2, 3], [False, False, True])
    examples = [Made([4] * 601, [True] * 601), Made([5, 6], [True, False]), Made([], []), fits]
    (batch,) = transcript_passes(iter(examples), n_tokens=3, room=room(), draw=Random(0))
    assert batch.ids.tolist() == [1, 2, 3]


def test_texts_without_anything_that_fits_are_refused():
    def endless():
        while True:
            yield Made([4] * 601, [True] * 601)

    with pytest.raises(UsageError, match="no transcript of at most 600 tokens"):
        transcript_passes(endless(), n_tokens=3, room=room(), draw=Random(0))


@pytest.mark.parametrize("make", [plain, transcripts])
def test_shares_are_those_of_scored_rows(make):
    batches = make(1500, room(replay_share=0.5))
    total = sum(len(batch.rows) for batch in batches)
    assert len(batches) > 1
    for batch in batches:
        assert batch.share == pytest.approx(len(batch.rows) / total)


@pytest.mark.parametrize("make", [plain, transcripts])
def test_the_same_seed_gives_the_same_batches(make):
    a, b, other = (make(1500, room(replay_share=0.5), seed) for seed in (3, 3, 4))
    for mine, theirs in zip(a, b, strict=True):
        assert torch.equal(mine.ids, theirs.ids)
        assert torch.equal(mine.rows, theirs.rows)
        assert mine.stretches == theirs.stretches
    assert not torch.equal(a[0].ids[:50], other[0].ids[:50])


def test_a_share_of_texts_runs_as_a_replay_and_its_value_moves_no_other_draw():
    some, none = (plain(40_000, room(replay_share=share, lengths=(100,))) for share in (0.3, 0.0))
    replayed = [len(batch.stretches) > 1 for batch in some]
    assert 0.1 < sum(replayed) / len(replayed) < 0.5
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(some, none, strict=True))


def test_a_stream_is_its_examples_one_after_the_other():
    examples = Texts().plain("train", 1)
    expected = [token for example in islice(examples, 40) for token in example.ids]
    stream = TokenStream(Texts().plain("train", 1))
    assert stream.take(7) + stream.take(400) + stream.take(1) == expected[:408]
