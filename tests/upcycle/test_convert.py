"""A converted model is its parent for short texts, and a folder appears whole or not at all."""

import errno
import json
import os

import pytest
import torch
from naive_ced import NaiveCed
from plain_llama import plain_logits, random_parent, write_hf_folder
from safetensors.torch import load_file

from cedagent.engine import Engine
from cedagent.errors import CedError, ConfigError, UsageError
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle import convert as convert_module
from cedagent.upcycle.calibration import calibration_documents
from cedagent.upcycle.convert import calibrate, convert
from cedagent.upcycle.parent import layer_rows
from cedagent.upcycle.source import read_parent

pytestmark = pytest.mark.slow

TOKENIZER = build_tiny(384)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    config, tensors = random_parent(layers=5)
    return write_hf_folder(tmp_path_factory.mktemp("parent") / "hf", config, tensors, TOKENIZER)


@pytest.fixture(scope="module")
def converted(source, tmp_path_factory):
    dst = tmp_path_factory.mktemp("made") / "ced"
    return convert(source, dst, n_encoder_layers=2, window=19)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("n_encoder_layers", [1, 3, 5])
def test_texts_up_to_the_window_are_exactly_the_parents(tmp_path, tied, n_encoder_layers):
    config, tensors = random_parent(layers=5, tied=tied)
    source = write_hf_folder(tmp_path / "hf", config, tensors, TOKENIZER)
    dst = convert(source, tmp_path / "ced", n_encoder_layers=n_encoder_layers, window=19)
    ids = TOKENIZER.encode("17% of 2450 is 416.5, said the tool.").ids[:19]
    assert len(ids) == 19
    doubles = {name: tensor.double() for name, tensor in tensors.items()}
    expected = plain_logits(doubles, config, ids)
    assert torch.allclose(NaiveCed(dst).forward(ids), expected, atol=1e-9)
    served = Engine.load(dst, precision="float32").logits(ids)
    assert torch.allclose(served.double(), expected, atol=1e-4)


def test_a_text_longer_than_the_window_differs_in_its_last_row_only(source, converted):
    parent = read_parent(source)
    ids = torch.randint(384, (20,), generator=torch.Generator().manual_seed(3)).tolist()
    config = json.loads((source / "config.json").read_text())
    doubles = {name: tensor.double() for name, tensor in parent.tensors.items()}
    difference = (NaiveCed(converted).forward(ids) - plain_logits(doubles, config, ids)).abs()
    assert difference[:19].max() < 1e-9
    assert difference[19].max() > 1e-4


@pytest.mark.parametrize(
    ("n_encoder_layers", "window", "n_decoder_layers"), [(2, 0, 3), (5, 128, 0)]
)
def test_yoco_and_decoder_only_are_settings(
    source, tmp_path, n_encoder_layers, window, n_decoder_layers
):
    dst = convert(source, tmp_path / "x", n_encoder_layers=n_encoder_layers, window=window)
    config = json.loads((dst / "config.json").read_text())
    assert (config["n_encoder_layers"], config["decoder_window"]) == (n_encoder_layers, window)
    names = load_file(dst / "model.safetensors").keys()
    assert sum("global_k" in name for name in names) == n_decoder_layers
    ids = list(range(3, 43))
    expected = NaiveCed(dst).forward(ids)
    assert torch.allclose(
        Engine.load(dst, precision="float32").logits(ids).double(), expected, atol=1e-4
    )


def test_the_parents_tensors_are_kept_and_the_first_decoder_layer_is_copied(source, converted):
    parent, made = read_parent(source), load_file(converted / "model.safetensors")
    for name, tensor in parent.tensors.items():
        assert torch.equal(made.pop(name), tensor), name
    assert sorted(made) == sorted(
        f"model.layers.{layer}.{part}.weight"
        for layer in (2, 3, 4)
        for part in ("global_norm", "global_k", "global_v")
    )
    for ours, theirs in (
        ("global_norm", "input_layernorm"),
        ("global_k", "self_attn.k_proj"),
        ("global_v", "self_attn.v_proj"),
    ):
        copied = made[f"model.layers.2.{ours}.weight"]
        assert torch.equal(copied, parent.tensors[f"model.layers.2.{theirs}.weight"])
    for layer in (3, 4):
        own = parent.tensors[f"model.layers.{layer}.self_attn.k_proj.weight"]
        assert not torch.equal(made[f"model.layers.{layer}.global_k.weight"], own)


