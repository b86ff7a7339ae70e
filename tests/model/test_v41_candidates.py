"""Candidate blocks in whole models: identity while they cover everything, a bound when shrunk."""

import random

import pytest
import torch
from naive_v41 import NaiveV41
from v41_altered import altered
from v41_trace import trace_full

from cedagent.engine import Engine
from cedagent.model.tiny_v41 import write_tiny_v41

N = 150
IDS = random.Random(5).choices(range(352), k=N)
SOURCE, REINDEX = 3, (5, 7)
BLOCK = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Layers 0-2 encode, 3 is decoder and candidate source, 5 and 7 pick inside its blocks."""
    return write_tiny_v41(
        tmp_path_factory.mktemp("c") / "model", n_encoder_layers=3, n_decoder_layers=5, window=8,
        vocab_size=352, n_experts=4, engram=False, quantized=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """The stages of the model with other candidate fields, each run once."""
    found = {}
    folder = tmp_path_factory.mktemp("altered")

    def traced(**text):
        name = "-".join(f"{key}{value}" for key, value in text.items()) or "plain"
        if name not in found:
            dst = altered(model, folder / name, text=text)
            with pytest.MonkeyPatch.context() as patch:
                found[name] = trace_full(Engine.load(dst), IDS, patch)
        return found[name]

    return traced


def test_blocks_that_cover_everything_change_no_bit(run):
    covering = -(-N // BLOCK)
    off = run(candidate_source_layer_id=-1)
    for n_blocks in (covering, 2048):
        trace = run(candidate_topk_blocks=n_blocks)
        assert all(trace["picks", layer] == off["picks", layer] for layer in (SOURCE, *REINDEX))
        assert torch.equal(trace["logits", None], off["logits", None])


def test_one_block_fewer_than_cover_everything_is_a_bound(run):
    off = run(candidate_source_layer_id=-1)
    trace = run(candidate_topk_blocks=-(-N // BLOCK) - 1)
    assert any(
        len(blocks) < -(-(t + 1) // BLOCK) for t, blocks in enumerate(trace["blocks", SOURCE])
    )
    early = (-(-N // BLOCK) - 1) * BLOCK
    assert torch.equal(trace["logits", None][:early], off["logits", None][:early])


def test_shrunken_blocks_change_what_later_sources_pick_and_the_logits(run):
    off, trace = run(candidate_source_layer_id=-1), run(candidate_topk_blocks=4)
    assert trace["picks", SOURCE] == off["picks", SOURCE], "the source itself is not bound"
    for layer in REINDEX:
        changed = [t for t in range(N) if trace["picks", layer][t] != off["picks", layer][t]]
        assert len(changed) > N / 2
    different = (trace["logits", None] - off["logits", None]).abs().amax(1)
    assert float(different[4 * BLOCK :].median()) > 1e-3
    assert torch.equal(trace["logits", None][: 4 * BLOCK], off["logits", None][: 4 * BLOCK])


@pytest.mark.slow
@pytest.mark.parametrize("n_blocks", [1, 4, 6])
def test_later_sources_pick_inside_the_blocks_alone(run, n_blocks):
    trace = run(candidate_topk_blocks=n_blocks)
    for layer in REINDEX:
        for t, row in enumerate(trace["picks", layer]):
            blocks = trace["blocks", SOURCE][t]
            assert {j // BLOCK for j in row} <= blocks
            assert len(row) == min(12, sum(j // BLOCK in blocks for j in range(t + 1)))


@pytest.mark.parametrize("n_blocks", [1, 4])
def test_the_newest_block_is_always_kept(run, n_blocks):
    for t, blocks in enumerate(run(candidate_topk_blocks=n_blocks)["blocks", SOURCE]):
        assert t // BLOCK in blocks
        assert len(blocks) == min(n_blocks, t // BLOCK + 1)


def test_shrunken_blocks_are_the_definitions(run, model, tmp_path):
    text = {"candidate_topk_blocks": 4}
    dst = altered(model, tmp_path / "shrunk", text=text)
    trace = run(**text)
    expected = NaiveV41(dst).run(IDS, given=trace)
    for key in (("blocks", SOURCE), *(("picks", layer) for layer in (SOURCE, *REINDEX))):
        assert trace[key] == expected[key]


def test_of_equal_scores_the_oldest_rows_and_blocks_win(model, tmp_path):
    """With index weights of zero every row has the score 0."""

    def silence(tensors):
        for name, tensor in tensors.items():
            if name.endswith("indexer.weights_proj.weight"):
                tensor.zero_()

    dst = altered(model, tmp_path / "silent", text={"candidate_topk_blocks": 4}, change=silence)
    with pytest.MonkeyPatch.context() as patch:
        trace = trace_full(Engine.load(dst), IDS[:140], patch)
    for t in range(140):
        newest = t // BLOCK
        kept = sorted({*range(min(3, newest)), newest})
        assert trace["blocks", SOURCE][t] == set(kept)
        assert trace["picks", SOURCE][t] == list(range(t + 1))[:12]
        inside = [j for j in range(t + 1) if j // BLOCK in kept]
        for layer in REINDEX:
            assert trace["picks", layer][t] == inside[:12]
