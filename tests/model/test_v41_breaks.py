"""Each piece of V4.1 broken on purpose: the comparison with golden logits must notice every time.

A test that no break can fail settles nothing. The comparison is the golden page's: argmax equal at
every position, logits within 5e-2 everywhere and within 2e-3 at the median row. Each break must
fail it by far, from the row on that it should first reach, so that no stray code is taken for it.
"""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from naive_v41 import NaiveV41
from safetensors.torch import load_file
from v41_altered import altered
from v41_trace import blocks_of, trace_full

from ced_kernels.block_codes import INDEX, LATENT, WINDOW, BlockCodes, BlockFormat
from cedagent.engine import Engine
from cedagent.model import attention, block, encoder, indexer, moe, rope, source
from cedagent.model.compress import Compressor, Ungrouped
from cedagent.model.forward import Forward
from cedagent.model.hyper import HyperConnection, Mixes
from cedagent.model.rope import Ropes
from cedagent.model.stored_rows import StoredRows
from cedagent.model.v41_config import V41Config

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "vectors" / "v41_tiny"
EXPECTED = load_file(GOLDEN / "expected.safetensors")
N = 120
"""Tokens of a broken run: one tile, and every stage takes part."""


def row_errors(n_tokens=N, *, after=None):
    """(largest logit error of each row, whether the comparison with the golden logits passes)."""
    engine = Engine.load(GOLDEN)
    if after is not None:
        after(engine.family.model)
    got = engine.logits(EXPECTED["input_ids"].tolist()[:n_tokens])
    expected = EXPECTED["logits"][:n_tokens]
    by_row = (got - expected).abs().amax(1).nan_to_num(math.inf)
    same = torch.equal(got.argmax(1), expected.argmax(1))
    passes = same and float(by_row.max()) <= 5e-2 and float(by_row.median()) <= 2e-3
    return by_row, passes


def test_the_whole_model_passes():
    for n_tokens in (N, len(EXPECTED["logits"])):
        errors, passes = row_errors(n_tokens)
        assert passes, float(errors.max())


BREAKS = {}


def breaking(function, *, first=0):
    """A break: patches the code, and may return what to do to a loaded model.

    No row before `first` is affected.
    """
    BREAKS[function.__name__.replace("_", " ")] = function, first
    return function


def each(model, change):
    for part in blocks_of(model):
        change(part)


def wrapped(patch, owner, name, around):
    """Put `around(plain, *args)` in the place of a function or method."""
    plain = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: around(plain, *args, **kwargs))


class RawCodes(BlockCodes):
    """Stored rows that remember what they were rounded from."""


def unrounded(patch, module, name, form):
    """Stored rows of this format are used as they were before rounding; queries stay rounded."""

    class Raw:
        def __getattr__(self, name):
            return getattr(form, name)

        def encode(self, x):
            rows = RawCodes(*form.encode(x))
            rows.raw = x
            return rows

    patch.setattr(module, name, Raw())

    def write(plain, self, start, rows):
        plain(self, start, rows)
        if hasattr(rows, "raw"):
            self._values[start - self.base : start - self.base + len(rows.raw)] = rows.raw

    wrapped(patch, StoredRows, "write", write)


# Rotary embedding.


@breaking
def the_inverse_rotation_is_left_out(patch):
    def around(plain, x, cos, sin, *, inverse=False):
        return x if inverse else plain(x, cos, sin)

    wrapped(patch, attention, "rotate_pairs", around)


@breaking
def the_inverse_rotation_turns_forward(patch):
    wrapped(patch, attention, "rotate_pairs", lambda plain, x, cos, sin, **_: plain(x, cos, sin))


@breaking
def yarn_scales_queries_and_keys(patch):
    def around(plain, *args, yarn, **kwargs):
        scale = 1 if yarn is None else 0.1 * math.log(yarn.factor) + 1
        return tuple(part * scale for part in plain(*args, yarn=yarn, **kwargs))

    wrapped(patch, rope, "pair_table", around)


