"""Checkpoints: every tensor that is missing, misshapen or mistyped is refused by name."""

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from cedagent.errors import ConfigError, WeightsError
from cedagent.model.llama.ced import LlamaModel
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import Checkpoint, tensor_shapes, weight_groups, write_model
from cedagent.model.tiny import write_tiny

NAME = "model.layers.4.global_v.weight"


@pytest.fixture
def model(tmp_path):
    return write_tiny(tmp_path / "model", tie_word_embeddings=False)


def rewrite(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_a_missing_tensor_is_named(model, precision):
    file = model / ("model-int8.safetensors" if precision == "int8" else "model.safetensors")
    rewrite(file, lambda tensors: tensors.pop(NAME))
    with pytest.raises(WeightsError, match=re.escape(f"tensor {NAME} is missing")):
        LlamaModel(model, precision=precision)


def test_codes_without_their_scale_are_refused(model):
    rewrite(model / "model-int8.safetensors", lambda tensors: tensors.pop(NAME + "_scale"))
    with pytest.raises(WeightsError, match=re.escape(f"{NAME}_scale is missing")):
        LlamaModel(model)


def test_a_wrong_shape_is_named_with_both_shapes(model):
    rewrite(model / "model.safetensors", lambda t: t.update({NAME: torch.zeros(16, 47)}))
    with pytest.raises(
        WeightsError, match=r"global_v\.weight: expected \[16, 48\].*got \[16, 47\]"
    ):
        LlamaModel(model, precision="float32")


def test_a_wrong_type_is_named(model):
    rewrite(model / "model.safetensors", lambda t: t.update({NAME: t[NAME].half()}))
    with pytest.raises(WeightsError, match=r"global_v\.weight: expected .*float32, got .*float16"):
        LlamaModel(model, precision="float32")


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all"])
def test_a_missing_or_broken_file_is_one_line(model, content):
    path = model / "model-int8.safetensors"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"model-int8\.safetensors") as caught:
        LlamaModel(model)
    assert "\n" not in str(caught.value)


def test_int8_where_only_float32_is_stored_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="load it with precision float32"):
        LlamaModel(write_tiny(tmp_path, int8=False))


def test_weights_are_as_public_as_the_config(model):
    modes = {path.name: path.stat().st_mode & 0o777 for path in model.iterdir()}
    assert modes["model.safetensors"] == modes["model-int8.safetensors"] == modes["config.json"]


def test_digests_follow_contents_and_name_their_group(model, tmp_path):
    config = LlamaConfig.load(model)
    groups = weight_groups(config)
    assert sorted(groups) == ["embedding", "head", *(f"layers.{i}" for i in range(6))]
    assert sorted(name for names in groups.values() for name in names) == sorted(
        tensor_shapes(config)
    )
    changed = shutil.copytree(model, tmp_path / "changed")
    rewrite(changed / "model-int8.safetensors", lambda t: t[NAME + "_scale"].mul_(1.0001))
    a, b = (Checkpoint(path, config, dtype="int8") for path in (model, changed))
    differing = [group for group, names in groups.items() if a.digest(names) != b.digest(names)]
    assert differing == ["layers.4"]


def test_write_model_refuses_tensors_that_do_not_fit(tmp_path, model):
    config = LlamaConfig.load(model)
    tensors = load_file(model / "model.safetensors")
    with pytest.raises(WeightsError, match="tensor surplus: expected no such tensor"):
        write_model(tmp_path, config, tensors | {"surplus": torch.zeros(1)})
    del tensors[NAME]
    with pytest.raises(WeightsError, match=r"global_v\.weight: expected .* got nothing"):
        write_model(tmp_path, config, tensors)


def test_int8_weights_are_the_nearest_codes(model):
    exact = load_file(model / "model.safetensors")
    stored = load_file(model / "model-int8.safetensors")
    codes, scale = stored[NAME], stored[NAME + "_scale"]
    assert codes.dtype is torch.int8
    assert codes.abs().amax(1).eq(127).all()
    error = (codes.float() * scale.unsqueeze(1) - exact[NAME]).abs()
    assert (error <= scale.unsqueeze(1) * 0.501).all()
