"""Adapters change what they should and nothing else, and their gradients are exact."""

import random

import pytest
import torch
from safetensors.torch import load_file

from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import Checkpoint, write_model
from cedagent.model.tiny import write_tiny
from cedagent.upcycle.training.adapters import (
    TrainedWeights,
    frozen_weights,
    global_tensors,
    layer_matrices,
)
from cedagent.upcycle.training.attention import Documents, whole
from cedagent.upcycle.training.forward import TrainModel
from cedagent.upcycle.training.int8_rounding import rounding_of
from cedagent.upcycle.training.trained_model import smoothed_anew


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny(
        tmp_path_factory.mktemp("model") / "tiny",
        n_layers=3, n_encoder_layers=1, window=8, n_kv_heads=3, n_heads=6,
    )  # fmt: skip


@pytest.fixture
def tensors(model_dir):
    return load_file(model_dir / "model.safetensors")


def trained_weights(model_dir, tensors, *, rank=4, layers=(1, 2), seed=0):
    config = LlamaConfig.load(model_dir)
    frozen = frozen_weights(tensors, dtype=torch.float32, device=torch.device("cpu"))
    weights = TrainedWeights(tensors, frozen, full=global_tensors(config))
    weights.adapt(layer_matrices(layers), rank=rank, seed=seed)
    return config, weights


def test_new_adapters_change_nothing(model_dir, tensors):
    _, weights = trained_weights(model_dir, tensors)
    weights.refresh()
    assert all(torch.equal(weights[name], tensors[name]) for name in tensors)
    names = {name for name, leaf in weights.items() if leaf.requires_grad}
    assert len(names) == 2 * (7 + 3)
    assert not any(name.startswith("model.layers.0.") for name in names)


def test_an_adapters_draws_are_its_own(model_dir, tensors):
    _, few = trained_weights(model_dir, tensors, layers=(2,), seed=7)
    _, many = trained_weights(model_dir, tensors, layers=(1, 2), seed=7)
    _, other = trained_weights(model_dir, tensors, layers=(2,), seed=8)
    for name, (a, _) in few.pairs.items():
        assert torch.equal(a, many.pairs[name][0])
        assert not torch.equal(a, other.pairs[name][0])


def test_collected_gradients_are_those_of_the_merged_matrices(model_dir, tensors):
    config, weights = trained_weights(model_dir, tensors)
    generator = torch.Generator().manual_seed(3)
    for _, b in weights.pairs.values():
        with torch.no_grad():
            b += 0.1 * torch.randn(b.shape, generator=generator)
    ids = torch.tensor(random.Random(1).choices(range(384), k=40))
    documents = [Documents(0, 2, 20)]

    def loss_of(weights):
        model = TrainModel(config, weights)
        e_out = model.encode(model.embed(ids), documents)
        return model.decode(e_out, documents, whole(documents)).square().mean()

    def by_hand():
        """The same loss with W + B A in the graph."""
        made = dict(weights)
        for name, (a, b) in weights.pairs.items():
            made[name] = tensors[name] + b @ a
        return loss_of(made | weights.full)

    parameters = weights.parameters()
    expected = torch.autograd.grad(by_hand(), list(parameters.values()))
    weights.refresh()
    # Two passes of half the loss: gradients of passes add up.
    for _ in range(2):
        (loss_of(weights) / 2).backward()
        weights.collect()
    for (name, parameter), gradient in zip(parameters.items(), expected, strict=True):
        assert gradient.abs().max() > 0, name
        assert torch.allclose(parameter.grad, gradient, atol=1e-6, rtol=1e-3), name


def test_rounding_of_untrained_weights_is_what_the_int8_file_holds(tmp_path, model_dir, tensors):
    # A tiny model's own int8 file is not smoothed; this one is, as conversion does it.
    config = LlamaConfig.load(model_dir)
    tokenizer_json = (model_dir / "tokenizer.json").read_text()
    smooth = smoothed_anew(tensors, config, tokenizer_json)
    write_model(tmp_path, config, tensors, int8=smooth)
    checkpoint = Checkpoint(tmp_path, config, dtype="int8")
    rounded = rounding_of(checkpoint, tensors, config)
    names = layer_matrices((0, 1, 2)) + [n for n in global_tensors(config) if "norm" not in n]
    for name in names:
        codes, scale = checkpoint.matrix(name)
        served = codes.float() * scale.unsqueeze(1)
        # Smoothing scales columns, which `rounded` takes back, and rows, which change no code.
        error = (rounded(name, tensors[name]) - tensors[name]).norm()
        expected = ((served - smooth[name]) * (tensors[name] / smooth[name])).norm()
        assert error > 0
        assert torch.allclose(error, expected, rtol=1e-3), name


def test_only_the_forward_sees_the_rounding(model_dir, tensors):
    _, weights = trained_weights(model_dir, tensors)
    weights.refresh(rounding=lambda name, matrix: matrix.round())
    name = "model.layers.1.mlp.up_proj.weight"
    assert torch.equal(weights[name], tensors[name].round())
    assert torch.equal(weights.merged()[name], tensors[name])
    assert torch.equal(
        weights["model.layers.1.global_norm.weight"], tensors["model.layers.1.global_norm.weight"]
    )
