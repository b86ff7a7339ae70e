"""trained.safetensors: small, whole, checked; applied, it is the model that was trained."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from training import made
from training_runs import RECIPE, heal

from cedagent.errors import WeightsError
from cedagent.model.llama.config import LlamaConfig
from cedagent.upcycle.training.adapters import layer_matrices
from cedagent.upcycle.training.checkpoint import CHECKPOINT
from cedagent.upcycle.training.trained_file import (
    apply_trained,
    check_fits,
    parent_digest,
    read_trained,
    write_trained,
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return made(tmp_path_factory.mktemp("made"), encoder_global_layers=(1,))


@pytest.fixture
def tensors(model_dir):
    return load_file(model_dir / "model.safetensors")


@pytest.fixture
def config(model_dir):
    return LlamaConfig.load(model_dir)


@pytest.fixture(scope="module")
def healed(model_dir, tmp_path_factory):
    """Trained in the decoder and in a windowed encoder layer."""
    folder = tmp_path_factory.mktemp("healed")
    recipe = replace(RECIPE, steps=3, lr=3e-2, lr_global=5e-2, encoder_adapters=True)
    return heal(model_dir, folder, recipe).path


def some_pairs(tensors, rank, layers=(2,)):
    generator = torch.Generator().manual_seed(rank)
    return {
        name: (
            torch.randn(rank, tensors[name].shape[1], generator=generator),
            torch.randn(tensors[name].shape[0], rank, generator=generator),
        )
        for name in layer_matrices(layers)
    }


@pytest.mark.parametrize("rank", [1, 8, 40])
def test_adapters_come_back_as_the_same_sums(tmp_path, tensors, config, rank):
    pairs = some_pairs(tensors, rank)
    full = {"model.layers.3.global_norm.weight": torch.rand(48)}
    path = tmp_path / "trained.safetensors"
    write_trained(path, full=full, pairs=pairs, config=config, parent="p", stages=[])
    applied = apply_trained(tensors, path)
    for name in tensors:
        if name in pairs:
            a, b = pairs[name]
            assert torch.allclose(applied[name] - tensors[name], b @ a, rtol=0.02, atol=0.05 * rank)
        else:
            expected = full.get(name, tensors[name])
            assert torch.equal(applied[name], expected)
    # Whichever is smaller is written.
    stored = load_file(path)
    for name in pairs:
        n_out, n_in = tensors[name].shape
        is_pair = rank * (n_out + n_in) < n_out * n_in
        assert (f"{name}.a" in stored) == is_pair
        assert (f"{name}.delta" in stored) == (not is_pair)
    again = read_trained(path)
    write_trained(
        tmp_path / "again.safetensors",
        full=again.full, pairs=again.pairs, config=config, parent="p", stages=[],
    )  # fmt: skip
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_the_default_shape_fits_into_thirty_megabytes():
    """Rank 16 on all seven matrices of all layers of the default model, and its global tensors."""
    shapes = [(576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536)]
    adapters = 30 * 16 * sum(n + k for n, k in shapes)
    whole = 10 * 2 * 192 * 576
    assert 2 * (adapters + whole) < 15e6


def test_applied_weights_are_those_that_were_trained(model_dir, tensors, healed, tmp_path):
    applied = apply_trained(tensors, healed)
    trained = read_trained(healed)
    for name, (a, b) in trained.pairs.items():
        assert torch.allclose(applied[name], tensors[name] + b @ a, atol=1e-6)
    assert not torch.equal(
        applied["model.layers.2.global_k.weight"], tensors["model.layers.2.global_k.weight"]
    )
    assert torch.equal(tensors["model.norm.weight"], applied["model.norm.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder_window": 7}, "trained for decoder_window = 6, but the model has 7"),
        (
            {"encoder_global_layers": (0, 1)},
            r"trained for encoder_global_layers = \[1\], but the model has \[0, 1\]",
        ),
        ({"n_encoder_layers": 3}, "trained for n_encoder_layers = 2, but the model has 3"),
    ],
)
def test_a_file_for_other_settings_is_refused(healed, tensors, config, change, message):
    with pytest.raises(WeightsError, match=message):
        check_fits(
            read_trained(healed), parent=parent_digest(tensors), config=replace(config, **change)
        )


def test_the_parent_is_known_by_its_own_tensors_alone(healed, tensors, config):
    digest = parent_digest(tensors)
    tensors["model.layers.2.global_k.weight"] += 1
    assert parent_digest(tensors) == digest
    check_fits(read_trained(healed), parent=digest, config=config)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] += 1e-3
    with pytest.raises(WeightsError, match="trained from another parent"):
        check_fits(read_trained(healed), parent=parent_digest(tensors), config=config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.9.mlp.up_proj.weight": torch.zeros(96, 48)}, "but the model has no such"),
        (
            {"model.layers.2.mlp.up_proj.weight.b": torch.zeros(95, 3)},
            r"is \[95, 48\], but the mod",
        ),
        ({"model.layers.2.mlp.up_proj.weight.b": torch.zeros(96, 4)}, "factors of .* do not fit"),
        ({"model.layers.2.mlp.up_proj.weight.b": None}, "has no partner; the file is damaged"),
        ({"model.layers.2.global_norm.weight": torch.zeros(47)}, r"is \[47\], but the model has"),
        ({"model.layers.2.mlp.up_proj.weight.a": torch.zeros(48)}, "is no matrix; the file is dam"),
        ({"model.layers.2.global_norm.weight": torch.full((48,), torch.nan)}, "are no numbers"),
    ],
)
def test_names_and_shapes_are_checked(healed, tensors, tmp_path, change, message):
    values = load_file(healed) | change
    path = tmp_path / "changed.safetensors"
    metadata = {"cedagent": json.dumps(dict(read_trained(healed).metadata))}
    save_file({n: t for n, t in values.items() if t is not None}, path, metadata=metadata)
    with pytest.raises(WeightsError, match=message):
        apply_trained(tensors, path)


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all"])
def test_what_is_no_trained_file_is_refused(tensors, tmp_path, content):
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"no such file|not a trained file"):
        apply_trained(tensors, path)


def test_other_safetensors_are_refused(model_dir, tensors, healed):
    with pytest.raises(WeightsError, match="not a trained file: its metadata"):
        apply_trained(tensors, model_dir / "model.safetensors")
    with pytest.raises(WeightsError, match="not a trained file: its metadata"):
        apply_trained(tensors, healed.with_name(CHECKPOINT))


@pytest.mark.parametrize("change", [{"parent": 7}, {"made_for": [2]}, {"stages": {}}])
def test_metadata_of_other_types_are_refused(healed, tensors, tmp_path, change):
    path = tmp_path / "changed.safetensors"
    metadata = dict(read_trained(healed).metadata) | change
    save_file(load_file(healed), path, metadata={"cedagent": json.dumps(metadata)})
    with pytest.raises(WeightsError, match="not a trained file: its metadata"):
        read_trained(path)
