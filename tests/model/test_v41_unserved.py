"""A config.json that asks for other arithmetic is refused by name; the release's own is read."""

import copy
import json
from pathlib import Path

import pytest

from cedagent.errors import ConfigError
from cedagent.model.v41_config import V41Config

TINY = json.loads(
    (Path(__file__).parents[1] / "vectors" / "v41_tiny_engram" / "config.json").read_text()
)
YARN = TINY["text_config"]["rope_scaling"]

RELEASED = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "transformers_version": "5.0.0",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": 129264,
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0", "expert_dtype": "fp4",
    },
    "text_config": {
        "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120,
        "moe_intermediate_size": 2304, "num_hidden_layers": 40, "num_attention_heads": 64,
        "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280,
        "o_lora_rank": 1024, "o_groups": 8, "hidden_act": "silu", "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-20, "attention_bias": False, "attention_dropout": 0.0,
        "initializer_range": 0.02, "use_cache": True, "tie_word_embeddings": False,
        "max_position_embeddings": 1048576, "rope_theta": 10000,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 6,
        "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
        "routed_scaling_factor": 1.5, "sliding_window": 128,
        "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0] * 3, "compress_rope_theta": 160000,
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512,
        "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
        "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
        "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
        "engram_max_ngram_size": 4, "engram_vocab_size": 16000000, "engram_n_heads": 8,
        "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
        "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
        "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256,
        "dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3,
    },
    "vision_config": {
        "model_type": "deepseek_v41_vision", "num_hidden_layers": 32, "hidden_size": 1024,
        "num_attention_heads": 16, "intermediate_size": 2816, "patch_size": 14,
        "rope_theta": 10000, "downsample_ratio": 3, "max_image_tokens": 1024,
        "min_pixels": 295936, "max_wh_ratio": None,
    },
}  # fmt: skip
"""As the release has it: no gate_temp, and the pad of Engram under a name of its own."""

AS_SAVED_AGAIN = {
    "gate_temp": 1.0, "engram_pad_id": 2, "pad_token_id": None, "bos_token_id": None,
    "eos_token_id": 1, "output_router_logits": False, "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "layer_types": [
        "shared_compressed_attention" if i in (2, 8, 14, 20) else "sliding_attention"
        for i in range(40)
    ],
    "rope_parameters": {
        "main": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.125},
        "compress": {
            "rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
            "original_max_position_embeddings": 65536, "rope_theta": 160000,
            "partial_rotary_factor": 0.125, "attention_factor": 1.0,
        },
    },
}  # fmt: skip
"""What a library adds to text_config when it writes the file again."""


def changed(values, text=None, **top):
    values = copy.deepcopy(values) | top
    values["text_config"] |= text or {}
    return values


def refusal(values):
    with pytest.raises(ConfigError) as caught:
        V41Config.from_json(values, where="some/config.json")
    message = str(caught.value)
    assert message.startswith("some/config.json: ")
    assert "\n" not in message
    return message


def test_the_releases_own_file_is_read():
    config = V41Config.from_json(RELEASED)
    assert (config.gate_temp, config.engram_pad_id, config.eos_token_id) == (1.0, 2, 1)
    assert (config.n_encoder_layers, config.n_decoder_layers) == (20, 20)
    assert V41Config.from_json(config.as_json()) == config
    assert V41Config.from_json(changed(RELEASED, AS_SAVED_AGAIN)) == config


