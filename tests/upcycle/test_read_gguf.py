"""A GGUF file gives the parent that a Hugging Face folder of the same weights gives."""

import json

import gguf
import numpy as np
import pytest
import torch
from plain_llama import interleaved_rows, random_parent, write_gguf, write_hf_folder

from cedagent.errors import ConfigError, UsageError, WeightsError
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.source import read_parent

TOKENIZER = build_tiny(384)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("heads", [(3, 1), (4, 2), (3, 3)])
def test_the_row_order_of_llama_cpp_is_undone(tmp_path, tied, heads):
    config, tensors = random_parent(layers=2, heads=heads[0], kv_heads=heads[1], tied=tied)
    write_hf_folder(tmp_path / "hf", config, tensors, TOKENIZER)
    write_gguf(tmp_path / "a.gguf", config, tensors, TOKENIZER)
    folder, file = read_parent(tmp_path / "hf"), read_parent(tmp_path / "a.gguf")
    assert file.config == folder.config
    assert file.tensors.keys() == folder.tensors.keys() == tensors.keys()
    for name, weight in tensors.items():
        assert torch.equal(file.tensors[name], weight), name
        assert torch.equal(folder.tensors[name], weight), name
    # The file does hold other rows; without the undoing the comparison above would fail.
    stored = interleaved_rows(tensors["model.layers.0.self_attn.q_proj.weight"], heads[0])
    assert not torch.equal(stored, file.tensors["model.layers.0.self_attn.q_proj.weight"])


@pytest.mark.parametrize("quantisation", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_quantised_weights_are_what_the_gguf_package_makes_of_them(tmp_path, quantisation):
    config, tensors = random_parent(layers=1)
    write_gguf(tmp_path / "a.gguf", config, tensors, TOKENIZER, quantisation=quantisation)
    parent = read_parent(tmp_path / "a.gguf")
    kind = gguf.GGMLQuantizationType[quantisation]
    for name, weight in tensors.items():
        if weight.ndim == 2:
            codes = gguf.quantize(weight.numpy(), kind)
            weight = torch.from_numpy(np.array(gguf.dequantize(codes, kind)))
        assert parent.tensors[name].dtype is torch.float32
        assert torch.equal(parent.tensors[name], weight), name


def test_the_tokenizer_is_rebuilt_with_its_digit_splitting(tmp_path):
    config, tensors = random_parent(layers=1)
    write_gguf(tmp_path / "a.gguf", config, tensors, TOKENIZER)
    rebuilt = read_parent(tmp_path / "a.gguf").tokenizer()
    for text in ("17% of 2450", "the tool is 3.14", "<|im_start|>user\nNaïve 🙂 2024<|im_end|>"):
        assert rebuilt.encode(text).ids == TOKENIZER.encode(text).ids
    assert rebuilt.encode("2450").ids == [rebuilt.token_to_id(digit) for digit in "2450"]


def test_a_tokenizer_beside_the_file_is_preferred(tmp_path):
    config, tensors = random_parent(layers=1)
    write_gguf(tmp_path / "a.gguf", config, tensors, TOKENIZER, pre="llama-bpe")
    with pytest.raises(ConfigError, match=r"llama-bpe.*put the model's tokenizer\.json beside"):
        read_parent(tmp_path / "a.gguf")
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    parent = read_parent(tmp_path / "a.gguf")
    assert parent.tokenizer_json == (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    assert set(parent.origin["sha256"]) == {"a.gguf", "tokenizer.json"}


REFUSED = {
    "architecture": ({"arch": "qwen2"}, ConfigError, "architecture 'qwen2' is not supported"),
    "experts": ({"fields": [("llama.expert_count", 8)]}, ConfigError, "mixture-of-experts"),
    "window": (
        {"fields": [("llama.attention.sliding_window", 64)]}, ConfigError, "sliding window"
    ),
    "scaling": (
        {"fields": [("llama.rope.scaling.type", "linear")]}, ConfigError, r"rope_scaling \(linear\)"
    ),
    "split": ({"fields": [("split.count", 3)]}, ConfigError, "split GGUF"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_field_that_a_plain_llama_does_not_have_is_refused(tmp_path, case):
    options, kind, message = REFUSED[case]
    config, tensors = random_parent(layers=1)
    write_gguf(tmp_path / "a.gguf", config, tensors, TOKENIZER, **options)
    with pytest.raises(kind, match=message) as caught:
        read_parent(tmp_path / "a.gguf")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("model.layers.0.self_attn.q_proj.bias", ConfigError, "biases are not supported"),
        ("rope_freqs.weight", ConfigError, "rope_scaling"),
        ("blk.0.attn_q_norm.weight", ConfigError, "attn_q_norm.weight is not a tensor of a plain"),
    ],
)
def test_a_tensor_too_many_is_refused(tmp_path, name, kind, message):
    config, tensors = random_parent(layers=1)
    tensors[name] = torch.ones(32)
    write_gguf(tmp_path / "a.gguf", config, tensors, TOKENIZER)
    with pytest.raises(kind, match=message):
        read_parent(tmp_path / "a.gguf")


@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
def test_a_missing_tensor_is_named(tmp_path, name):
    config, tensors = random_parent(layers=1)
    del tensors[name]
    write_gguf(tmp_path / "a.gguf", config, tensors, TOKENIZER)
    with pytest.raises(WeightsError, match=f"missing tensor {name}; the checkpoint is incomplete"):
        read_parent(tmp_path / "a.gguf")


def test_a_misshapen_tensor_is_named(tmp_path):
    config, tensors = random_parent(layers=1)
    tensors["model.norm.weight"] = torch.ones(64)
    write_gguf(tmp_path / "a.gguf", config, tensors, TOKENIZER)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape \[64\], expected \[96"):
        read_parent(tmp_path / "a.gguf")


def test_a_quantisation_without_a_reader_is_refused(tmp_path):
    path = tmp_path / "a.gguf"
    config, tensors = random_parent(layers=1, hidden=256, vocab=384)
    write_gguf(path, config, tensors, TOKENIZER)
    # Mark one tensor as Q8_K, which no file should hold and the package cannot read.
    reader = gguf.GGUFReader(path, "r+")
    tensor = next(t for t in reader.tensors if t.name == "blk.0.ffn_gate.weight")
    tensor.field.parts[-2][0] = gguf.GGMLQuantizationType.Q8_K
    del reader
    with pytest.raises(WeightsError, match=r"ffn_gate\.weight is stored as Q8_K"):
        read_parent(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "a.gguf").write_text(json.dumps({"not": "gguf"}))
    with pytest.raises(UsageError, match="is not a GGUF file"):
        read_parent(tmp_path / "a.gguf")
    with pytest.raises(UsageError, match=r"no checkpoint at .*none\.gguf: expected a \.gguf file"):
        read_parent(tmp_path / "none.gguf")


@pytest.mark.parametrize("share", [0.0005, 0.02, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path, share):
    config, tensors = random_parent(layers=1)
    path = write_gguf(tmp_path / "a.gguf", config, tensors, TOKENIZER)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(WeightsError, match="damaged GGUF file") as caught:
        read_parent(path)
    assert "\n" not in str(caught.value)
