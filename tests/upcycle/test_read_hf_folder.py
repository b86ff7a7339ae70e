"""A Hugging Face folder is read as it is, or refused with one line that says why."""

import json

import pytest
import torch
from plain_llama import random_parent, write_hf_folder
from safetensors.torch import save_file

from cedagent.errors import ConfigError, UsageError, WeightsError
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.source import read_parent

TOKENIZER = build_tiny(384)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_is_read_whole(tmp_path, shards, tied):
    config, tensors = random_parent(layers=3, tied=tied)
    folder = write_hf_folder(tmp_path / "hf", config, tensors, TOKENIZER, shards=shards)
    steps = []
    parent = read_parent(folder, progress=lambda *step: steps.append(step))
    assert parent.tensors.keys() == tensors.keys()
    assert all(torch.equal(parent.tensors[name], tensors[name]) for name in tensors)
    assert parent.config.tie_word_embeddings is tied
    assert parent.config.rope_theta == config["rope_theta"]
    assert parent.config.eos_token_id == 2
    assert parent.tokenizer().encode("2450").ids == TOKENIZER.encode("2450").ids
    assert len(parent.origin["sha256"]) == 2 + shards
    assert steps[0] == ("read", 0, shards)
    assert steps[-1] == ("read", shards, shards)


def test_half_precision_weights_become_float32(tmp_path):
    config, tensors = random_parent(layers=1)
    halves = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    parent = read_parent(write_hf_folder(tmp_path / "hf", config, halves, TOKENIZER))
    for name, tensor in halves.items():
        assert parent.tensors[name].dtype is torch.float32
        assert torch.equal(parent.tensors[name], tensor.float())


def test_the_fields_of_newer_and_older_configs_mean_the_same(tmp_path):
    config, tensors = random_parent(layers=1, kv_heads=3)
    newer = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    del newer["rope_theta"]
    older = {**config, "rope_theta": 5e5, "eos_token_id": [2, 0], "rope_scaling": None}
    del older["num_key_value_heads"], older["head_dim"]
    configs = []
    for name, fields in (("newer", newer), ("older", older)):
        folder = write_hf_folder(tmp_path / name, fields, tensors, TOKENIZER)
        configs.append(read_parent(folder).config)
    assert configs[0] == configs[1]
    assert configs[0].rope_theta == 5e5


def test_a_tied_folder_may_hold_the_head_and_rope_frequencies(tmp_path):
    config, tensors = random_parent(layers=1)
    more = {
        **tensors,
        "lm_head.weight": tensors["model.embed_tokens.weight"].clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16),
    }
    parent = read_parent(write_hf_folder(tmp_path / "hf", config, more, TOKENIZER))
    assert parent.tensors.keys() == tensors.keys()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "qwen2"}, "model_type 'qwen2' is not supported"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, r"rope_scaling \(llama3\)"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, r"rope_scaling \(linear\)"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope_scaling \(yarn\)"),
        ({"num_local_experts": 8}, "mixture-of-experts"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding window"),
        ({"attention_bias": True}, "biases are not supported"),
        ({"mlp_bias": True}, "biases are not supported"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantised folders are not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 2}, "must be a multiple of num_key_value_heads"),
        ({"head_dim": 33}, "head_dim must be even"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"hidden_size": "96"}, "hidden_size must be int"),
    ],
)
def test_a_config_that_a_plain_llama_does_not_cover_is_refused(tmp_path, fields, message):
    config, tensors = random_parent(layers=1)
    folder = write_hf_folder(tmp_path / "hf", {**config, **fields}, tensors, TOKENIZER)
    with pytest.raises(ConfigError, match=message) as caught:
        read_parent(folder)
    assert "\n" not in str(caught.value)


def test_a_missing_config_field_is_named(tmp_path):
    config, tensors = random_parent(layers=1)
    del config["rms_norm_eps"]
    folder = write_hf_folder(tmp_path / "hf", config, tensors, TOKENIZER)
    with pytest.raises(ConfigError, match="missing field rms_norm_eps"):
        read_parent(folder)


def test_tensors_too_many_or_too_few_are_named(tmp_path):
    config, tensors = random_parent(layers=1, tied=False)
    name = "model.layers.0.self_attn.k_proj.bias"
    folder = write_hf_folder(
        tmp_path / "bias", config, {**tensors, name: torch.zeros(32)}, TOKENIZER
    )
    with pytest.raises(ConfigError, match=f"biases are not supported, found {name}"):
        read_parent(folder)
    del tensors["lm_head.weight"]
    folder = write_hf_folder(tmp_path / "headless", config, tensors, TOKENIZER)
    with pytest.raises(WeightsError, match=r"missing tensor lm_head\.weight"):
        read_parent(folder)


def test_misshapen_and_integer_tensors_are_named(tmp_path):
    config, tensors = random_parent(layers=1)
    for value, message in (
        (torch.ones(95), r"model\.norm\.weight has shape \[95\], expected \[96\]"),
        (torch.ones(96, dtype=torch.int32), r"model\.norm\.weight is torch\.int32"),
    ):
        folder = write_hf_folder(
            tmp_path / str(value.dtype), config, {**tensors, "model.norm.weight": value}, TOKENIZER
        )
        with pytest.raises(WeightsError, match=message):
            read_parent(folder)


def test_files_that_are_absent_or_damaged_are_named(tmp_path):
    config, tensors = random_parent(layers=1)
    folder = write_hf_folder(tmp_path / "hf", config, tensors, TOKENIZER)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(WeightsError, match=r"model\.safetensors cannot be read"):
        read_parent(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"no model\.safetensors in"):
        read_parent(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"no tokenizer\.json in"):
        read_parent(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is not JSON"):
        read_parent(folder)
    (folder / "config.json").unlink()
    with pytest.raises(UsageError, match=r"no config\.json in"):
        read_parent(folder)


def test_an_index_cannot_point_outside_its_folder(tmp_path):
    config, tensors = random_parent(layers=1)
    folder = write_hf_folder(tmp_path / "hf", config, tensors, TOKENIZER, shards=2)
    save_file({"model.norm.weight": torch.ones(96)}, tmp_path / "elsewhere.safetensors")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=r"puts model\.norm\.weight in elsewhere"):
        read_parent(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    content["weight_map"]["model.norm.weight"] = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(WeightsError, match="which is not there"):
        read_parent(folder)
