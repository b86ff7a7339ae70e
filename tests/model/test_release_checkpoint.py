"""Checkpoints in the release's formats: read exactly, lazily, and refused by name."""

import dataclasses
import json
import shutil
import struct
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cedagent.errors import WeightsError
from cedagent.model import digests, release
from cedagent.model.release import (
    ReleaseCheckpoint,
    WeightBytes,
    choose_weights,
    tensor_shapes,
    weight_groups,
    write_release,
)
from cedagent.model.release_names import is_matrix, released_format
from cedagent.model.v41_config import V41Config

VECTORS = Path(__file__).parents[1] / "vectors"
FP8 = VECTORS / "v41_tiny_fp8"
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
GIB = 1 << 30


def powers(scales):
    """Return what ue8m0 bytes mean, float64: 2^(b - 127)."""
    return torch.pow(2.0, scales.view(torch.uint8).double() - 127)


def exact_value(stored, name):
    """Return a stored matrix's values, float64, by the definition of its format."""
    codes = stored[name]
    scales = stored.get(name.removesuffix(".weight") + ".scale")
    if codes.dtype is torch.int8:
        byte = codes.view(torch.uint8).long()
        values = torch.stack((FP4[byte & 15], FP4[byte >> 4]), -1).flatten(-2).double()
        return values * powers(scales).repeat_interleave(32, 1)
    if scales is None:
        return codes.double()
    columns = powers(scales).repeat_interleave(32, 1)
    if len(columns) != len(codes):
        columns = columns.repeat_interleave(32, 0)[: len(codes)]
    return codes.double() * columns


@pytest.fixture(scope="module")
def config():
    """Return a small model with Engram and with rows that are not whole blocks of 32."""
    full = V41Config.load(VECTORS / "v41_tiny_engram")
    return dataclasses.replace(full, n_routed_experts=3, q_lora_rank=96, o_lora_rank=48)


@pytest.fixture(scope="module")
def tensors(config):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator)
        for name, shape in tensor_shapes(config).items()
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory, config, tensors):
    path = tmp_path_factory.mktemp("quantized")
    write_release(path, config, tensors, quantized=True)
    return path


@pytest.fixture(scope="module")
def written_shards(tmp_path_factory, config, tensors):
    path = tmp_path_factory.mktemp("sharded")
    write_release(path, config, tensors, quantized=True, shards=4)
    return path


@pytest.fixture
def model_dir(tmp_path, written):
    """Return a model directory that a test may spoil."""
    return Path(shutil.copytree(written, tmp_path / "model"))


@pytest.fixture
def sharded(tmp_path, written_shards):
    return Path(shutil.copytree(written_shards, tmp_path / "model"))


def stored_of(model_dir):
    stored = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        # Copies: the file will be written anew.
        stored |= {name: tensor.clone() for name, tensor in load_file(path).items()}
    return stored


def change(model_dir, **changes):
    """Rewrite the single file with tensors replaced, or removed where None is given."""
    stored = stored_of(model_dir)
    for name, tensor in changes.items():
        stored.pop(name, None)
        if tensor is not None:
            stored[name] = tensor
    save_file(stored, model_dir / "model.safetensors")


def keep(model_dir, config):
    return ReleaseCheckpoint(model_dir, config, weights="keep")