def test_regression_beats_copying_on_text_it_has_not_seen(source, converted):
    parent, made = read_parent(source), load_file(converted / "model.safetensors")
    text = "A letter came on Monday; it asked for 3 copies of page 27, signed and dated. " * 6
    documents = [TOKENIZER.encode(text).ids[:300]]
    rows = list(layer_rows(parent, documents, advanced=lambda n: None))
    e_out = rows[2].x.double()
    for layer in (2, 3, 4):
        prefix = f"model.layers.{layer}."
        norm = parent.tensors[prefix + "input_layernorm.weight"].double()
        x = e_out / (e_out.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm
        for ours, own, target in (("global_k", "k_proj", 1), ("global_v", "v_proj", 2)):
            fitted = x @ made[f"{prefix}{ours}.weight"].double().T
            copied = x @ parent.tensors[f"{prefix}self_attn.{own}.weight"].double().T
            wanted = rows[layer][target].double()
            error, error_copied = ((y - wanted).square().mean() for y in (fitted, copied))
            if layer == 2:
                assert error < 1e-8
            else:
                assert error < 0.8 * error_copied, (layer, ours)


def test_keys_are_taken_before_their_rotation(source):
    parent = read_parent(source)
    ids = list(range(5, 105))
    rows = layer_rows(parent, [ids, ids[:7]], advanced=lambda n: None)
    x, keys, values, _ = next(rows)
    assert torch.equal(x[:100], parent.tensors["model.embed_tokens.weight"][5:105])
    x = x.double()
    norm = parent.tensors["model.layers.0.input_layernorm.weight"].double()
    x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm
    for got, name in ((keys, "k_proj"), (values, "v_proj")):
        weight = parent.tensors[f"model.layers.0.self_attn.{name}.weight"].double()
        assert torch.allclose(got.double(), x @ weight.T, atol=1e-5)


def test_the_same_parent_gives_the_same_weights(source, converted, tmp_path):
    again = convert(source, tmp_path / "again", n_encoder_layers=2, window=19)
    for name in ("model.safetensors", "model-int8.safetensors", "config.json", "tokenizer.json"):
        assert (again / name).read_bytes() == (converted / name).read_bytes()


def test_progress_covers_every_stage(source, tmp_path):
    steps = []
    convert(
        source, tmp_path / "x", n_encoder_layers=2, window=8, progress=lambda *s: steps.append(s)
    )
    assert list(dict.fromkeys(step[0] for step in steps)) == ["read", "calibrate", "write"]
    assert all(0 <= done <= total for _, done, total in steps)
    for stage in ("read", "calibrate", "write"):
        done = [step[1:] for step in steps if step[0] == stage]
        assert done[-1][0] == done[-1][1]


def test_the_origin_says_what_it_was_made_from(source, converted):
    origin = json.loads((converted / "origin.json").read_text())
    assert origin["format"] == "huggingface"
    assert set(origin["sha256"]) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert len(origin["calibration"]["sha256"]) == 64


def test_calibration_text_is_split_cut_and_marked():
    documents = calibration_documents(TOKENIZER, context=700)
    assert len(documents) == 13
    assert all(0 < len(document) <= 700 for document in documents)
    start = TOKENIZER.token_to_id("<|im_start|>")
    assert sum(document[0] == start for document in documents) == 3
    assert max(map(len, calibration_documents(TOKENIZER, context=8192))) == 1024


@pytest.mark.parametrize(
    ("n_encoder_layers", "window", "message"),
    [
        (0, 8, r"n_encoder_layers must be 1 \.\. 5, got 0"),
        (6, 8, r"n_encoder_layers must be 1 \.\. 5, got 6"),
        (-1, 8, r"n_encoder_layers must be 1 \.\. 5, got -1"),
        (2, -1, "decoder_window must not be negative, got -1"),
        (5, -1, "decoder_window must not be negative, got -1"),
    ],
)
def test_sizes_out_of_range_are_refused(source, tmp_path, n_encoder_layers, window, message):
    with pytest.raises(ConfigError, match=message):
        convert(source, tmp_path / "x", n_encoder_layers=n_encoder_layers, window=window)
    assert list(tmp_path.iterdir()) == []


def test_a_window_is_not_larger_than_the_context(tmp_path):
    config, tensors = random_parent(layers=2)
    config["max_position_embeddings"] = 63
    source = write_hf_folder(tmp_path / "hf", config, tensors, TOKENIZER)
    steps, message = [], "a window of 64 tokens: expected at most the checkpoint's context of 63"
    for n_encoder_layers, global_layers in ((1, None), (2, (0,))):
        with pytest.raises(ConfigError, match=message):
            convert(
                source, tmp_path / "x",
                n_encoder_layers=n_encoder_layers, window=64, global_layers=global_layers,
                progress=lambda *s: steps.append(s[0]),
            )  # fmt: skip
    assert set(steps) == {"read"}
    # The baseline has no window; one as large as the context is whole.
    convert(source, tmp_path / "baseline", n_encoder_layers=2, window=64, int8=False)
    convert(source, tmp_path / "whole", n_encoder_layers=1, window=63, int8=False)


def test_an_existing_folder_is_left_alone(source, tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(UsageError, match="exists already: expected a new folder"):
        convert(source, tmp_path / "x", n_encoder_layers=2, window=8)
    assert list((tmp_path / "x").iterdir()) == []


def test_a_tokenizer_that_is_too_large_is_refused(tmp_path):
    config, tensors = random_parent(layers=2, vocab=288)
    source = write_hf_folder(tmp_path / "hf", config, tensors, TOKENIZER)
    with pytest.raises(ConfigError, match="but vocab_size is 288"):
        convert(source, tmp_path / "x", n_encoder_layers=1, window=8)


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left on device"),
                                   KeyboardInterrupt()])  # fmt: skip
