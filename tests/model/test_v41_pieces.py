"""Pieces of V4.1 alone: rotation, sinks, gate, experts and loading, each by its promise."""

import json
import math
import random
from pathlib import Path

import pytest
import torch
from naive_v41 import NaiveV41, read_weights
from safetensors.torch import load_file
from v41_altered import altered
from v41_trace import blocks_of, trace_full

from ced_kernels.rope import rotate_pairs
from cedagent.engine import Engine
from cedagent.errors import WeightsError
from cedagent.model.config import load_config
from cedagent.model.engram import hash_ids, multipliers
from cedagent.model.forward import Forward, batch_forward
from cedagent.model.rope import Ropes

VECTORS = Path(__file__).parents[1] / "vectors"
GOLDEN, FP8 = VECTORS / "v41_tiny", VECTORS / "v41_tiny_fp8"
IDS = random.Random(0).choices(range(512), k=150)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def engine():
    return Engine.load(GOLDEN)


@pytest.fixture(scope="module")
def model(engine):
    return engine.family.model


@pytest.fixture(scope="module")
def oracle():
    return NaiveV41(GOLDEN)


# Rotation.


def test_each_layer_turns_with_its_own_base(model, oracle):
    """Window-only layers with rope_theta, all others with compress_rope_theta and YaRN."""
    ropes = Ropes(model.config)
    spins = {}
    for layer in range(8):
        cos, sin = ropes.angles(layer, 1, 1)
        got = torch.atan2(sin[0].double(), cos[0].double())
        torch.testing.assert_close(got, oracle.frequencies(layer), atol=1e-6, rtol=1e-5)
        spins[layer] = tuple(got.tolist())
    assert spins[0] == spins[1]
    assert len({spins[layer] for layer in range(2, 8)}) == 1
    assert spins[0] != spins[2]


def test_yarn_stretches_nothing_but_frequencies(model):
    """No mscale: a turned pair is as long as it was, at any position, in every layer."""
    ropes = Ropes(model.config)
    for layer in (0, 2, 7):
        cos, sin = ropes.angles(layer, 0, 5000)
        assert float((cos.double() ** 2 + sin.double() ** 2 - 1).abs().max()) < 1e-6


def test_a_groups_rows_turn_at_its_first_position(model):
    ropes = Ropes(model.config)
    cos, sin = ropes.angles(2, 6, 50, step=2)
    every_cos, every_sin = ropes.angles(2, 0, 106)
    assert torch.equal(cos, every_cos[6:106:2])
    assert torch.equal(sin, every_sin[6:106:2])


def window_only(model, x, *, shift):
    """The output of layer 0's attention when all positions are `shift` later, without rounding."""
    attention, n = blocks_of(model)[0]._attention, len(x)
    angles = Ropes(model.config).angles(0, shift, n)
    plain = batch_forward(0, n, window=model.config.window)
    rows = Forward(shift, n, shift, plain.seen, plain.routed)
    keys = torch.nn.functional.linear(x, attention._wkv.value())
    keys = keys * torch.rsqrt(keys.square().mean(-1, keepdim=True)) * attention._kv_norm
    keys = rotate_pairs(keys, *angles)
    none = torch.empty(0, model.config.head_dim)
    return attention(attention.low_rank(x), keys, none, angles, rows)


@pytest.mark.parametrize("shift", [1, 77, 901])
def test_moving_all_positions_leaves_a_window_only_output_unchanged(model, shift, monkeypatch):
    """Values are rotated too; the inverse rotation of the output takes that back."""
    x = randn(40, model.config.hidden_size)
    here, there = window_only(model, x, shift=0), window_only(model, x, shift=shift)
    torch.testing.assert_close(here, there, atol=2e-4, rtol=1e-4)

    def forward_only(x, cos, sin, *, inverse=False):
        return x if inverse else rotate_pairs(x, cos, sin)

    monkeypatch.setattr("cedagent.model.attention.rotate_pairs", forward_only)
    here, there = window_only(model, x, shift=0), window_only(model, x, shift=shift)
    assert float((here - there).abs().max()) > 0.1


