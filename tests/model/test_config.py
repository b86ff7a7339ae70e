"""LlamaConfig: what is served is read, what is not is refused by name."""

import dataclasses
import json

import pytest

from cedagent.errors import ConfigError
from cedagent.model.config import load_config
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.tiny import write_tiny


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    path = write_tiny(tmp_path_factory.mktemp("model"), int8=False)
    return json.loads((path / "config.json").read_text())


def test_round_trip(values):
    config = LlamaConfig.from_json(values)
    assert config.as_json() == values


def test_unknown_descriptive_fields_are_ignored(values):
    assert LlamaConfig.from_json(values | {"torch_dtype": "float32", "transformers_version": "5"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "expected model_type ced_llama, got 'llama'"),
        ({"n_encoder_layers": 0}, "n_encoder_layers must be 1 .. 6, got 0"),
        ({"n_encoder_layers": 7}, "n_encoder_layers must be 1 .. 6, got 7"),
        ({"decoder_window": -1}, "decoder_window must not be negative"),
        ({"encoder_global_layers": [2, 0]}, "layers 0 .. 2, in order and each once, got .2, 0."),
        ({"encoder_global_layers": [0, 1, 1]}, "in order and each once, got .0, 1, 1."),
        ({"encoder_global_layers": [1, 3]}, "must be layers 0 .. 2, .* got .1, 3."),
        ({"encoder_global_layers": [-1, 0]}, "must be layers 0 .. 2, .* got .-1, 0."),
        ({"encoder_global_layers": [0, True]}, "encoder_global_layers must be tuple"),
        (
            {"encoder_global_layers": [0, 2], "decoder_window": 0},
            "must list every encoder layer where decoder_window is 0, got .0, 2.",
        ),
        ({"num_key_value_heads": 2}, "must be a multiple of num_key_value_heads"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"replay_windows": 0}, "replay_windows must be at least 1"),
        ({"hidden_size": "48"}, "hidden_size must be int, got '48'"),
        ({"hidden_size": True}, "hidden_size must be int, got True"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be bool"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling = .* is not served"),
        ({"attention_bias": True}, "attention_bias = True is not served"),
        ({"weights_dtype": "fp8"}, "weights_dtype must be float32 or int8"),
    ],
)
def test_what_is_not_served_is_refused_by_name(values, change, message):
    with pytest.raises(ConfigError, match=message):
        LlamaConfig.from_json(values | change)


@pytest.mark.parametrize("name", ["n_encoder_layers", "decoder_window", "head_dim", "vocab_size"])
def test_a_missing_field_is_named(values, name):
    rest = {key: value for key, value in values.items() if key != name}
    with pytest.raises(ConfigError, match=f"missing {name}"):
        LlamaConfig.from_json(rest)


@pytest.mark.parametrize("text", [None, "not json", "[1]"])
def test_an_unreadable_file_is_one_line(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    for load in (LlamaConfig.load, load_config):
        with pytest.raises(ConfigError, match=r"config\.json") as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value)


def test_the_family_reads_its_own_config(tmp_path, values):
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert load_config(tmp_path) == LlamaConfig.load(tmp_path)


@pytest.mark.parametrize("model_type", ["llama", None, ["ced_llama"]])
def test_another_family_is_refused_with_both_names_and_the_way_out(tmp_path, values, model_type):
    (tmp_path / "config.json").write_text(json.dumps(values | {"model_type": model_type}))
    with pytest.raises(ConfigError, match="expected model_type ced_llama or deepseek_v41") as found:
        load_config(tmp_path)
    assert repr(model_type) in str(found.value)
    assert "cedagent model convert" in str(found.value)


@pytest.mark.parametrize(
    ("layers", "windowed"), [([0, 1, 2], ()), ([1], (0, 2)), ([0, 2], (1,)), ([], (0, 1, 2))]
)
def test_any_encoder_layers_may_be_global(values, layers, windowed):
    config = LlamaConfig.from_json(values | {"encoder_global_layers": layers})
    assert config.encoder_global_layers == tuple(layers)
    assert config.encoder_windowed_layers == windowed
    assert config.as_json()["encoder_global_layers"] == layers


def test_row_counts(values):
    config = dataclasses.replace(LlamaConfig.from_json(values), decoder_window=20)
    assert [config.replay_rows(n) for n in (1, 19, 20, 21, 500)] == [1, 19, 20, 20, 20]
    assert config.replay_rows(500, replay_windows=3) == 60
    assert [config.exact_rows(500, layers_left=r) for r in (1, 2, 4)] == [20, 39, 77]
    yoco = dataclasses.replace(config, decoder_window=0)
    assert yoco.replay_rows(500) == 1
    assert yoco.exact_rows(500, layers_left=3) == 1
