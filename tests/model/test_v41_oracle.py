"""V4.1 against its definition in float64, stage by stage and whole.

Stage by stage the oracle is given the model's own values of the stages before, so what is compared
is one formula, and its tolerance is float32's: sums of up to 512 terms err by less than 5e-6 of the
largest magnitude. Stored rows are codes; a value nearer to the middle of two codes than that error
may take the other one, which is rare: at most 0.1% of codes, each by one step. Picks are compared
exactly, since both sort the same scores.

Whole, one flipped code moves all that follows by more than any rounding. So the oracle runs freely
but for the model's own codes, picks and chosen experts, and logits agree to 1e-4; and without any
help it agrees as far on the rows before the first code that fell the other way.
"""

import random
from pathlib import Path

import pytest
import torch
from naive_v41 import NaiveV41
from safetensors.torch import load_file
from v41_altered import altered
from v41_trace import trace_full

from cedagent.engine import Engine
from cedagent.model.engram_map import load_token_map
from cedagent.model.tiny_v41 import write_tiny_v41

VECTORS = Path(__file__).parents[1] / "vectors"
RELATIVE = 5e-6
CODES = ("window", "latent", "key", "index_query")
SETS = ("picks", "blocks")


def golden(name):
    folder = VECTORS / name
    return folder, load_file(folder / "expected.safetensors")["input_ids"].tolist()


# Settings that differ from the release's, since at those some steps cannot be told from none:
# 20 rounds of Sinkhorn end at the same matrix wherever they begin.
SETTINGS = {
    "hc_sinkhorn_iters": 2, "hc_eps": 1e-3, "rms_norm_eps": 1e-2, "gate_temp": 0.7,
    "routed_scaling_factor": 2.2, "swiglu_limit": 0.6,
}  # fmt: skip


def odd(tmp_path_factory):
    """Seven layers, three heads a group, W = 11, Engram, fp8 and fp4 weights, odd settings."""
    folder = tmp_path_factory.mktemp("odd")
    write_tiny_v41(
        folder / "plain", n_encoder_layers=4, n_decoder_layers=3, window=11, n_heads=6,
        index_n_heads=3, index_topk=7, candidate_topk_blocks=3, candidate_block_size=5, n_experts=5,
        experts_per_token=3, vocab_size=352, rope_dim=20, seed=3,
    )  # fmt: skip
    dst = altered(folder / "plain", folder / "odd", text=SETTINGS)
    return dst, random.Random(0).choices(range(352), k=141)


def deep(tmp_path_factory):
    """Two ratio-2 sources, so that a later one takes over."""
    dst = tmp_path_factory.mktemp("deep") / "model"
    write_tiny_v41(dst, n_encoder_layers=10, n_decoder_layers=6, window=16, seed=1)
    return dst, random.Random(0).choices(range(512), k=277)


@pytest.fixture(
    scope="module",
    params=[
        "odd",
        pytest.param("v41_tiny_fp8", marks=pytest.mark.slow),
        pytest.param("v41_tiny", marks=pytest.mark.slow),
        pytest.param("v41_tiny_engram", marks=pytest.mark.slow),
        pytest.param("deep", marks=pytest.mark.slow),
    ],
)
def traces(request, tmp_path_factory):
    """(the model's stages, the oracle's from the model's)."""
    makers = {"odd": odd, "deep": deep}
    maker = makers.get(request.param)
    model_dir, ids = maker(tmp_path_factory) if maker else golden(request.param)
    return both(model_dir, ids)


def both(model_dir, ids, *, given=None):
    """Stages of the model and of the oracle; `given` names the ones it takes over, None all."""
    engine = Engine.load(model_dir)
    config = engine.family.config
    with pytest.MonkeyPatch.context() as patch:
        ours = trace_full(engine, ids, patch)
    token_map = load_token_map(model_dir, config) if config.engram_layer_ids else None
    oracle = NaiveV41(model_dir, token_map=token_map)
    taken = {key: value for key, value in ours.items() if given is None or key[0] in given}
    return ours, oracle.run(ids, given=taken)


def stages(traces, *names):
    """(where, ours, expected) of these stages in every layer that has them."""
    ours, expected = traces
    found = [key for key in expected if key[0] in names]
    assert {name for name, _ in found} == set(names)
    for key in found:
        yield key, ours[key], expected[key]


def expect_close(key, got, expected):
    assert got.dtype is torch.float32
    assert got.shape == expected.shape
    error = float((got.double() - expected).abs().max())
    assert error <= RELATIVE * float(expected.abs().max()), key


def test_every_stage_of_every_layer_is_compared(traces):
    ours, expected = traces
    assert ours.keys() == expected.keys()
    n_layers = 1 + max(layer for _, layer in expected if layer is not None)
    for name in ("entered", "window", "attention", "weights", "chosen", "ffn_streams"):
        assert {layer for stage, layer in expected if stage == name} == set(range(n_layers))


@pytest.mark.parametrize("name", ["entered", "low", "inner"])
def test_norms_collapsed_streams_and_low_rank_queries(traces, name):
    for stage in stages(traces, name):
        expect_close(*stage)