@breaking
def window_layers_turn_with_the_compressed_base(patch):
    patch.setattr(V41Config, "rope_theta_of", lambda self, layer: self.compress_rope_theta)


@breaking
def compressed_layers_turn_with_the_window_base(patch):
    patch.setattr(V41Config, "rope_theta_of", lambda self, layer: self.rope_theta)


@breaking
def window_layers_are_stretched_by_yarn(patch):
    patch.setattr(V41Config, "yarn_of", lambda self, layer: self.rope_scaling)


@breaking
def compressed_layers_are_not_stretched(patch):
    patch.setattr(V41Config, "yarn_of", lambda self, layer: None)


@breaking
def latents_are_not_turned(patch):
    patch.setattr(source, "rotate_pairs", lambda x, cos, sin: x)


@breaking
def latents_are_turned_at_their_groups_last_token(patch):
    def around(plain, self, layer, start, n_rows, *, step=1):
        return plain(self, layer, start + step - 1, n_rows, step=step)

    wrapped(patch, Ropes, "angles", around)


@breaking
def latents_are_turned_at_their_own_number(patch):
    def around(plain, self, layer, start, n_rows, *, step=1):
        return plain(self, layer, start // step, n_rows)

    wrapped(patch, Ropes, "angles", around)


def half_split(x, cos, sin, *, inverse=False):
    """Channel i turns with channel i + D/2, as in Llama."""
    if x.ndim == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    half = cos.shape[-1]
    sin = -sin if inverse else sin
    a, b = x[..., -2 * half : -half], x[..., -half:]
    return torch.cat((x[..., : -2 * half], a * cos - b * sin, b * cos + a * sin), dim=-1)


@breaking
def pairs_are_halves(patch):
    for module in (attention, indexer, source):
        patch.setattr(module, "rotate_pairs", half_split)


@breaking
def the_first_channels_turn(patch):
    for module in (attention, indexer, source):

        def around(plain, x, cos, sin, **kwargs):
            return plain(x.flip(-1), cos, sin, **kwargs).flip(-1)

        wrapped(patch, module, "rotate_pairs", around)


# Attention.


@breaking
def the_sinks_of_a_layer_are_skipped(patch):
    def after(model):
        blocks_of(model)[3]._attention._sinks = torch.full((4,), -1e4)

    return after


@breaking
def one_sink_is_skipped(patch):
    def after(model):
        sinks = blocks_of(model)[0]._attention._sinks.clone()
        sinks[1] = -1e4
        blocks_of(model)[0]._attention._sinks = sinks

    return after


@breaking
def queries_are_normalised_per_head(patch):
    def around(plain, x, cos, sin, *, inverse=False):
        if x.ndim == 3 and not inverse:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True))
        return plain(x, cos, sin, inverse=inverse)

    wrapped(patch, attention, "rotate_pairs", around)


@partial(breaking, first=15)
def the_window_is_one_key_short(patch):
    patch.setattr(V41Config, "window", property(lambda self: self.sliding_window - 1))


@partial(breaking, first=16)
def the_window_is_one_key_long(patch):
    patch.setattr(V41Config, "window", property(lambda self: self.sliding_window + 1))


@breaking
def output_groups_change_places(patch):
    def around(plain, self, attended):
        return plain(self, attended.roll(2, dims=1))

    wrapped(patch, attention.Attention, "_project", around)


@breaking
def window_rows_are_not_rounded(patch):
    unrounded(patch, attention, "WINDOW", WINDOW)


# Compressor and indexer.


@breaking
def groups_are_means(patch):
    def around(plain, self, tokens):
        gate = None if tokens.gate is None else torch.zeros_like(tokens.gate)
        return plain(self, Ungrouped(tokens.kv, gate))

    wrapped(patch, Compressor, "latents", around)


