"""Smoothing: the same function in exact arithmetic, and less lost to int8."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from naive_ced import NaiveCed
from plain_llama import random_parent, write_hf_folder
from safetensors.torch import load_file, save_file

from ced_kernels.norm import rms_norm
from ced_kernels.rows import quantize_rows
from cedagent.engine import Engine
from cedagent.errors import WeightsError
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import write_model
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.convert import calibrate, convert
from cedagent.upcycle.smooth import smoothed
from cedagent.upcycle.source import read_parent

TOKENIZER = build_tiny(320)
IDS = list(range(3, 203))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A parent with a few channels far larger than the others before every kind of map."""
    config, tensors = random_parent(layers=4, vocab=320)
    for name, tensor in tensors.items():
        if "layernorm" in name:
            tensor[::11] *= 40
        if "up_proj" in name or "v_proj" in name:
            tensor[::13] *= 25
    return write_hf_folder(tmp_path_factory.mktemp("parent") / "hf", config, tensors, TOKENIZER)


@pytest.fixture(scope="module")
def converted(source, tmp_path_factory):
    dst = tmp_path_factory.mktemp("converted") / "x"
    return convert(source, dst, n_encoder_layers=2, window=32)


@pytest.mark.slow
def test_smoothed_tensors_compute_the_same_function(source, converted, tmp_path):
    parent, config = read_parent(source), LlamaConfig.load(converted)
    added, peaks = calibrate(parent, config)
    tensors = dict(parent.tensors) | added
    changed = smoothed(tensors, config, peaks)
    assert sum(not torch.equal(changed[name], tensors[name]) for name in tensors) > 30
    write_model(tmp_path, replace(config, tie_word_embeddings=False), changed)
    (tmp_path / "tokenizer.json").write_text("{}")
    expected, got = NaiveCed(converted).forward(IDS), NaiveCed(tmp_path).forward(IDS)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_a_map_behind_a_norm_with_outliers_loses_half(source, converted):
    parent, config = read_parent(source), LlamaConfig.load(converted)
    added, peaks = calibrate(parent, config)
    tensors = dict(parent.tensors) | added
    x = torch.randn(50, config.hidden_size, generator=torch.Generator().manual_seed(1))
    errors = []
    for weights in (tensors, smoothed(tensors, config, peaks)):
        norm = weights["model.layers.1.post_attention_layernorm.weight"]
        matrix = weights["model.layers.1.mlp.gate_proj.weight"]
        normed = rms_norm(x, norm, eps=1e-5)
        rows, codes = quantize_rows(normed), quantize_rows(matrix)
        errors.append(float((rows.values() @ codes.values().t() - normed @ matrix.t()).norm()))
    plain, smooth = errors
    assert smooth < 0.6 * plain


def test_the_head_loses_half_and_the_embedding_stays(source, converted):
    parent, config = read_parent(source), LlamaConfig.load(converted)
    added, peaks = calibrate(parent, config)
    tensors = dict(parent.tensors) | added
    norm = tensors["model.norm.weight"].clone()
    norm[::11] *= 40
    tensors["model.norm.weight"] = norm
    peaks[3]["head"][::11] *= 40
    x = torch.randn(50, config.hidden_size, generator=torch.Generator().manual_seed(1))
    smooth = smoothed(tensors, config, peaks)
    embedding = tensors["model.embed_tokens.weight"]
    assert torch.equal(smooth["model.embed_tokens.weight"], embedding)
    errors = []
    for weights in (tensors | {"lm_head.weight": embedding}, smooth):
        normed = rms_norm(x, weights["model.norm.weight"], eps=1e-5)
        head = weights["lm_head.weight"]
        got = quantize_rows(normed).values() @ quantize_rows(head).values().t()
        errors.append(float((got - normed @ head.t()).norm()))
    plain, better = errors
    assert better < 0.6 * plain


def test_an_int8_file_without_its_head_says_what_to_do(converted, tmp_path):
    shutil.copytree(converted, tmp_path / "x")
    file = tmp_path / "x" / "model-int8.safetensors"
    save_file({n: t for n, t in load_file(file).items() if "lm_head" not in n}, file)
    with pytest.raises(WeightsError, match=r"lm_head\.weight is missing; convert"):
        Engine.load(tmp_path / "x")


@pytest.mark.slow
def test_int8_loses_less_with_smoothing(converted, tmp_path):
    config = LlamaConfig.load(converted)
    tensors = load_file(converted / "model.safetensors")
    write_model(tmp_path, config, tensors, int8=tensors)
    expected = NaiveCed(converted).forward(IDS).log_softmax(-1)
    errors = []
    for model in (tmp_path, converted):
        got = Engine.load(model).logits(IDS).log_softmax(-1)
        errors.append(float((expected.exp() * (expected - got)).sum(-1).mean()))
    plain, smooth = errors
    assert smooth < 0.9 * plain


def test_the_float32_weights_stay_the_parents(source, converted):
    parent, made = read_parent(source), load_file(converted / "model.safetensors")
    assert all(torch.equal(made[name], tensor) for name, tensor in parent.tensors.items())


def test_the_origin_names_the_share(converted):
    assert json.loads((converted / "origin.json").read_text())["calibration"]["share"] == 0.6