def refusal(model_dir, config):
    with pytest.raises(WeightsError) as caught:
        keep(model_dir, config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Golden data.


@pytest.mark.parametrize("weights", ["keep", "dequantize"])
def test_other_programs_dequantised_weights(weights):
    checkpoint = ReleaseCheckpoint(FP8, V41Config.load(FP8), weights=weights)
    expected = load_file(FP8 / "expected.safetensors")
    names = [name for name in expected if name.startswith("dequantized.")]
    assert len(names) == 3
    for name in names:
        value = checkpoint.matrix(name.removeprefix("dequantized.")).value()
        assert value.dtype is torch.float32
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("folder", ["v41_tiny", "v41_tiny_fp8", "v41_tiny_engram"])
def test_every_tensor_of_a_foreign_checkpoint(folder):
    config = V41Config.load(VECTORS / folder)
    checkpoint = keep(VECTORS / folder, config)
    stored = load_file(VECTORS / folder / "model.safetensors")
    read = set()
    for name in tensor_shapes(config):
        value = checkpoint.matrix(name).value() if is_matrix(name) else checkpoint.vector(name)
        assert torch.equal(value.double(), exact_value(stored, name)), name
        read |= {name, name.removesuffix(".weight") + ".scale"}
    assert stored.keys() <= read
    assert checkpoint.skipped == checkpoint.notices == ()


# What is written is what is read.


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("quantized", [False, True], ids=["plain", "quantized"])
def test_round_trip(tmp_path, config, tensors, quantized, shards):
    write_release(tmp_path, config, tensors, quantized=quantized, shards=shards)
    assert len(list(tmp_path.glob("*.safetensors"))) == shards
    assert V41Config.load(tmp_path) == config
    checkpoint, stored = keep(tmp_path, config), stored_of(tmp_path)
    # Steps of the codes, relative to the largest value of a block.
    bound = {"fp8": 1 / 16, "fp8_rows": 1 / 16, "fp4": 1 / 3, "bf16": 1 / 256}
    for name, tensor in tensors.items():
        kind = released_format(name)
        if kind == "fp32":
            assert torch.equal(checkpoint.vector(name), tensor), name
            continue
        kind = kind if quantized else "bf16"
        value = checkpoint.matrix(name).value() if is_matrix(name) else checkpoint.vector(name)
        assert value.shape == tensor.shape
        assert torch.equal(value.double(), exact_value(stored, name)), name
        if kind == "bf16":
            assert torch.equal(value, tensor.bfloat16().float()), name
        else:
            assert (value - tensor).abs().max() <= bound[kind] * tensor.abs().max(), name


def test_stored_types_are_the_releases(written, config):
    stored = stored_of(written)
    types = {
        "fp8": torch.float8_e4m3fn,
        "fp8_rows": torch.float8_e4m3fn,
        "fp4": torch.int8,
        "bf16": torch.bfloat16,
        "fp32": torch.float32,
    }
    for name in tensor_shapes(config):
        assert stored[name].dtype is types[released_format(name)], name
    scales = {name: tensor for name, tensor in stored.items() if name.endswith(".scale")}
    assert {tensor.dtype for tensor in scales.values()} == {torch.float8_e8m0fnu}
    assert scales["layers.0.attn.wq_b.scale"].shape == (8, 3)
    assert scales["layers.0.ffn.experts.2.w2.scale"].shape == (128, 2)
    # A table has a scale for each 32 channels of a row.
    assert scales["layers.1.engram.embed.scale"].shape == (272, 1)
    assert scales["layers.1.engram.wkv.scale"].shape == (20, 4)
    values = json.loads((written / "config.json").read_text())
    assert values["quantization_config"]["weight_block_size"] == [32, 32]


def test_the_same_types_as_a_foreign_quantised_checkpoint(tmp_path):
    config = V41Config.load(FP8)
    foreign = load_file(FP8 / "model.safetensors")
    checkpoint = keep(FP8, config)
    values = {
        name: checkpoint.matrix(name).value() if is_matrix(name) else checkpoint.vector(name)
        for name in tensor_shapes(config)
    }
    write_release(tmp_path, config, values, quantized=True)
    ours = stored_of(tmp_path)
    assert {n: (t.dtype, t.shape) for n, t in ours.items()} == {
        n: (t.dtype, t.shape) for n, t in foreign.items()
    }
    again = keep(tmp_path, config)
    for name, value in values.items():
        got = again.matrix(name).value() if is_matrix(name) else again.vector(name)
        assert torch.equal(got, value), name


def test_names_of_the_released_shapes():
    config = V41Config.load(VECTORS / "v41_tiny_engram")
    shapes = tensor_shapes(config)
    assert shapes.keys() == load_file(VECTORS / "v41_tiny_engram" / "model.safetensors").keys()
    groups = weight_groups(config)
    assert [*groups] == ["embedding", *(f"layers.{i}" for i in range(8)), "head"]
    assert groups["embedding"] == ["embed.weight"]
    assert groups["head"] == ["norm.weight", "head.weight"]
    assert sorted(name for names in groups.values() for name in names) == sorted(shapes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("norm.weight", None), r"norm.weight: expected \[128\], got nothing"),
        (("norm.weight", torch.ones(5)), r"norm.weight: expected \[128\], got \[5\]"),
        (("bias", torch.ones(5)), r"bias: expected no such tensor, got \[5\]"),
    ],
)
def test_what_is_no_model_is_not_written(tmp_path, config, tensors, change, message):
    name, tensor = change
    wrong = {key: value for key, value in tensors.items() if key != name}
    wrong |= {} if tensor is None else {name: tensor}
    with pytest.raises(WeightsError, match=message):
        write_release(tmp_path, config, wrong, quantized=False)
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_not_whole_blocks_are_not_quantised(tmp_path, config):
    odd = dataclasses.replace(config, moe_intermediate_size=40)
    tensors = {name: torch.ones(shape) for name, shape in tensor_shapes(odd).items()}
    with pytest.raises(WeightsError, match=r"w2.weight: expected rows of whole blocks of 32"):
        write_release(tmp_path, odd, tensors, quantized=True)


