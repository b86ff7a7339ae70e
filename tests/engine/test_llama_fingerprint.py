"""ced_llama, and what every family has: whatever a stored row depends on has one field, and a miss
names it; the rest has none."""

import dataclasses
import hashlib
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from windowed_runs import alone, publish, some_ids, with_store, write_windowed

from ced_kvstore import Store
from cedagent.engine import fingerprint as common
from cedagent.engine.llama.family import LlamaFamily
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import tensor_shapes

IDS = some_ids(300)
E = 5
DECODER_ALONE = {
    "num_hidden_layers", "max_position_embeddings", "tie_word_embeddings", "replay_windows",
    "weights_dtype", "chat_format", "eos_token_id",
}  # fmt: skip
"""Fields of which no encoded row is a function; the type of the weights in use has its own."""
FIELDS = {f.name for f in dataclasses.fields(LlamaConfig)} - {"model_type"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_windowed(tmp_path_factory.mktemp("fingerprint") / "model", window=100)


@pytest.fixture(scope="module")
def config(model):
    return LlamaConfig.load(model)


def fields_of(config, *, digest=lambda names: "the same", precision="int8", **model):
    """The family's fields for a config and weights that need not exist."""
    parts = {"e_out_dtype": torch.bfloat16, "kernels": SimpleNamespace(name="the kernels"), **model}
    made = SimpleNamespace(
        config=config, precision=precision, checkpoint=SimpleNamespace(digest=digest), **parts
    )
    family = LlamaFamily.__new__(LlamaFamily)
    family.model = made
    return family.fingerprint()


def altered(config, **values):
    """A config with some values that no check has seen."""
    named = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    windowed = config.encoder_windowed_layers
    return SimpleNamespace(**{**named, "encoder_windowed_layers": windowed, **values})


def changed(before, after):
    return {name for name in before | after if before.get(name) != after.get(name)}


def other(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (*value[:-1], value[-1] - 1)
    return value + "x" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("name", sorted(FIELDS - DECODER_ALONE))
def test_a_config_field_changes_its_own_field_and_no_other(config, name):
    # Fewer encoder layers have fewer fields of weights; their number has its own all the same.
    values = {name: other(getattr(config, name))}
    found = changed(fields_of(config), fields_of(altered(config, **values)))
    assert {field for field in found if not field.startswith("weights.")} == {f"config.{name}"}
    assert name == "n_encoder_layers" or len(found) == 1


def test_floats_count_to_the_last_bit(config):
    for name in ("rms_norm_eps", "rope_theta"):
        value = getattr(config, name)
        nearest = altered(config, **{name: math.nextafter(value, math.inf)})
        assert changed(fields_of(config), fields_of(nearest)) == {f"config.{name}"}


@pytest.mark.parametrize("name", sorted(DECODER_ALONE))
def test_what_the_decoder_alone_reads_changes_nothing(config, name):
    values = {name: other(getattr(config, name))}
    assert changed(fields_of(config), fields_of(altered(config, **values))) == set()


def test_every_tensor_that_rows_are_made_with_has_the_field_of_its_layer(config):
    names = list(tensor_shapes(config, "int8"))
    version = dict.fromkeys(names, 0)

    def digest(of):
        return hashlib.sha256(json.dumps([(n, version[n]) for n in of]).encode()).hexdigest()

    def expected(name):
        if name == "model.embed_tokens.weight":
            return {"weights.embedding"}
        parts = name.split(".")
        is_encoder = parts[1] == "layers" and int(parts[2]) < E
        return {f"weights.layers.{parts[2]}"} if is_encoder else set()

    before = fields_of(config, digest=digest)
    for name in names:
        version[name] = 1
        assert changed(before, fields_of(config, digest=digest)) == expected(name)
        version[name] = 0


def test_types_and_arithmetic_have_fields(config):
    before = fields_of(config)
    floats = fields_of(config, e_out_dtype=torch.float32)
    assert changed(before, floats) == {"streams.e_out"}
    kernels = fields_of(config, kernels=SimpleNamespace(name="others"))
    assert changed(before, kernels) == {"ops.kernels"}
    precision = fields_of(config, precision="float32")
    assert changed(before, precision) == {"weights.dtype", "streams.kv", "ops.product"}


def test_library_processor_and_tokenizer_have_fields(model, monkeypatch):
    family = alone(model).family
    before = common.fingerprint(family, model)
    for owner, name, field in (
        (torch, "__version__", "torch"),
        (torch.backends.cpu, "get_cpu_capability", "cpu.capability"),
        (common, "cpu_family", "cpu.family"),
        (common, "tokenizer_digest", "tokenizer"),
    ):
        with monkeypatch.context() as patch:
            value = "another" if name == "__version__" else lambda *args: "another"
            patch.setattr(owner, name, value)
            assert changed(before, common.fingerprint(family, model)) == {field}


def test_another_tokenizer_has_another_digest(model, tmp_path):
    text = (model / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(text + b" ")
    assert common.tokenizer_digest(tmp_path) != common.tokenizer_digest(model)
    assert common.tokenizer_digest(Path("/nowhere")) is None


def test_a_miss_names_whichever_field_differs(model, tmp_path):
    publish(model, tmp_path / "kv", IDS)
    engine = with_store(model, tmp_path / "kv")
    fields, streams = common.fingerprint(engine.family, model), engine.family.streams()
    assert engine.store.explain(IDS[:256]).reason == "hit"
    for name in fields:
        for value in ("something else", None):
            others = {**fields, name: value}
            with Store.open(tmp_path / "kv", fingerprint=others, streams=streams) as store:
                assert store.match(IDS).reason == f"fingerprint:{name}"
                told = store.explain(IDS)
            assert (told.reason, told.blocks) == (f"fingerprint:{name}", 0)
            assert (told.stored, told.ours) == (fields[name], value)
    engine.close()
