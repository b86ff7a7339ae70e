"""Costs follow from a config alone and match the figures that are published or measured."""

import json

import pytest
import torch

from cedagent.errors import ConfigError
from cedagent.model.cost import model_cost, read_cost
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import tensor_shapes

SMOLLM = {
    "model_type": "ced_llama", "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 1e5, "max_position_embeddings": 8192,
    "tie_word_embeddings": True, "n_encoder_layers": 20, "decoder_window": 128,
    "encoder_global_layers": list(range(20)), "replay_windows": 1, "weights_dtype": "int8",
}  # fmt: skip

V41 = {
    "model_type": "deepseek_v41",
    "text_config": {
        "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
        "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512,
        "q_lora_rank": 1280, "qk_rope_head_dim": 64, "o_groups": 8, "o_lora_rank": 1024,
        "sliding_window": 128, "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "index_n_heads": 32, "index_head_dim": 128, "n_routed_experts": 384,
        "n_shared_experts": 1, "num_experts_per_tok": 6, "moe_intermediate_size": 2304,
        "hc_mult": 4, "engram_layer_ids": [1, 14], "engram_max_ngram_size": 4,
        "engram_n_heads": 8, "engram_head_dim": 256,
    },
}  # fmt: skip


def test_the_release_at_32768_tokens():
    cost = model_cost(V41, n_tokens=32_768)
    assert f"{cost.ratio:.1%}" == "50.2%"
    assert cost.full_token_layers == 32_768 * 40
    assert cost.ced_token_layers == 32_768 * 20 + 128 * 20
    assert cost.bytes_per_token == 890
    assert cost.e_out_bytes == 0
    # "About 8B and 16B": 7.9B in the encoder half, 7.6B in the decoder half, 0.66B in the head.
    assert cost.prompt_parameters == pytest.approx(7.9e9, rel=0.01)
    assert cost.replayed_parameters == pytest.approx(7.6e9, rel=0.01)
    assert cost.generated_parameters == pytest.approx(16.1e9, rel=0.01)
    layers_only = model_cost(
        {**V41, "text_config": {**V41["text_config"], "engram_layer_ids": []}}, n_tokens=1
    )
    assert cost.prompt_parameters - layers_only.prompt_parameters == 2 * 25600 * 6144


def test_one_layer_of_the_release():
    two = {
        **V41["text_config"], "num_hidden_layers": 2, "compress_ratios": [2, 1],
        "kv_source_layer_ids": [0, 1], "index_source_layer_ids": [], "engram_layer_ids": [],
    }  # fmt: skip
    cost = model_cost({"model_type": "deepseek_v41", "text_config": two}, n_tokens=1)
    assert cost.replayed_parameters == pytest.approx(377.29e6, abs=0.005e6)


def test_the_default_model_by_hand():
    cost = model_cost(SMOLLM, n_tokens=2048)
    assert cost.ced_token_layers == 2048 * 20 + 128 * 10
    assert cost.global_rows_bytes == 20 * 396
    assert cost.e_out_bytes == 1152
    assert cost.bytes_per_token == 9072
    layer = 576 * (576 + 192 + 192 + 576 + 3 * 1536)
    assert cost.prompt_parameters == 20 * layer + 10 * 2 * 192 * 576
    assert cost.replayed_parameters == 10 * layer


def test_generated_parameters_are_the_matrices_of_a_checkpoint():
    for e in (1, 20, 30):
        values = {**SMOLLM, "n_encoder_layers": e, "encoder_global_layers": list(range(e))}
        shapes = tensor_shapes(LlamaConfig.from_json(values))
        matrices = sum(torch.Size(shape).numel() for shape in shapes.values() if len(shape) == 2)
        assert model_cost(values, n_tokens=7).generated_parameters == matrices


@pytest.mark.parametrize(("layers", "n_bytes"), [(5, 3132), (15, 7092)])
def test_fewer_global_layers_take_fewer_bytes(layers, n_bytes):
    values = {**SMOLLM, "encoder_global_layers": list(range(layers))}
    cost = model_cost(values, n_tokens=2048)
    assert cost.bytes_per_token == n_bytes
    assert (cost.n_windowed_layers, cost.snapshot_bytes) == (20 - layers, (20 - layers) * 127 * 396)
    # A windowed layer runs every token, too.
    assert cost.ced_token_layers == model_cost(SMOLLM, n_tokens=2048).ced_token_layers
    assert cost.prompt_parameters == model_cost(SMOLLM, n_tokens=2048).prompt_parameters


def test_snapshots_are_the_windows_of_all_windowed_layers():
    assert model_cost(SMOLLM, n_tokens=1).snapshot_bytes == 0
    assert model_cost(V41, n_tokens=1).snapshot_bytes == 20 * 127 * 528
    float32 = {**SMOLLM, "encoder_global_layers": [3], "weights_dtype": "float32"}
    assert model_cost(float32, n_tokens=1).snapshot_bytes == 19 * 127 * 2 * 192 * 4


def test_float32_streams_are_counted_as_stored():
    cost = model_cost({**SMOLLM, "weights_dtype": "float32"}, n_tokens=1)
    assert cost.bytes_per_token == 20 * 2 * 192 * 4 + 576 * 4


@pytest.mark.parametrize(
    ("changes", "n_tokens", "work"),
    [
        ({"n_encoder_layers": 30}, 500, 500 * 30),
        ({"decoder_window": 0}, 500, 500 * 20 + 10),
        ({"replay_windows": 2}, 500, 500 * 20 + 256 * 10),
        ({}, 100, 100 * 30),
        ({}, 1, 30),
    ],
)
def test_work_in_the_special_cases(changes, n_tokens, work):
    assert model_cost({**SMOLLM, **changes}, n_tokens=n_tokens).ced_token_layers == work


def test_a_config_is_read_from_its_folder_or_its_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM))
    expected = model_cost(SMOLLM, n_tokens=99)
    assert read_cost(tmp_path, n_tokens=99) == expected
    assert read_cost(tmp_path / "config.json", n_tokens=99) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "expected a JSON object, got list"),
        ('{"model_type": "llama"}', "model_type 'llama' is not known; expected ced_llama"),
        ('{"model_type": "ced_llama"}', "missing field num_hidden_layers"),
        ('{"model_type": "deepseek_v41", "text_config": {}}', "missing field num_hidden_layers"),
        ('{"model_type": "deepseek_v41", "text_config": 3}', "wrong type or size"),
        (json.dumps({**SMOLLM, "hidden_size": "576"}), "wrong type or size"),
        (json.dumps({**SMOLLM, "n_encoder_layers": 31}), r"must be 1 \.\. 30, got 31"),
        (json.dumps({**SMOLLM, "n_encoder_layers": 19}), "at most 19 encoder layers, .* got 20"),
        (
            json.dumps({**SMOLLM, "encoder_global_layers": [3], "decoder_window": 0}),
            "all of them where decoder_window is 0, got 1",
        ),
        (
            json.dumps({**V41, "text_config": {**V41["text_config"], "kv_source_layer_ids": [2]}}),
            "must be the first layer with ratio 1, 20, got 2",
        ),
    ],
)
def test_bad_configs_are_one_line(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_cost(tmp_path, n_tokens=5)
    assert "\n" not in str(caught.value)


def test_missing_configs_and_no_tokens_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no config at"):
        read_cost(tmp_path, n_tokens=5)
    with pytest.raises(ConfigError, match="tokens must be at least 1, got 0"):
        model_cost(SMOLLM, n_tokens=0)