@pytest.mark.parametrize(
    ("name", "off", "on"),
    [
        ("final_logit_softcapping", [None, 0, 0.0], 30.0),
        ("attn_logit_softcapping", [None, 0], 50.0),
        ("logit_scale", [None, 1, 1.0], 0.0625),
        ("attention_multiplier", [None, 1.0], 0.5),
        ("embedding_multiplier", [None, 1.0], 12.0),
        ("residual_multiplier", [None, 1.0], 0.2),
        ("rope_interleave", [None, True], False),
        ("partial_rotary_factor", [None, 1.0, 0.25], 0.5),
        ("n_group", [None, 0, 1], 8),
        ("topk_group", [None, 0, 1], 4),
        ("first_k_dense_replace", [None, 0], 3),
        ("moe_layer_freq", [None, 1], 2),
        ("num_hash_layers", [None, 0], 3),
        ("mlp_only_layers", [None, []], [0]),
        ("attention_bias", [None, False], True),
        ("mlp_bias", [None, False], True),
        ("use_qk_norm", [None, False], True),
        ("num_local_experts", [None, 8], 16),
        ("layer_types", [None], ["full_attention"] * 8),
        ("quantization_config", [None, {"quant_method": "fp8"}], {"quant_method": "awq"}),
        ("rope_parameters", [None, {}], {"rope_type": "linear", "factor": 2.0}),
    ],
)
def test_other_arithmetic_is_refused_by_name_wherever_it_stands(name, off, on):
    config = V41Config.from_json(TINY)
    for value in off:
        assert V41Config.from_json(changed(TINY, {name: value})) == config
        assert V41Config.from_json(changed(TINY, **{name: value})) == config
    assert name in refusal(changed(TINY, {name: on}))
    assert name in refusal(changed(TINY, **{name: on}))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"compress": YARN | {"factor": 8}}, ".compress.factor = 8 contradicts"),
        ({"compress": {"rope_theta": 10000}}, ".compress.rope_theta = 10000 contradicts"),
        ({"compress": {"rope_type": "default"}}, ".compress.rope_type = 'default' contradicts"),
        ({"compress": {"type": "linear"}}, ".compress.type = 'linear' contradicts"),
        ({"compress": YARN | {"beta_fast": 64}}, ".compress.beta_fast = 64 contradicts"),
        ({"compress": {"attention_factor": 1.2}}, ".compress.attention_factor = 1.2 contra"),
        ({"compress": 3}, ".compress must be an object, got 3"),
        ({"main": {"rope_theta": 500000}}, ".main.rope_theta = 500000 contradicts"),
        ({"main": YARN}, ".main.rope_type = 'yarn' contradicts"),
        ({"main": {"partial_rotary_factor": 0.5}}, ".main.partial_rotary_factor = 0.5"),
        (
            YARN | {"original_max_position_embeddings": 128},
            "original_max_position_embeddings = 128",
        ),
        ({"rope_type": "default", "rope_theta": 10000}, "rope_type = 'default' contradicts"),
        ({"rope_theta": 500000}, "rope_parameters.rope_theta = 500000 contradicts"),
        ("yarn", " must be an object or null, got 'yarn'"),
    ],
)
def test_rope_parameters_that_differ_from_rope_scaling_are_refused(said, message):
    assert message in refusal(changed(TINY, {"rope_parameters": said}))


def test_rope_parameters_that_say_the_same_are_read():
    config = V41Config.from_json(TINY)
    for said in (
        {"main": {"rope_type": "default"}, "compress": YARN | {"rope_theta": 160000.0}},
        YARN | {"rope_theta": 10000.0},
        {"main": None, "compress": None},
    ):
        assert V41Config.from_json(changed(TINY, {"rope_parameters": said})) == config
    assert "rope_parameters.rope_type = 'yarn'" in refusal(
        changed(TINY, {"rope_scaling": None, "rope_parameters": YARN})
    )


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("tie_word_embeddings", True),
        ("vocab_size", 1024),
        ("sliding_window", 32),
        ("rope_theta", 500000.0),
        ("compress_ratios", [0] * 8),
        ("rope_scaling", YARN | {"factor": 8}),
        ("hidden_act", "gelu"),
        ("engram_pad_id", 3),
    ],
)
def test_a_copy_at_the_top_that_contradicts_is_refused(name, other):
    inner = TINY["text_config"][name]
    assert V41Config.from_json(changed(TINY, **{name: inner})) == V41Config.from_json(TINY)
    assert V41Config.from_json(changed(TINY, **{name: None})) == V41Config.from_json(TINY)
    message = refusal(changed(TINY, **{name: other}))
    assert f"{name} = " in message
    assert "beside text_config, which says" in message


def test_two_ends_are_refused_and_one_in_a_list_is_none():
    same = V41Config.from_json(changed(TINY, {"eos_token_id": 7}, eos_token_id=[7]))
    assert same.eos_token_id == 7
    assert V41Config.from_json(changed(TINY, {"eos_token_id": 7})).eos_token_id == 7
    assert V41Config.from_json(changed(TINY, {"eos_token_id": 7}, eos_token_id=None)) == same
    assert "eos_token_id = 1 beside" in refusal(changed(TINY, {"eos_token_id": 7}, eos_token_id=1))