@breaking
def latents_are_not_rounded(patch):
    unrounded(patch, source, "LATENT", LATENT)


@partial(breaking, first=12)
def index_keys_are_not_rounded(patch):
    unrounded(patch, indexer, "INDEX", INDEX)


@partial(breaking, first=12)
def index_queries_are_not_rounded(patch):
    class Raw:
        encode = staticmethod(INDEX.encode)
        round = staticmethod(lambda x: x)

    patch.setattr(indexer, "INDEX", Raw())


@partial(breaking, first=12)
def the_index_key_is_taken_after_rope(patch):
    def around(plain, self, latents, angles):
        return plain(self, source.rotate_pairs(latents, *angles), angles)

    wrapped(patch, indexer.IndexKeys, "keys", around)


@partial(breaking, first=12)
def the_index_has_no_relu(patch):
    def scores(kernels, q, keys, weights, *, visible):
        dots = torch.einsum("thk,nk->thn", q, keys)
        scores = torch.einsum("th,thn->tn", weights, dots)
        return scores.masked_fill(torch.arange(len(keys)) >= visible.unsqueeze(1), -math.inf)

    patch.setattr(indexer, "index_scores", scores)


@breaking
def nibbles_change_places(patch):
    def around(plain, self, stored):
        values = plain(self, stored)
        if self.element == "e4m3":
            return values
        return values.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)

    wrapped(patch, BlockFormat, "decode", around)


@breaking
def the_newest_group_is_not_seen(patch):
    wrapped(
        patch, Forward, "visible", lambda plain, self, ratio: (plain(self, ratio) - 1).clamp(min=0)
    )


@partial(breaking, first=24)
def the_candidate_stage_is_left_out(patch):
    patch.setattr(indexer, "keep_candidates", lambda scores, blocks, *, block: scores)


@partial(breaking, first=12)
def reindex_layers_reuse(patch):
    def after(model):
        blocks_of(model)[6]._indexer = None

    return after


# Experts.


@breaking
def the_bias_is_a_weight(patch):
    def gate(self, x):
        logits = x @ self._weight.value().t()
        scores = torch.nn.functional.softplus(logits).sqrt() + self._bias
        weights, chosen = scores.topk(self._n_chosen, dim=-1)
        return weights / weights.sum(-1, keepdim=True) * self._scaling, chosen

    patch.setattr(moe.Gate, "__call__", gate)


@breaking
def the_bias_chooses_nothing(patch):
    return lambda model: each(model, lambda b: setattr(b._experts._gate, "_bias", torch.zeros(8)))


@breaking
def gate_weights_are_not_normalised(patch):
    return lambda model: each(model, lambda b: setattr(b._experts._gate, "_normalised", False))


@breaking
def gate_weights_are_not_scaled(patch):
    return lambda model: each(model, lambda b: setattr(b._experts._gate, "_scaling", 1.0))


@breaking
def the_gate_is_a_sigmoid(patch):
    patch.setattr(moe, "rounded_root_softplus", torch.sigmoid)


@breaking
def the_shared_expert_is_left_out(patch):
    def around(plain, *args, weight=None, **kwargs):
        out = plain(*args, weight=weight, **kwargs)
        return out * 0 if weight is None else out

    wrapped(patch, moe, "swiglu", around)


# Hyper-connections.


def mixed(patch, change):
    wrapped(patch, HyperConnection, "mixes", lambda plain, self, x: change(plain(self, x)))


@breaking
def comb_is_transposed(patch):
    mixed(patch, lambda m: Mixes(m.pre, m.post, m.comb.transpose(1, 2)))


@breaking
def post_is_half(patch):
    mixed(patch, lambda m: Mixes(m.pre, m.post / 2, m.comb))


@breaking
def sinkhorn_stops_after_one_round(patch):
    def after(model):
        for part in blocks_of(model):
            part._attention_mix._iterations = part._ffn_mix._iterations = 1

    return after