def test_a_single_file_takes_the_place_of_shards(tmp_path, config, tensors):
    write_release(tmp_path, config, tensors, quantized=True, shards=2)
    other = tensors | {"norm.weight": tensors["norm.weight"] + 1}
    write_release(tmp_path, config, other, quantized=True)
    expected = other["norm.weight"].bfloat16().float()
    assert torch.equal(keep(tmp_path, config).vector("norm.weight"), expected)


# Kept and dequantised.


@pytest.mark.slow
def test_kept_and_dequantised_weights_have_the_same_bits(written, config):
    kept = keep(written, config)
    held = ReleaseCheckpoint(written, config, weights="dequantize")
    for name, shape in tensor_shapes(config).items():
        if not is_matrix(name):
            assert torch.equal(kept.vector(name), held.vector(name))
            continue
        once = kept.matrix(name).value()
        assert torch.equal(once, kept.matrix(name).value()), name
        assert torch.equal(once, held.matrix(name).value()), name
        for checkpoint in (kept, held):
            turned = checkpoint.matrix(name).transposed()
            assert turned.is_contiguous()
            assert torch.equal(turned.t(), once), name
        index = torch.tensor([shape[0] - 1, 0, 1, shape[0] - 1, shape[0] // 2])
        for checkpoint in (kept, held, keep(written, config)):
            assert torch.equal(checkpoint.matrix(name).rows(index), once[index]), name


def test_dequantised_values_are_held_and_kept_ones_are_not(written, config):
    name = "layers.2.ffn.experts.1.w2.weight"
    held = ReleaseCheckpoint(written, config, weights="dequantize").matrix(name)
    kept = keep(written, config).matrix(name)
    assert held.transposed() is held.transposed()
    assert kept.transposed() is not kept.transposed()


def test_float32_tensors_are_views_of_the_mapped_file(model_dir, config):
    sink = keep(model_dir, config).vector("layers.0.attn.attn_sink")
    again = keep(model_dir, config).vector("layers.0.attn.attn_sink")
    assert sink.dtype is torch.float32
    at = offset_of(model_dir, "layers.0.attn.attn_sink")
    with (model_dir / "model.safetensors").open("r+b") as file:
        file.seek(at)
        file.write(struct.pack("<f", 5.25))
    # A copy would not see what the file says now.
    assert sink[0] == again[0] == 5.25


def offset_of(model_dir, name):
    with (model_dir / "model.safetensors").open("rb") as file:
        (n_bytes,) = struct.unpack("<Q", file.read(8))
        return 8 + n_bytes + json.loads(file.read(n_bytes))[name]["data_offsets"][0]


def test_nothing_of_an_expert_is_read_before_its_first_use(model_dir, config):
    checkpoint = ReleaseCheckpoint(model_dir, config, weights="dequantize")
    w1, w2, w3 = checkpoint.expert(3, 2)
    assert [m.name.split(".")[-2] for m in (w1, w2, w3)] == ["w1", "w2", "w3"]
    assert checkpoint.expert(3, 2)[1] is w2
    at = offset_of(model_dir, w2.name)
    with (model_dir / "model.safetensors").open("r+b") as file:
        file.seek(at)
        file.write(bytes([0x21] * 64))
    first = w2.value()
    assert torch.equal(first.double(), exact_value(stored_of(model_dir), w2.name))
    assert (first[0, 0::2].unique() > 0).all()
    # Held from then on.
    with (model_dir / "model.safetensors").open("r+b") as file:
        file.seek(at)
        file.write(bytes(64))
    assert torch.equal(checkpoint.expert(3, 2)[1].value(), first)
    assert first[0].abs().sum() > 0


@pytest.mark.parametrize("weights", ["keep", "dequantize"])
@pytest.mark.parametrize("name", ["embed.weight", "layers.1.engram.embed.weight"])
def test_rows_hold_no_other_rows(model_dir, config, name, weights):
    table = ReleaseCheckpoint(model_dir, config, weights=weights).matrix(name)
    assert table.rows(torch.tensor([200])).abs().sum() > 0
    # Rows that were not asked for still come from the file, also from one that changes.
    with (model_dir / "model.safetensors").open("r+b") as file:
        file.seek(offset_of(model_dir, name))
        file.write(bytes(256))
    got = table.rows(torch.tensor([0, 200]))
    assert torch.equal(got[0], torch.zeros(len(got[0])))
    assert got[1].abs().sum() > 0


# Faults that others' loaders had.


def test_fp8_bytes_are_not_read_as_numbers(written, config):
    value = keep(written, config).matrix("layers.0.attn.wq_a.weight").value()
    codes = stored_of(written)["layers.0.attn.wq_a.weight"]
    assert value.abs().max() < 10
    assert codes.view(torch.uint8).float().abs().max() > 200


def test_scale_bytes_are_exponents(model_dir, config):
    name = "layers.0.attn.wq_a"
    before = keep(model_dir, config).matrix(name + ".weight").value().clone()
    scale = stored_of(model_dir)[name + ".scale"].view(torch.uint8)
    change(model_dir, **{name + ".scale": (scale + 1).view(torch.float8_e8m0fnu)})
    assert torch.equal(keep(model_dir, config).matrix(name + ".weight").value(), 2 * before)
    # Bytes without a type of their own mean the same.
    change(model_dir, **{name + ".scale": scale - 3})
    assert torch.equal(keep(model_dir, config).matrix(name + ".weight").value(), before / 8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_scale_of_another_type_is_refused(model_dir, config, dtype):
    name = "layers.0.ffn.experts.1.w3.scale"
    change(model_dir, **{name: stored_of(model_dir)[name].view(torch.uint8).to(dtype)})
    assert f"tensor {name}: expected type F8_E8M0, got" in refusal(model_dir, config)


@pytest.mark.parametrize("name", ["layers.3.attn.wkv", "layers.0.ffn.experts.2.w1"])
def test_a_scale_that_is_not_a_number_is_refused_when_it_is_met(model_dir, config, name):
    scale = stored_of(model_dir)[name + ".scale"].view(torch.uint8)
    scale[1, 2] = 255
    change(model_dir, **{name + ".scale": scale.view(torch.float8_e8m0fnu)})
    matrix = keep(model_dir, config).matrix(name + ".weight")
    with pytest.raises(WeightsError, match=f"{name}.weight: a scale is not a number"):
        matrix.value()
    bad_row = 40 if "attn" in name else 1
    with pytest.raises(WeightsError, match="a scale is not a number"):
        matrix.rows(torch.tensor([0, bad_row]))
    assert matrix.rows(torch.tensor([0])).isfinite().all()


def test_sinks_keep_all_bits_of_float32(written, config, tensors):
    name = "layers.5.attn.attn_sink"
    sink = keep(written, config).vector(name)
    assert torch.equal(sink.view(torch.int32), tensors[name].view(torch.int32))
    assert not torch.equal(sink, tensors[name].bfloat16().float())


@pytest.mark.parametrize(
    "name", ["layers.3.attn.wkv", "layers.3.ffn.experts.0.w2", "layers.1.engram.embed"]
)
def test_codes_without_their_scale_are_refused(model_dir, config, name):
    change(model_dir, **{name + ".scale": None})
    message = refusal(model_dir, config)
    assert f"tensor {name}.weight: expected its scale {name}.scale beside" in message
    assert "got none" in message


@pytest.mark.parametrize("suffix", [".weight_scale_inv", ".weight_scale", ".scale_inv"])
def test_other_releases_scale_names_are_refused_with_a_hint(model_dir, config, suffix):
    name = "layers.3.attn.wkv"
    scale = stored_of(model_dir)[name + ".scale"]
    change(model_dir, **{name + ".scale": None, name + suffix: scale})
    message = refusal(model_dir, config)
    assert f"expected its scale {name}.scale beside F8_E4M3 codes" in message
    assert f"got {name}{suffix}: other releases' name" in message


def test_a_scale_beside_plain_weights_is_refused(model_dir, config, tensors):
    name = "layers.3.attn.wkv"
    change(model_dir, **{name + ".weight": tensors[name + ".weight"].bfloat16()})
    assert f"tensor {name}.scale has no place" in refusal(model_dir, config)


# Everything else that does not fit.


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("layers.3.attn.wkv.scale", (2, 3), "expected shape [2, 4], got [2, 3]"),
        ("layers.1.engram.embed.scale", (9, 1), "expected shape [272, 1], got [9, 1]"),
        ("layers.0.ffn.experts.0.w1.scale", (64, 1), "expected shape [64, 4], got [64, 1]"),
    ],
)
def test_a_scale_of_the_wrong_shape_is_refused(model_dir, config, name, shape, expected):
    scale = torch.full(shape, 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    change(model_dir, **{name: scale})
    assert f"tensor {name}: {expected}" in refusal(model_dir, config)


@pytest.mark.parametrize(
    ("name", "tensor", "expected"),
    [
        ("norm.weight", torch.ones(9).bfloat16(), "expected shape [128], got [9]"),
        ("embed.weight", torch.ones(512, 64), "expected shape [512, 128], got [512, 64]"),
        ("layers.0.hc_ffn_fn", torch.ones(24, 128), "expected shape [24, 512], got [24, 128]"),
        (
            "layers.0.ffn.experts.0.w1.weight",
            torch.ones(64, 128, dtype=torch.int8),
            "expected shape [64, 64], got [64, 128]",
        ),
        ("norm.weight", torch.ones(128).half(), "expected type BF16, F32, got F16"),
        (
            "norm.weight",
            torch.ones(128).to(torch.float8_e4m3fn),
            "expected type BF16, F32, got F8_E4M3",
        ),
        (
            "layers.0.attn.wkv.weight",
            torch.ones(64, 128).to(torch.float8_e5m2),
            "expected type BF16, F32, F8_E4M3 or I8, got F8_E5M2",
        ),
    ],
)
def test_a_wrong_shape_or_type_is_refused(model_dir, config, name, tensor, expected):
    change(model_dir, **{name: tensor})
    message = refusal(model_dir, config)
    assert f"tensor {name}: {expected}" in message
    assert "model.safetensors" in message


def test_a_missing_tensor_is_refused(model_dir, config):
    change(model_dir, **{"layers.2.attn.compressor.wgate.weight": None, "head.weight": None})
    message = refusal(model_dir, config)
    assert "tensor layers.2.attn.compressor.wgate.weight is missing and 1 more" in message


def test_converted_names_are_refused_with_a_hint(model_dir, config):
    stored = {f"model.{name}": tensor for name, tensor in stored_of(model_dir).items()}
    save_file(stored, model_dir / "model.safetensors")
    message = refusal(model_dir, config)
    assert "embed.weight is missing" in message
    assert "names begin with model." in message


@pytest.mark.parametrize(
    "name",
    ["layers.8.attn_norm.weight", "layers.0.attn.q_head_norm.weight", "head.bias",
     "layers.9.ffn.gate.bias_vl", "layers.4.attn.compressor.wgate.weight",
     "layers.0.ffn.experts.3.w1.weight", "layers.0.engram.q_weight"],
)  # fmt: skip
def test_unknown_tensors_of_the_text_model_are_refused(model_dir, config, name):
    change(model_dir, **{name: torch.ones(128)})
    message = refusal(model_dir, config)
    assert f"tensor {name} has no place in a model of 8 layers" in message


def test_other_parts_are_skipped_and_said_so(model_dir, config):
    names = ["mtp.0.main_proj.weight", "mtp.2.norm.weight", "vision.patch.weight", "aligner.w1",
             "image_newline", "layers.0.ffn.gate.bias_vl", "layers.7.ffn.gate.bias_vl"]  # fmt: skip
    change(model_dir, **{name: torch.ones(1) for name in names})
    assert keep(model_dir, config).skipped == (
        "aligner.* is skipped: no part of the text model; tensors: 1",
        "ffn.gate.bias_vl is skipped: no part of the text model; tensors: 2",
        "image_newline is skipped: no part of the text model; tensors: 1",
        "mtp.* is skipped: draft layers; tensors: 2",
        "vision.* is skipped: no part of the text model; tensors: 1",
    )


# Files.


def test_a_weight_and_its_scale_may_be_in_two_shards(sharded, config):
    index = sharded / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    weight, scale = "layers.0.attn.wkv.weight", "layers.0.attn.wkv.scale"
    target = next(file for file in places.values() if file != places[weight])
    source = {name: tensor.clone() for name, tensor in load_file(sharded / places[scale]).items()}
    other = {name: tensor.clone() for name, tensor in load_file(sharded / target).items()}
    save_file(other | {scale: source.pop(scale)}, sharded / target)
    save_file(source, sharded / places[scale])
    index.write_text(json.dumps({"weight_map": places | {scale: target}}))
    value = keep(sharded, config).matrix(weight).value()
    assert torch.equal(value.double(), exact_value(stored_of(sharded), weight))


def test_the_index_says_which_shard_a_tensor_is_read_from(sharded, config, tensors):
    first, last = (sharded / f"model-0000{i}-of-00004.safetensors" for i in (1, 4))
    for name, shard in (("embed.weight", last), ("head.weight", first)):
        stored = {key: tensor.clone() for key, tensor in load_file(shard).items()}
        save_file(stored | {name: torch.zeros(512, 128)}, shard)
    checkpoint = keep(sharded, config)
    for name in ("embed.weight", "head.weight"):
        assert torch.equal(checkpoint.matrix(name).value(), tensors[name].bfloat16().float())


def test_a_missing_shard_is_refused(sharded, config):
    (sharded / "model-00003-of-00004.safetensors").unlink()
    message = refusal(sharded, config)
    assert "model-00003-of-00004.safetensors: no such file" in message
    assert "index.json names it for layers." in message
    (sharded / "model-00002-of-00004.safetensors").unlink()
    assert "model-00002-of-00004.safetensors: no such file and 1 more" in refusal(sharded, config)


def test_a_tensor_that_its_shard_lacks_is_refused(sharded, config):
    shard = sharded / "model-00001-of-00004.safetensors"
    stored = load_file(shard)
    del stored["embed.weight"]
    save_file(stored, shard)
    assert f"tensor embed.weight is not in {shard.name}" in refusal(sharded, config)


@pytest.mark.parametrize("n_bytes", [0, 7, 300, -1])
def test_a_cut_shard_is_refused(sharded, config, n_bytes):
    shard = sharded / "model-00002-of-00004.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:n_bytes])
    assert f"{shard}: not a whole safetensors file" in refusal(sharded, config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "expected an object weight_map, got None"),
        ('{"weight_map": {}}', "expected an object weight_map, got {}"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "expected a file name for a, got '../b"),
        ('{"weight_map": {"a": 3}}', "expected a file name for a, got 3"),
        ('{"weight_map": {"a": ""}}', "expected a file name for a, got ''"),
        ('{"weight_map": {"a": "."}}', "expected a file name for a, got '.'"),
        ('{"weight_map": {"a": ".."}}', "expected a file name for a, got '..'"),
        ('{"weight_map": {"a": "b\\u0000"}}', "expected a file name for a, got 'b"),
        ('{"weight_map": {"a": "b\\nc"}}', "expected a file name for a, got 'b"),
        ("[" * 100_000, "cannot be read as JSON: nested too deeply"),
    ],
)
def test_a_bad_index_is_refused(sharded, config, text, message):
    (sharded / "model.safetensors.index.json").write_text(text)
    assert message in refusal(sharded, config)