# Sinks and rows that are named twice.


def test_sinks_reach_the_softmax_in_float32(engine, model):
    stored = load_file(GOLDEN / "model.safetensors")
    seen = []
    attend = model.kernels.attend

    class Watched:
        def __getattr__(self, name):
            return getattr(model.kernels, name)

        def attend(self, *args, sinks, scale):
            seen.append((sinks, scale))
            return attend(*args, sinks=sinks, scale=scale)

    with pytest.MonkeyPatch.context() as patch:
        for block in blocks_of(model):
            patch.setattr(block._attention, "_kernels", Watched())
        engine.logits(IDS[:5])
    assert len(seen) == 8
    for layer, (sinks, scale) in enumerate(seen):
        expected = stored[f"layers.{layer}.attn.attn_sink"]
        assert sinks.dtype is torch.float32
        assert torch.equal(sinks, expected)
        assert scale == 64**-0.5
    assert any(not torch.equal(s, s.bfloat16().float()) for s, _ in seen)


def test_a_token_in_window_and_picks_counts_twice(engine, oracle):
    """As the reference has it: at ratio 1 both lists may name the same token."""
    with pytest.MonkeyPatch.context() as patch:
        trace = trace_full(engine, IDS, patch)
    window = engine.family.config.window
    both = [
        t for t, row in enumerate(trace["picks", 4]) if any(j > t - window for j in row) and t > 40
    ]
    assert len(both) > 50
    low, rows = trace["low", 4].double(), trace["window", 4].double()
    stored = trace["latent", 4].double()
    once = [[j for j in row if j <= t - window] for t, row in enumerate(trace["picks", 4])]
    twice = oracle.attention(low, rows, stored, trace["picks", 4], 4)
    other = oracle.attention(low, rows, stored, once, 4)
    torch.testing.assert_close(trace["attention", 4].double(), twice, atol=1e-4, rtol=1e-4)
    assert float((twice - other)[both].abs().amax(1).median()) > 1e-2


# The gate and the experts.


class Constant:
    """A weight matrix of the gate that gives these logits for a first unit vector."""

    def __init__(self, logits, width):
        self._value = torch.zeros(len(logits), width)
        self._value[:, 0] = torch.tensor(logits)

    def value(self):
        return self._value

    def transposed(self):
        return self._value.t().contiguous()


def gate_of(model, logits, bias=0.0, layer=3):
    gate = blocks_of(model)[layer]._experts._gate
    width = model.config.hidden_size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "_weight", Constant(logits, width))
        patch.setattr(gate, "_bias", torch.full((len(logits),), bias))
        x = torch.zeros(1, width)
        x[0, 0] = 1
        weights, chosen = gate(x)
    return weights[0].tolist(), chosen[0].tolist()


def root_softplus(x):
    return math.sqrt(math.log1p(math.exp(-abs(x))) + max(x, 0.0))


@pytest.mark.parametrize(("logit", "rel"), [(-60.0, 1e-6), (-80.0, 1e-6), (-100.0, 1e-2)])
def test_scores_at_a_logit_of_minus_100_are_not_zero(model, logit, rel):
    """e^x is lost beside 1; the score is e^(x / 2), normalised by a sum with 1e-20 in it.

    e^-100 is a subnormal float32 of a few bits, hence the tolerance there.
    https://github.com/sgl-project/sglang/pull/34459
    """
    (first, second), chosen = gate_of(model, [logit] * 7 + [logit + 1])
    assert chosen[0] == 7
    scores = [root_softplus(logit + 1), root_softplus(logit)]
    total = sum(scores) + 1e-20
    assert first == pytest.approx(1.5 * scores[0] / total, rel=rel)
    assert second == pytest.approx(1.5 * scores[1] / total, rel=rel)
    assert first > second > 0


def test_scores_that_all_vanish_weigh_nothing_and_stay_finite(model):
    weights, _ = gate_of(model, [-1e4] * 8)
    assert weights == [0.0, 0.0]