@breaking
def a_layer_is_entered_with_its_attentions_pre(patch):
    last = []

    def mixes(plain, self, streams):
        last.append(plain(self, streams))
        return last[-1]

    def run(plain, self, *args):
        streams, _ = plain(self, *args)
        return streams, last[-2].pre

    wrapped(patch, HyperConnection, "mixes", mixes)
    wrapped(patch, block.Block, "run", run)


@breaking
def the_feed_forward_is_entered_with_the_layers_pre(patch):
    """As if each sublayer had a pre of its own, computed before it."""
    entered = []

    def enter(plain, self, streams, pre):
        entered.append(pre)
        return plain(self, streams, pre)

    def inner(plain, streams, pre):
        return plain(streams, entered.pop() if entered and pre is not entered[-1] else pre)

    wrapped(patch, block.Block, "enter", enter)
    wrapped(patch, block, "collapse", inner)


@breaking
def the_decoder_begins_with_stream_zero(patch):
    """pre must cross from the encoder to the decoder."""

    def run(plain, self, *args):
        streams, pre = plain(self, *args)
        return streams, encoder.first_pre(*pre.shape) if self.layer == 3 else pre

    wrapped(patch, block.Block, "run", run)


QUICK = (
    "the inverse rotation is left out",
    "one sink is skipped",
    "the index has no relu",
    "yarn scales queries and keys",
    "window layers turn with the compressed base",
    "compressed layers turn with the window base",
    "latents are not turned",
    "nibbles change places",
    "the bias is a weight",
    "gate weights are not normalised",
    "comb is transposed",
    "a layer is entered with its attentions pre",
    "window rows are not rounded",
    "the index key is taken after rope",
    "the candidate stage is left out",
    "the decoder begins with stream zero",
)


def marked(name):
    return pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)


def test_there_are_breaks_of_each_piece():
    assert set(QUICK) < BREAKS.keys()
    assert len(BREAKS) >= 40


@pytest.mark.parametrize("name", [marked(name) for name in BREAKS])
def test_a_break_is_noticed(name, monkeypatch):
    apply, first = BREAKS[name]
    after = apply(monkeypatch)
    errors, passes = row_errors(after=after)
    assert not passes
    assert float(errors.max()) > 1
    assert float(errors[first:].median()) > 0.1
    assert not first or float(errors[:first].max()) < 1e-2


# Clamps: no activation of the golden checkpoint reaches its limit of 10, so the limit is lowered
# and the reference is the oracle, on the codes and choices that the model took.

LIMIT = 0.4
TAKEN = ("window", "latent", "key", "index_query", "picks", "blocks", "chosen")


@pytest.fixture(scope="module")
def low_limit(tmp_path_factory):
    dst = tmp_path_factory.mktemp("limit") / "model"
    return altered(GOLDEN, dst, text={"swiglu_limit": LIMIT})


def oracle_error(model_dir, n_tokens=40):
    engine = Engine.load(model_dir)
    with pytest.MonkeyPatch.context() as patch:
        ours = trace_full(engine, EXPECTED["input_ids"].tolist()[:n_tokens], patch)
    given = {key: value for key, value in ours.items() if key[0] in TAKEN}
    ids = EXPECTED["input_ids"].tolist()[:n_tokens]
    expected = NaiveV41(model_dir).run(ids, given=given)["logits", None]
    return float((ours["logits", None] - expected).abs().max())


def test_the_model_with_a_low_limit_is_the_definition(low_limit):
    assert oracle_error(low_limit) < 1e-4


@pytest.mark.parametrize("part", ["shared", "routed"])
def test_a_missing_clamp_is_noticed(low_limit, monkeypatch, part):
    def around(plain, *args, limit, weight=None):
        if (weight is None) == (part == "shared"):
            limit = 1e9
        return plain(*args, limit=limit, weight=weight)

    wrapped(monkeypatch, moe, "swiglu", around)
    assert oracle_error(low_limit) > 0.5
