"""Conversion with windowed encoder layers: the parent up to W, and fitted to what it will see."""

import json
from dataclasses import replace

import pytest
import torch
from naive_ced import NaiveCed
from plain_llama import plain_logits, random_parent, write_hf_folder
from safetensors.torch import load_file

from cedagent.engine import Engine
from cedagent.errors import ConfigError
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle import convert as convert_module
from cedagent.upcycle.convert import calibrate, convert
from cedagent.upcycle.parent import layer_rows
from cedagent.upcycle.source import read_parent

TOKENIZER = build_tiny(384)
W = 19


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    config, tensors = random_parent(layers=6)
    return write_hf_folder(tmp_path_factory.mktemp("parent") / "hf", config, tensors, TOKENIZER)


@pytest.fixture(scope="module")
def converted(source, tmp_path_factory):
    dst = tmp_path_factory.mktemp("made") / "ced"
    return convert(source, dst, n_encoder_layers=4, window=W, global_layers=[3, 1])


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """The same with every encoder layer global."""
    return convert(source, tmp_path_factory.mktemp("whole") / "ced", n_encoder_layers=4, window=W)


def plain(source, ids):
    config = json.loads((source / "config.json").read_text())
    doubles = {name: t.double() for name, t in read_parent(source).tensors.items()}
    return plain_logits(doubles, config, ids)


def test_the_layers_are_in_the_config_in_order(converted):
    config = json.loads((converted / "config.json").read_text())
    assert config["encoder_global_layers"] == [1, 3]
    assert Engine.load(converted).family.windows is not None


def test_texts_up_to_the_window_are_exactly_the_parents(source, converted):
    ids = TOKENIZER.encode("17% of 2450 is 416.5, said the tool.").ids[: W + 1]
    assert len(ids) == W + 1
    expected = plain(source, ids)
    oracle = NaiveCed(converted).forward(ids)
    assert torch.allclose(oracle[:W], expected[:W], atol=1e-9)
    assert (oracle[W] - expected[W]).abs().max() > 1e-4
    served = Engine.load(converted, precision="float32").logits(ids)
    assert torch.allclose(served.double(), oracle, atol=1e-4)


@pytest.mark.slow
def test_no_list_and_the_whole_list_are_the_same_model(source, whole, tmp_path):
    listed = convert(source, tmp_path / "x", n_encoder_layers=4, window=W, global_layers=range(4))
    for name in ("model.safetensors", "model-int8.safetensors", "config.json"):
        assert (listed / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_the_first_decoder_layer_is_copied_and_the_others_are_fitted_to_other_rows(
    source, converted, whole
):
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (converted, whole))
    parent = read_parent(source).tensors
    assert torch.equal(
        ours["model.layers.4.global_k.weight"], parent["model.layers.4.self_attn.k_proj.weight"]
    )
    differing = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    assert differing == {f"model.layers.5.global_{part}.weight" for part in "kv"}


def oracle_e_out(model, ids):
    """The encoder's output in float64, from the oracle."""
    oracle = NaiveCed(model)
    oracle.config = oracle.config | {"num_hidden_layers": 4}
    norm, found = oracle.norm, []

    def last_norm(x, name):
        if name == "model.norm.weight":
            found.append(x)
        return norm(x, name)

    oracle.norm = last_norm
    oracle.forward(ids)
    return found[0]


def test_calibration_runs_the_windows_that_the_model_will_have(source, converted):
    parent = read_parent(source)
    ids = torch.randint(384, (150,), generator=torch.Generator().manual_seed(3)).tolist()
    seen, unseen = (
        list(layer_rows(parent, [ids], advanced=lambda n: None, windowed=windowed, window=W))
        for windowed in ((0, 2), ())
    )
    expected = oracle_e_out(converted, ids)
    torch.testing.assert_close(seen[4].x.double(), expected, atol=1e-4, rtol=1e-4)
    assert (unseen[4].x.double() - expected).abs().max() > 1e-2
    # Layer 0 makes its keys before any window is felt; those above do not.
    assert torch.equal(seen[0].keys, unseen[0].keys)
    assert torch.equal(seen[1].x[:W], unseen[1].x[:W])
    assert not torch.equal(seen[1].keys, unseen[1].keys)


@pytest.mark.slow
def test_the_fit_is_better_than_one_for_an_encoder_that_sees_all(source, converted, whole):
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (converted, whole))
    parent = read_parent(source)
    text = "A letter came on Monday; it asked for 3 copies of page 27, signed and dated. " * 6
    rows = list(
        layer_rows(
            parent,
            [TOKENIZER.encode(text).ids[:300]],
            advanced=lambda n: None,
            windowed=(0, 2),
            window=W,
        )
    )
    e_out = rows[4].x.double()
    norm = ours["model.layers.5.global_norm.weight"].double()
    x = e_out / (e_out.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm
    for name, wanted in (("global_k", rows[5].keys), ("global_v", rows[5].values)):
        error, error_whole = (
            (x @ made[f"model.layers.5.{name}.weight"].double().T - wanted.double()).square().mean()
            for made in (ours, theirs)
        )
        assert error < error_whole, name


def test_channel_peaks_are_of_the_windowed_encoder(source, monkeypatch):
    short = [list(range(3, 103))]
    monkeypatch.setattr(convert_module, "calibration_documents", lambda *args, **options: short)
    parent = read_parent(source)
    windowed = replace(
        parent.config, n_encoder_layers=4, encoder_global_layers=(1, 3), decoder_window=W
    )
    seeing_all = replace(windowed, encoder_global_layers=(0, 1, 2, 3))
    (_, ours), (_, theirs) = calibrate(parent, windowed), calibrate(parent, seeing_all)
    assert torch.equal(ours[0]["qkv"], theirs[0]["qkv"])
    for layer, name in ((0, "output"), (3, "down"), (5, "global")):
        assert not torch.equal(ours[layer][name], theirs[layer][name])


@pytest.mark.parametrize(
    ("layers", "window", "message"),
    [
        ((1, 4), W, r"layers 0 \.\. 3, in order and each once, got \[1, 4\]"),
        ((1, 1), W, r"each once, got \[1, 1\]"),
        ((-1,), W, r"layers 0 \.\. 3"),
        ((1, 3), 0, "must list every encoder layer where decoder_window is 0"),
    ],
)
def test_impossible_layers_are_refused_and_leave_nothing(source, tmp_path, layers, window, message):
    with pytest.raises(ConfigError, match=message):
        convert(source, tmp_path / "x", n_encoder_layers=4, window=window, global_layers=layers)
    assert list(tmp_path.iterdir()) == []