def test_a_config_of_a_million_experts_is_refused_before_they_are_named(
    model_dir, config, monkeypatch
):
    """2^20 experts are 25 million names in these 8 layers."""
    named = release.named_shapes
    monkeypatch.setattr(release, "named_shapes", lambda of: islice(named(of), 10_000))
    claimed = dataclasses.replace(config, n_routed_experts=2**20)
    message = refusal(model_dir, claimed)
    assert "tensor layers.0.ffn.experts.3.w1.weight is missing and at least 1000 more" in message
    few = dataclasses.replace(config, n_routed_experts=4)
    assert f"missing and {8 * 3 - 1} more" in refusal(model_dir, few)


def test_a_directory_without_weights_is_refused(tmp_path, config):
    message = refusal(tmp_path, config)
    assert "model.safetensors: no such file; expected model.safetensors or" in message


# Digests.


@pytest.mark.slow
def test_a_digest_is_of_contents_scales_included(model_dir, config):
    names = ["layers.0.attn.wkv.weight", "norm.weight"]
    first = keep(model_dir, config)
    digest = first.digest(names)
    assert digest == first.digest(names) == keep(model_dir, config).digest(names)
    assert first.digest(names[:1]) != digest
    other = first.digest(weight_groups(config)["layers.1"])
    change(model_dir, **{"layers.0.attn.wq_a.scale": None, "layers.0.attn.wq_a.weight": torch.ones(
        96, 128)})  # fmt: skip
    assert keep(model_dir, config).digest(names) == digest
    scale = stored_of(model_dir)["layers.0.attn.wkv.scale"].view(torch.uint8)
    scale[0, 0] += 1
    change(model_dir, **{"layers.0.attn.wkv.scale": scale.view(torch.float8_e8m0fnu)})
    changed = keep(model_dir, config)
    assert changed.digest(names) != digest
    assert changed.digest(weight_groups(config)["layers.1"]) == other


