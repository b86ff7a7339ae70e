"""V41Config: the released fields are read, the layer table follows, the rest is refused by name."""

import copy
import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ced_kernels.rope import Yarn
from cedagent.errors import ConfigError
from cedagent.model.config import load_config
from cedagent.model.v41_config import V41Config

TINY = Path(__file__).parents[1] / "vectors" / "v41_tiny"
ENGRAM = TINY.parent / "v41_tiny_engram"

RELEASED = {
    "model_type": "deepseek_v41",
    "text_config": {
        "vocab_size": 129280,
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "q_lora_rank": 1280,
        "qk_rope_head_dim": 64,
        "o_groups": 8,
        "o_lora_rank": 1024,
        "sliding_window": 128,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
            "mscale": 1.0,
        },
        "max_position_embeddings": 1048576,
        "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0] * 3,
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "candidate_source_layer_id": 20,
        "candidate_topk_blocks": 2048,
        "candidate_block_size": 8,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 512,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 2304,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10,
        "gate_temp": 1.0,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-20,
        "hidden_act": "silu",
        "engram_layer_ids": [1, 14],
        "engram_num_embeddings": [384006168, 384016682],
        "engram_max_ngram_size": 4,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "engram_vocab_size": 16000000,
        "engram_pad_id": 2,
        "engram_compressed_vocab_size": 99092,
        "num_nextn_predict_layers": 3,
        "dspark_block_size": 5,
    },
    "vision_config": {"num_hidden_layers": 32},
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [32, 32],
        "expert_dtype": "fp4",
    },
}


@pytest.fixture
def values():
    return json.loads((TINY / "config.json").read_text())


def changed(values, text=None, **top):
    values = copy.deepcopy(values) | top
    values["text_config"] |= text or {}
    return values


def test_the_released_table():
    config = V41Config.from_json(RELEASED)
    assert (config.n_encoder_layers, config.n_decoder_layers) == (20, 20)
    modes = [config.mode(layer) for layer in range(40)]
    assert [i for i, mode in enumerate(modes) if mode == "window"] == [0, 1]
    assert [i for i, mode in enumerate(modes) if mode == "full"] == [2, 8, 14, 20]
    assert [i for i, mode in enumerate(modes) if mode == "reindex"] == [24, 28, 32, 36]
    assert modes.count("reuse") == 30
    assert [config.kv_source(i) for i in (1, 2, 7, 8, 19, 20, 39)] == [None, 2, 2, 8, 14, 20, 20]
    assert [config.index_source(i) for i in (0, 3, 23, 24, 27, 39)] == [None, 2, 20, 24, 24, 36]
    assert [config.ratio(i) for i in (0, 2, 19, 20, 39)] == [0, 2, 2, 1, 1]
    assert (config.rms_norm_eps, config.window, config.eos_token_id) == (1e-20, 128, 1)
    assert config.chat_format == "dsml"
    assert config.model_type == "deepseek_v41"


def test_rotary_bases_by_layer():
    config = V41Config.from_json(RELEASED)
    yarn = Yarn(factor=16, beta_fast=32, beta_slow=1, original_positions=65536)
    assert [config.rope_theta_of(i) for i in (0, 1, 2, 20, 39)] == [1e4, 1e4, 1.6e5, 1.6e5, 1.6e5]
    assert [config.yarn_of(i) for i in (0, 1, 2, 39)] == [None, None, yarn, yarn]


def test_row_counts():
    config = V41Config.from_json(RELEASED)
    assert [config.replay_rows(n) for n in (1, 127, 128, 500)] == [1, 127, 128, 128]
    assert config.replay_rows(500, replay_windows=2) == 256
    assert dataclasses.replace(config, replay_windows=3).replay_rows(500) == 384
    assert [config.exact_rows(9999, layers_left=r) for r in (1, 2, 20)] == [128, 255, 2541]
    assert sum(config.exact_rows(9999, layers_left=r) for r in range(1, 21)) == 26690
    assert config.exact_rows(200, layers_left=20) == 200


def test_vision_is_skipped_and_said_so(values):
    assert V41Config.from_json(values).notices == ()
    (notice,) = V41Config.from_json(changed(values, vision_config={"patch_size": 14})).notices
    assert "vision_config is skipped" in notice
    assert V41Config.from_json(RELEASED).notices == (notice,)