@pytest.mark.parametrize("name", CODES)
def test_stored_rows_are_the_rounded_ones(traces, name):
    n_codes = n_flipped = 0
    for key, got, expected in stages(traces, name):
        assert got.shape == expected.shape
        difference = (got.double() - expected).abs()
        n_codes += difference.numel()
        n_flipped += int((difference > 1e-6 * expected.abs()).sum())
        # One step of a code is at most a third of its block's largest value.
        assert bool((difference <= expected.abs().amax(-1, keepdim=True) / 2.9).all()), key
    assert n_flipped <= max(1, n_codes // 1000)


def test_index_scores_of_all_visible_rows(traces):
    for key, got, expected in stages(traces, "score"):
        seen = got > float("-inf")
        error = (got.double() - expected)[seen].abs().max()
        assert float(error) <= RELATIVE * float(expected.abs().max()), key


def test_rows_that_a_token_may_see_are_complete_groups(traces):
    for _, got, _ in stages(traces, "score"):
        n_tokens, n_rows = got.shape
        ratio = n_tokens // n_rows
        assert ratio in (1, 2)
        n_seen = (got > float("-inf")).sum(1)
        assert n_seen.tolist() == [(t + 1) // ratio for t in range(n_tokens)]


@pytest.mark.parametrize("name", SETS)
def test_picks_and_candidate_blocks_are_those_of_sorting(traces, name):
    for key, got, expected in stages(traces, name):
        assert got == expected, key


def test_attention_from_window_picks_sink_inverse_and_grouped_output(traces):
    for stage in stages(traces, "attention"):
        expect_close(*stage)


def test_the_gate_chooses_and_weighs(traces):
    for (key, got, expected), (_, chosen, theirs) in zip(
        stages(traces, "weights"), stages(traces, "chosen"), strict=True
    ):
        assert torch.equal(chosen, theirs), key
        expect_close(key, got, expected)


def test_experts_routed_and_shared(traces):
    for stage in stages(traces, "experts"):
        expect_close(*stage)


@pytest.mark.parametrize("part", ["pre", "post", "comb"])
def test_hyper_connections(traces, part):
    for stage in stages(traces, f"attn_{part}", f"ffn_{part}"):
        expect_close(*stage)


def test_streams_after_each_sublayer(traces):
    for stage in stages(traces, "attn_streams", "ffn_streams"):
        expect_close(*stage)


def test_engram_adds_to_the_streams(traces):
    if not any(name == "remembered" for name, _ in traces[1]):
        assert not any(name == "remembered" for name, _ in traces[0])
        return
    for stage in stages(traces, "remembered"):
        expect_close(*stage)


def test_the_head(traces):
    for stage in stages(traces, "logits"):
        expect_close(*stage)


def first_difference(ours, expected):
    """The first token in which a code, a pick or a choice of experts is not the same."""
    n_tokens = len(expected["logits", None])
    first = n_tokens
    for (name, layer), value in expected.items():
        mine = ours[name, layer]
        if name in SETS:
            differing = [t for t in range(n_tokens) if mine[t] != value[t]]
        elif name in (*CODES, "chosen"):
            rows = (mine.double() - value).abs() > 1e-6 * value.abs()
            # A row of a stream is of the first token of its group.
            per_row = n_tokens / len(value)
            differing = [int(r * per_row) for r in rows.flatten(1).any(1).nonzero()[:, 0]]
        else:
            continue
        first = min([first, *differing])
    return first


def logits_error(ours, expected, n_rows):
    error = (ours["logits", None].double() - expected["logits", None])[:n_rows].abs()
    return float(error.max()) if n_rows else 0.0


def test_logits_end_to_end_when_codes_fall_alike():
    folder, ids = golden("v41_tiny")
    ours, expected = both(folder, ids[:140], given=(*CODES, *SETS, "chosen"))
    assert logits_error(ours, expected, 140) < 1e-4


@pytest.mark.slow
def test_logits_end_to_end_before_the_first_code_that_differs():
    n_same = n_rows = 0
    for seed in range(3):
        ids = random.Random(seed).choices(range(512), k=41)
        ours, expected = both(VECTORS / "v41_tiny", ids, given=())
        first = first_difference(ours, expected)
        assert logits_error(ours, expected, first) < 1e-4
        n_same, n_rows = n_same + first, n_rows + len(ids)
    assert n_same > n_rows / 4


def test_the_oracle_agrees_with_another_implementation():
    folder, ids = golden("v41_tiny")
    expected = load_file(folder / "expected.safetensors")["logits"]
    n = 100
    error = (NaiveV41(folder).logits(ids[:n]) - expected[:n]).abs().amax(1)
    assert float(error.median()) < 1e-4
    assert float(error.max()) < 5e-2


def test_the_engines_logits_are_the_traced_ones():
    """So that what the stages are compared for is what the engine answers."""
    folder, ids = golden("v41_tiny")
    engine = Engine.load(folder)
    with pytest.MonkeyPatch.context() as patch:
        traced = trace_full(engine, ids[:130], patch)
    assert torch.equal(engine.logits(ids[:130]), traced["logits", None])