@pytest.mark.parametrize("logit", [-30.0, -5.0, 0.0, 19.9, 20.1, 39.9, 40.1, 300.0])
def test_scores_are_the_root_of_softplus(model, logit):
    (first, second), _ = gate_of(model, [logit, logit - 3, *[-500.0] * 6])
    a, b = root_softplus(logit), root_softplus(logit - 3)
    assert first == pytest.approx(1.5 * a / (a + b), rel=1e-6)
    assert second == pytest.approx(1.5 * b / (a + b), rel=1e-6)


def test_the_gate_tells_apart_what_bf16_cannot(model):
    """https://github.com/NVIDIA-NeMo/Automodel/pull/2201: scores cut to bf16 choose at random."""
    logits = [1.0 + k * 2.0**-12 for k in (3, 7, 1, 6, 0, 2, 5, 4)]
    assert len({float(torch.tensor(x).bfloat16()) for x in logits}) == 1
    _, chosen = gate_of(model, logits)
    assert chosen == [1, 3]


def test_the_gates_bias_chooses_and_does_not_weigh(model):
    gate = blocks_of(model)[3]._experts._gate
    plain, _ = gate_of(model, [2.0, 1.0, *[0.0] * 6])
    lifted, chosen = gate_of(model, [2.0, 1.0, *[0.0] * 6], bias=0.25)
    assert chosen == [0, 1]
    assert lifted == plain
    assert float(gate._bias.abs().max()) > 0


def test_experts_and_the_shared_expert_are_clamped(model):
    """https://github.com/sgl-project/sglang/pull/23776: without a limit on the shared expert stray
    tokens come. Inputs large enough to pass the limit of 10 on both halves."""
    weights = read_weights(GOLDEN)
    x = randn(3, 128) * 60
    ffn = blocks_of(model)[3]._experts
    got = ffn(x, torch.zeros(3, dtype=torch.bool)).double()
    prefix = "layers.3.ffn.shared_experts."
    w1, w2, w3 = (weights[f"{prefix}{name}.weight"] for name in ("w1", "w2", "w3"))
    a, b = x.double() @ w1.t(), x.double() @ w3.t()
    assert float(a.max()) > 20
    assert float(b.abs().max()) > 20
    a, b = a.clamp(max=10), b.clamp(-10, 10)
    shared = (a / (1 + (-a).exp()) * b) @ w2.t()
    torch.testing.assert_close(got, shared, atol=2e-3, rtol=1e-4)
    assert float((x.double() @ w1.t()).min()) < -20, "gates are not clamped from below"

    routed = ffn(x, torch.ones(3, dtype=torch.bool)).double() - got
    chosen_weights, chosen = ffn._gate(x)
    expected = torch.zeros(3, 128, dtype=torch.float64)
    for t in range(3):
        for weight, expert in zip(chosen_weights[t].tolist(), chosen[t].tolist(), strict=True):
            name = f"layers.3.ffn.experts.{expert}."
            a = (x[t].double() @ weights[name + "w1.weight"].t()).clamp(max=10)
            b = (x[t].double() @ weights[name + "w3.weight"].t()).clamp(-10, 10)
            expected[t] += weight * ((a / (1 + (-a).exp()) * b) @ weights[name + "w2.weight"].t())
    torch.testing.assert_close(routed, expected, atol=4e-3, rtol=1e-3)


# A row alone and in company.


def test_a_rows_experts_do_not_depend_on_the_rows_beside_it(model):
    x = randn(128, 128)
    every = torch.ones(128, dtype=torch.bool)
    for block in blocks_of(model)[::3]:
        whole = block._experts(x, every)
        for kept in ([5], list(range(17)), list(range(0, 128, 3)), list(range(60, 128))):
            few = torch.zeros(128, dtype=torch.bool)
            few[kept] = True
            assert torch.equal(block._experts(x, few)[kept], whole[kept])
            # And where other rows, with other experts, stand in their places.
            other = randn(128, 128, seed=1)
            other[kept] = x[kept]
            assert torch.equal(block._experts(other, every)[kept], whole[kept])