@pytest.mark.parametrize("folder", [TINY, ENGRAM], ids=["tiny", "engram"])
def test_round_trip(folder):
    config = load_config(folder)
    assert isinstance(config, V41Config)
    assert config == V41Config.load(folder)
    text = json.dumps(config.as_json())
    assert V41Config.from_json(json.loads(text)) == config
    other = dataclasses.replace(config, replay_windows=2, chat_format="x", eos_token_id=7)
    assert V41Config.from_json(other.as_json()) == other
    assert other.as_json()["text_config"]["gate_temp"] == 1.0


def test_fields_of_other_parts_are_ignored(values):
    extra = {"dspark_noise_token_id": 128799, "torch_dtype": "bfloat16", "mtp_loss": 0.3}
    same = changed(values, extra, transformers_version="5", vision_config={"x": 1})
    assert V41Config.from_json(same) == V41Config.from_json(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"scoring_func": "softmax"}, "scoring_func must be 'sqrtsoftplus', got 'softmax'"),
        ({"topk_method": "greedy"}, "topk_method must be 'noaux_tc', got 'greedy'"),
        ({"num_key_value_heads": 2}, "num_key_value_heads must be 1, got 2"),
        ({"n_shared_experts": 2}, "n_shared_experts must be 1, got 2"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings must be False, got True"),
        ({"attention_bias": True}, "attention_bias = True is not served"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"rope_theta": 10**400}, "rope_theta must be float, got 1000"),
        ({"vocab_size": True}, "vocab_size must be int, got True"),
        ({"hidden_size": "128"}, "hidden_size must be int, got '128'"),
        ({"gate_temp": 0}, "gate_temp must be above 0"),
        ({"swiglu_limit": -1}, "swiglu_limit must be above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be float, got nan"),
        ({"norm_topk_prob": 1}, "norm_topk_prob must be bool"),
        ({"head_dim": 48}, "head_dim must be a multiple of 32, got 48"),
        ({"index_head_dim": 16}, "index_head_dim must be a multiple of 32, got 16"),
        ({"qk_rope_head_dim": 15}, "qk_rope_head_dim must be even and at most 32"),
        ({"qk_rope_head_dim": 34}, "qk_rope_head_dim must be even and at most 32"),
        ({"o_groups": 3}, "o_groups must divide num_attention_heads 4, got 3"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok must be at most n_routed_experts 8"),
        ({"rope_theta": 1}, "rope_theta must be above 1"),
        ({"sliding_window": 0}, "sliding_window must be at least 1"),
        ({"hc_sinkhorn_iters": 0}, "hc_sinkhorn_iters must be at least 1"),
        ({"replay_windows": 0}, "replay_windows must be at least 1"),
        ({"compress_ratios": [0, 0, 2, 2, 1, 1, 1]}, "compress_ratios must have 8 entries"),
        ({"compress_ratios": [0, 0, 3, 3, 1, 1, 1, 1]}, "must each be 0 or divide 128"),
        ({"compress_ratios": [0, 0, -2, 2, 1, 1, 1, 1]}, "must each be 0 or divide 128"),
        ({"compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1, 1]}, "of draft layers must be 0"),
        ({"compress_ratios": "2"}, "compress_ratios must be tuple"),
        ({"compress_ratios": [0, 0, 2, 1, 1, 1, 1, 1]}, r"the first layer with ratio 1 \(3\), got"),
        ({"compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1]}, r"the first layer with ratio 1 \(5\), got"),
        ({"compress_ratios": [0, 0, 2, 2, 1, 1, 2, 1]}, "layer 6 must follow a kv source of its"),
        ({"compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1]}, "layer 1 must follow a kv source of its"),
        ({"compress_ratios": [0, 0, 0, 2, 1, 1, 1, 1]}, r"compress_ratios above 0, got \[2\]"),
        ({"kv_source_layer_ids": []}, "kv_source_layer_ids must name a layer"),
        ({"kv_source_layer_ids": [4, 2]}, "kv_source_layer_ids must rise within 0 .. 7"),
        ({"kv_source_layer_ids": [2, 8]}, "kv_source_layer_ids must rise within 0 .. 7"),
        ({"index_source_layer_ids": [4, 6]}, r"must include kv_source_layer_ids \[2, 4\]"),
        ({"index_source_layer_ids": [1, 2, 4]}, r"compress_ratios above 0, got \[1\]"),
        ({"candidate_source_layer_id": 2}, "candidate_source_layer_id must be the decoder's"),
        ({"candidate_source_layer_id": 6}, "candidate_source_layer_id must be the decoder's"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_type must be 'yarn', got 'linear'"),
        ({"rope_scaling": {"factor": 2}}, "rope_type must be 'yarn', got None"),
        ({"rope_scaling": 16}, "rope_scaling must be an object or null, got 16"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 16}}, "beta_fast must be float, got N"),
    ],
)
def test_what_is_not_served_is_refused_by_name(values, text, message):
    with pytest.raises(ConfigError, match=message) as caught:
        V41Config.from_json(changed(values, text), where="some/config.json")
    assert str(caught.value).startswith("some/config.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_factor": 1.3}, "rope_scaling.attention_factor must be 1, got 1.3"),
        ({"truncate": False}, "rope_scaling.truncate must be True, got False"),
        ({"factor": 0}, "rope_scaling.factor must be above 0, got 0"),
        ({"beta_slow": 32}, "rope_scaling.beta_slow must be below beta_fast 32, got 32"),
        ({"beta_slow": 33}, "rope_scaling.beta_slow must be below beta_fast 32, got 33"),
        ({"type": "linear"}, "rope_scaling.type = 'linear' contradicts its rope_type 'yarn'"),
        ({"rope_theta": 10000}, "rope_scaling.rope_theta = 10000 contradicts the other fields"),
        ({"original_max_position_embeddings": 10**400}, "embeddings must be at most 1073741824"),
        ({"factor": 1e300}, "rope_scaling.factor must be 1e-06 .. 1e\\+06, got 1e\\+300"),
        ({"original_max_position_embeddings": 64.5}, "original_max_position_embeddings must be"),
    ],
)
def test_other_yarns_are_refused(values, change, message):
    yarn = values["text_config"]["rope_scaling"] | change
    with pytest.raises(ConfigError, match=message):
        V41Config.from_json(changed(values, {"rope_scaling": yarn}))


def test_scaling_may_be_off_but_not_unsaid(values):
    config = V41Config.from_json(changed(values, {"rope_scaling": None}))
    assert config.yarn_of(2) is None
    assert V41Config.from_json(config.as_json()) == config
    del values["text_config"]["rope_scaling"]
    with pytest.raises(ConfigError, match="missing rope_scaling"):
        V41Config.from_json(values)
    values["text_config"]["rope_parameters"] = {"main": {}, "compress": {}}
    with pytest.raises(ConfigError, match="rope_parameters is not read"):
        V41Config.from_json(values)


def test_the_candidate_stage_may_be_off(values):
    assert V41Config.from_json(changed(values, {"candidate_source_layer_id": -1}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"engram_layer_ids": [1, 4]}, "engram_layer_ids must rise within 0 .. 3"),
        ({"engram_num_embeddings": [272]}, "engram_num_embeddings must be 2 table sizes"),
        ({"engram_num_embeddings": [272, 0]}, "engram_num_embeddings must be 2 table sizes"),
        ({"engram_max_ngram_size": 1}, "engram_max_ngram_size must be at least 2"),
        ({"engram_n_heads": None}, "missing engram_n_heads: expected beside engram_layer_ids"),
        ({"engram_n_heads": 0}, "engram_n_heads must be at least 1, got 0"),
        ({"engram_pad_id": None}, "missing engram_pad_id: expected beside engram_layer_ids"),
        ({"engram_pad_token_id": 3}, "one pad, got engram_pad_id = 2 and engram_pad_token_id = 3"),
        ({"engram_vocab_size": 3}, "layer 1: hashes reach 26 table rows, .* is 272"),
        ({"engram_vocab_size": 70}, "layer 1: hashes reach at least 280 table rows, .* is 272"),
        ({"engram_num_embeddings": [272, 349]}, "layer 3: hashes reach 348 table rows, .* is 349"),
        ({"engram_num_embeddings": [272, 347]}, "layer 3: hashes reach 348 table rows, .* is 347"),
        ({"engram_n_heads": 256, "engram_max_ngram_size": 16}, "reach at least 230400 table rows"),
        ({"engram_pad_id": 512}, "engram_pad_id must be a token id, got 512"),
    ],
)
def test_engram_contradictions_are_refused(text, message):
    values = json.loads((ENGRAM / "config.json").read_text())
    with pytest.raises(ConfigError, match=message):
        V41Config.from_json(changed(values, text))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "int4"}, "quantization_config.quant_method = 'int4' is not served"),
        ({"weight_block_size": [128, 128]}, r"weight_block_size = \[128, 128\] is not served"),
        ({"scale_fmt": "float"}, "scale_fmt = 'float' is not served; expected 'ue8m0'"),
        ({"expert_dtype": "fp8"}, "expert_dtype = 'fp8' is not served"),
    ],
)
def test_other_stored_formats_are_refused(change, message):
    quantization = RELEASED["quantization_config"] | change
    with pytest.raises(ConfigError, match=message):
        V41Config.from_json(RELEASED | {"quantization_config": quantization})


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ({"model_type": "deepseek_v4"}, "expected model_type deepseek_v41, got 'deepseek_v4'"),
        ({"text_config": None}, "text_config must be an object, got None"),
        ({"quantization_config": "fp8"}, "quantization_config must be an object, got 'fp8'"),
        ({"eos_token_id": [1, 2]}, r"eos_token_id must be int, got \[1, 2\]"),
        ({"replay_windows": 1.5}, "replay_windows must be int, got 1.5"),
    ],
)
def test_the_top_level_is_checked_too(values, top, message):
    with pytest.raises(ConfigError, match=message):
        V41Config.from_json(values | top)