def test_digests_of_large_files_are_kept_by_identity(model_dir, config, tmp_path, monkeypatch):
    monkeypatch.setenv("CEDAGENT_HOME", str(tmp_path / "home"))
    names = ["layers.0.attn.wkv.weight"]
    folder = tmp_path / "home" / "cache" / "digests"
    digest = keep(model_dir, config).digest(names)
    assert not folder.exists()
    monkeypatch.setattr(digests, "KEPT_ABOVE", 0)
    assert keep(model_dir, config).digest(names) == digest
    (kept,) = folder.iterdir()
    # What is kept is what is used, until the file is another.
    text = kept.read_text()
    known = json.loads(text)["digests"]
    assert known.keys() == {"layers.0.attn.wkv.weight", "layers.0.attn.wkv.scale"}
    kept.write_text(text.replace(known["layers.0.attn.wkv.scale"], "0" * 64))
    assert keep(model_dir, config).digest(names) != digest
    change(model_dir)
    assert keep(model_dir, config).digest(names) == digest
    kept.write_text("damaged")
    assert keep(model_dir, config).digest(names) == digest


# Sizes.


def test_an_estimate_counts_what_is_held(written, config, tensors):
    size = keep(written, config).estimate()
    stored = stored_of(written)
    assert size.stored == sum(tensor.nbytes for tensor in stored.values())
    tables = ["embed.weight", "layers.1.engram.embed.weight", "layers.3.engram.embed.weight"]
    kept = [name for table in tables for name in (table, table.removesuffix("weight") + "scale")]
    expected = 4 * sum(tensor.numel() for name, tensor in tensors.items() if name not in tables)
    assert size.dequantized == expected + sum(stored[n].nbytes for n in kept if n in stored)