@pytest.mark.slow
@pytest.mark.parametrize("n_tokens", [1, 2, 17, 127])
def test_a_token_alone_in_its_tile_has_the_bits_of_a_full_one(engine, n_tokens):
    """An uneven batch: padding, other lengths and later tokens change no earlier bit."""
    family = engine.family
    others = random.Random(1).choices(range(512), k=128)
    states = []
    for ids in (IDS[:n_tokens], IDS[:128], IDS[:n_tokens] + others[n_tokens:]):
        state = family.new_state()
        with engine.forward():
            family.encode_tile(state, ids, tile=0)
            logits = family.score(state, n_tokens=len(ids))[:n_tokens]
        states.append((state, logits))
    alone, alone_logits = states[0]
    for state, logits in states[1:]:
        assert torch.equal(alone_logits, logits)
        for a, b in zip(
            alone.outputs.rows(0, n_tokens), state.outputs.rows(0, n_tokens), strict=True
        ):
            assert torch.equal(a, b)
        for layer, source in alone.sources.items():
            n_rows, theirs = n_tokens // source.ratio, state.sources[layer]
            for kind in ("latents", "keys"):
                pairs = (getattr(s, kind).stored(0, n_rows) for s in (source, theirs))
                assert all(torch.equal(*parts) for parts in zip(*pairs, strict=True))


# Scoring every position.


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bounded", "exact"])
def test_scoring_runs_every_layer_on_every_token_in_any_mode(engine, mode):
    other = Engine.load(GOLDEN, mode=mode)
    assert torch.equal(other.logits(IDS), engine.logits(IDS))
    state = other.family.new_state()
    with other.forward():
        for tile in range(2):
            other.family.encode_tile(state, IDS, tile=tile)
        other.family.score(state, n_tokens=len(IDS))
    assert state.work.valid == [len(IDS)] * 8


def test_a_bounded_prefill_is_not_what_scoring_gives(engine):
    """So that the test above would notice a scoring that skips rows."""
    sequence = engine.sequence()
    sequence.prefill(IDS)
    scored = engine.logits(IDS)
    assert float((sequence.logits - scored[-1]).abs().max()) > 1e-3
    assert sequence._state.work.valid == [len(IDS)] * 4 + [16] * 4


# Loading.


def test_fp8_weights_without_their_scale_do_not_load(tmp_path):
    def drop(tensors):
        del tensors["layers.4.attn.wo_b.scale"]

    with pytest.raises(WeightsError, match=r"layers\.4\.attn\.wo_b\.scale"):
        Engine.load(altered(FP8, tmp_path / "model", change=drop))


def test_a_scale_byte_is_a_power_of_two_in_the_model_that_runs(tmp_path):
    """One byte more is a factor of two: the output of a layer says what the byte means."""

    def louder(tensors):
        scale = tensors["layers.0.attn.wo_b.scale"]
        tensors["layers.0.attn.wo_b.scale"] = (scale.view(torch.uint8) + 1).view(scale.dtype)

    outputs = []
    for model_dir in (FP8, altered(FP8, tmp_path / "model", change=louder)):
        engine = Engine.load(model_dir)
        with pytest.MonkeyPatch.context() as patch:
            outputs.append(trace_full(engine, IDS[:9], patch)["attention", 0])
    assert torch.equal(outputs[1], 2 * outputs[0])


def test_engrams_multipliers_survive_the_config_file(tmp_path):
    """They are int64 beyond a float's 53 bits, drawn from fields that pass through JSON."""
    model_dir = VECTORS / "v41_tiny_engram"
    config = load_config(model_dir)
    (tmp_path / "config.json").write_text(json.dumps(config.as_json()))
    again = load_config(tmp_path)
    oracle = NaiveV41(model_dir)
    hashed = hash_ids(again, oracle.token_map, IDS)
    for i, layer in enumerate(config.engram_layer_ids):
        drawn = multipliers(again, layer)
        assert drawn == multipliers(config, layer)
        assert any(int(float(value)) != value for value in drawn)
        # The oracle multiplies Python's integers, which have no last bit to lose.
        assert torch.equal(hashed[:, i], oracle.hashes(IDS, layer))