def test_one_end_in_a_list_is_an_end(values):
    assert V41Config.from_json(values | {"eos_token_id": [7]}).eos_token_id == 7
    assert V41Config.from_json(values | {"eos_token_id": None}).eos_token_id == 1


@pytest.mark.parametrize(
    "name",
    ["hidden_size", "compress_ratios", "candidate_source_layer_id", "swiglu_limit", "hc_eps"],
)
def test_a_missing_field_is_named(values, name):
    del values["text_config"][name]
    with pytest.raises(ConfigError, match=f"missing {name}"):
        V41Config.from_json(values)


def test_a_missing_pad_is_no_pad_of_zero():
    """Zero is a token id like any other: taken for a missing pad it gives other logits."""
    values = json.loads((ENGRAM / "config.json").read_text())
    del values["text_config"]["engram_pad_id"]
    with pytest.raises(ConfigError, match="missing engram_pad_id: expected beside engram_layer_id"):
        V41Config.from_json(values)
    config = V41Config.from_json(changed(values, {"engram_pad_id": 0}))
    assert config.engram_pad_id == 0
    assert V41Config.from_json(config.as_json()) == config
    same = V41Config.from_json(changed(values, {"engram_pad_token_id": 0}))
    assert same == config
    above = changed(values, {"engram_pad_token_id": 0}, engram_pad_id=2)
    with pytest.raises(ConfigError, match="expected one pad, got engram_pad_id = 2 and engram_pad"):
        V41Config.from_json(above)


def test_without_engram_layers_its_fields_are_free(values):
    assert V41Config.from_json(changed(values, {"engram_vocab_size": 16_000_000}))


@pytest.mark.parametrize("eos", [99999, -5, 512])
def test_an_end_that_is_no_token_is_refused(values, eos):
    for told in (values | {"eos_token_id": eos}, changed(values, {"eos_token_id": [eos]})):
        with pytest.raises(
            ConfigError, match=rf"eos_token_id must be a token id 0 .. 511, got {eos}"
        ):
            V41Config.from_json(told)


@pytest.mark.parametrize("text", [None, "not json", "[1]", "[" * 100_000, '{"a":' * 100_000])
def test_an_unreadable_file_is_one_line(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json") as caught:
        V41Config.load(tmp_path)
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**10) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_of_any_field_is_read_or_refused_in_one_line(data):
    values = copy.deepcopy(RELEASED)
    where = data.draw(st.sampled_from([values, values["text_config"]]))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(JSON)
    refusal = None
    try:
        config = V41Config.from_json(values)
    except ConfigError as error:
        refusal = str(error)
    if refusal is None:
        assert V41Config.from_json(json.loads(json.dumps(config.as_json()))) == config
    else:
        assert "\n" not in refusal