def test_nothing_half_written_stays(source, tmp_path, monkeypatch, fault):
    def write_half(folder, config, tensors, *, int8):
        (folder / "config.json").write_text("{}")
        raise fault

    monkeypatch.setattr(convert_module, "write_model", write_half)
    expected = CedError if isinstance(fault, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        convert(source, tmp_path / "x", n_encoder_layers=5, window=8)
    assert list(tmp_path.iterdir()) == []
    if isinstance(fault, OSError):
        assert "No space left on device; nothing was kept" in str(caught.value)


def test_what_cannot_be_written_is_refused_before_the_work(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    steps = []

    def refused(dst, message):
        with pytest.raises(UsageError, match=message) as caught:
            convert(source, dst, n_encoder_layers=2, window=8, progress=lambda *s: steps.append(s))
        assert "\n" not in str(caught.value)

    refused(tmp_path / "file" / "x", r"cannot write \S+file/x: \S+file is no folder; expected")
    refused(tmp_path / "link", "exists already")
    refused(tmp_path / "link" / "x", "link is no folder")
    # For a user who may write everywhere, too.
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    refused(tmp_path / "a" / "x", r"cannot write \S+a/x: \S+ is a folder that this user may not")
    assert steps == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


def test_missing_folders_above_are_made(source, tmp_path):
    dst = tmp_path / "a" / "b" / "x"
    assert convert(source, dst, n_encoder_layers=5, window=8, int8=False) == dst
    assert (dst / "config.json").is_file()


def test_the_baseline_has_no_global_projections(source):
    parent = read_parent(source)
    added, peaks = calibrate(parent, parent.config)
    assert added == {}
    assert sorted(peaks) == [0, 1, 2, 3, 4]


def test_a_float32_baseline_needs_no_calibration(source, tmp_path):
    steps = []
    convert(
        source,
        tmp_path / "x",
        n_encoder_layers=5,
        window=8,
        int8=False,
        progress=lambda *s: steps.append(s),
    )
    assert {step[0] for step in steps} == {"read", "write"}