def test_weights_are_chosen_by_what_fits():
    size = WeightBytes(stored=10 * GIB, dequantized=40 * GIB)
    assert choose_weights("auto", size, available=50 * GIB) == ("dequantize", None)
    weights, notice = choose_weights("auto", size, available=50 * GIB - 1)
    assert weights == "keep"
    assert "kept as stored: 10.7 GB, as float32 they would take 42.9 GB" in notice
    assert "this machine has 53.7 GB available; each use dequantizes again" in notice
    weights, notice = choose_weights("auto", size, available=11 * GIB)
    assert weights == "keep"
    assert "larger than that and is read from disk as experts are used" in notice
    assert "\n" not in notice


def test_an_explicit_choice_is_kept_and_commented_on():
    size = WeightBytes(stored=10 * GIB, dequantized=40 * GIB)
    assert choose_weights("keep", size, available=50 * GIB) == ("keep", None)
    weights, notice = choose_weights("keep", size, available=9 * GIB)
    assert weights == "keep"
    assert "read from disk" in notice
    assert choose_weights("dequantize", size, available=60 * GIB) == ("dequantize", None)
    weights, notice = choose_weights("dequantize", size, available=20 * GIB)
    assert weights == "dequantize"
    assert "expect it to run out" in notice


def test_a_checkpoint_says_how_it_holds_its_weights(written, config, monkeypatch):
    from cedagent.model import release

    assert ReleaseCheckpoint(written, config, weights="auto").weights == "dequantize"
    monkeypatch.setattr(release, "available_memory", lambda: 1 << 20)
    checkpoint = ReleaseCheckpoint(written, config, weights="auto")
    assert checkpoint.weights == "keep"
    assert "read from disk" in checkpoint.notices[0]
