"""Adapters change what they should and nothing else, and their gradients are exact."""

import random

import pytest
import torch
from safetensors.torch import load_file

from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import Checkpoint, write_model
from cedagent.model.tiny import write_tiny
from cedagent.upcycle.smooth import smoothed
from cedagent.upcycle.training.adapters import (
    TrainedWeights,
    frozen_weights,
    global_tensors,
    layer_matrices,
)
from cedagent.upcycle.training.attention import Documents, whole
from cedagent.upcycle.training.forward import TrainModel
from cedagent.upcycle.training.int8_rounding import rounding_of


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


def some_peaks(config):
    """Sizes of channels as a calibration text might give them."""
    generator = torch.Generator().manual_seed(6)
    hidden, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    sizes = {"qkv": hidden, "gate_up": hidden, "global": hidden, "head": hidden,
             "output": queries, "down": config.intermediate_size}  # fmt: skip
    return {
        layer: {name: 10 ** torch.randn(n, generator=generator) for name, n in sizes.items()}
        for layer in range(config.num_hidden_layers)
    }


def rounding_and_checkpoint(folder, config, tensors):
    smooth = smoothed(tensors, config, some_peaks(config))
    write_model(folder, config, tensors, int8=smooth)
    checkpoint = Checkpoint(folder, config, dtype="int8")
    return rounding_of(checkpoint, tensors, config), checkpoint, smooth


def test_rounding_gives_the_codes_that_smoothing_gives(tmp_path, model_dir, tensors):
    config = LlamaConfig.load(model_dir)
    rounded, checkpoint, smooth = rounding_and_checkpoint(tmp_path, config, tensors)
    names = layer_matrices((0, 1, 2)) + [n for n in global_tensors(config) if "norm" not in n]
    n_other = 0
    for name in names:
        codes, scale = checkpoint.matrix(name)
        # What a code makes of its weight, whatever rows and columns were multiplied by.
        served = codes * scale.unsqueeze(1) / smooth[name]
        n_other += int(((rounded(name, tensors[name]) / tensors[name] - served).abs() > 1e-4).sum())
    # A value at the middle between two codes may go either way.
    assert n_other <= 5


def test_channels_that_are_never_used_round_to_numbers(tmp_path, model_dir, tensors):
    config = LlamaConfig.load(model_dir)
    prefix = "model.layers.1."
    tensors[prefix + "input_layernorm.weight"][5] = 0
    tensors[prefix + "mlp.up_proj.weight"][7] = 0
    rounded, checkpoint, smooth = rounding_and_checkpoint(tmp_path, config, tensors)
    for name in layer_matrices((1,)):
        codes, scale = checkpoint.matrix(name)
        served, found = codes * scale.unsqueeze(1) / smooth[name], rounded(name, tensors[name])
        assert torch.isfinite(found).all()
        off = (found / tensors[name] - served).abs() > 1e-4
        # Of what meets the dead channel and neuron nothing is said, all else is as it was.
        assert off.any(0).sum() <= 1, name


def test_only_the_forward_sees_the_rounding(model_dir, tensors):
    _, weights = trained_weights(model_dir, tensors)
    weights.refresh(rounding=lambda name, matrix: matrix.round())
    norm = "model.layers.1.global_norm.weight"
    for name in ("model.layers.1.mlp.up_proj.weight", "model.layers.1.global_k.weight", norm):
        expected = tensors[name] if name == norm else tensors[name].round()
        assert torch.equal(weights[name], expected)
    weights.refresh()
    assert all(torch.equal(weights[name], tensors[name]) for name in tensors)


def test_a_pass_without_use_for_a_tensor_gives_it_a_zero_gradient(model_dir, tensors):
    config, weights = trained_weights(model_dir, tensors)
    weights.refresh()
    model, documents = TrainModel(config, weights), [Documents(0, 1, 8)]
    # A text that fits into the window of 8 never looks at global keys.
    e_out = model.encode(model.embed(torch.arange(3, 11)), documents)
    model.decode(e_out, documents, whole(documents)).square().mean().backward()
    weights.collect()
    for name, parameter in weights.parameters().items():
        is_global = ".global_" in name
        # B is zero at the start, so that A has no slope yet.
        is_zero = is_global or name.endswith(".a")
        assert (parameter.grad == 0).all() == is_zero, name
    assert all(weights[name].grad is None for name in weights)
