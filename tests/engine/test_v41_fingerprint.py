"""V4.1: whatever a stored row depends on has one field, and a miss names it; the rest has none."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from v41_runs import alone, answer, publish, slow, some_ids, with_store, write_small

from ced_kernels.rope import Yarn
from ced_kvstore import Store
from cedagent.engine.fingerprint import fingerprint
from cedagent.engine.v41.family import V41Family
from cedagent.model.release import tensor_shapes
from cedagent.model.v41_config import V41Config

ENGRAM = Path(__file__).parents[1] / "vectors" / "v41_tiny_engram"
IDS = some_ids(300)
E = 4
DECODER_ALONE = {
    "num_hidden_layers", "candidate_source_layer_id", "candidate_topk_blocks",
    "candidate_block_size", "tie_word_embeddings", "replay_windows", "chat_format",
    "eos_token_id", "notices",
}  # fmt: skip
"""Fields of which no encoded row is a function."""
LIMITS = {"num_key_value_heads", "max_position_embeddings"}
"""Fields that can have one value alone, or only refuse."""
TABLES = {"compress_ratios", "kv_source_layer_ids", "index_source_layer_ids"}
"""Fields of which the part up to layer E counts."""
PLAIN = sorted({f.name for f in dataclasses.fields(V41Config)} - DECODER_ALONE - LIMITS - TABLES)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small(tmp_path_factory.mktemp("fingerprint") / "model")


@pytest.fixture(scope="module")
def config(model):
    return V41Config.load(model)


class Altered:
    """A config with some values that no check has seen."""

    def __init__(self, config, **values):
        self._config = config
        vars(self).update(values)

    def __getattr__(self, name):
        return getattr(self._config, name)


def fields_of(config, *, digest=lambda names: "the same", token_map="map"):
    """The family's fields for a config and weights that need not exist."""
    model = SimpleNamespace(
        config=config,
        checkpoint=SimpleNamespace(digest=digest),
        token_map_digest=token_map,
        kernels=SimpleNamespace(name="the kernels"),
    )
    return V41Family(model).fingerprint()


def changed(before, after):
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def other(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, Yarn):
        return dataclasses.replace(value, factor=value.factor * 2)
    if isinstance(value, tuple):
        return (*value[:-1], value[-1] + 1)
    return value + "x" if isinstance(value, str) else value * 2 + 1


@pytest.mark.parametrize("name", PLAIN)
def test_a_config_field_changes_its_own_field_and_no_other(config, name):
    altered = Altered(config, **{name: other(getattr(config, name))})
    assert changed(fields_of(config), fields_of(altered)) == {f"config.{name}"}


@pytest.mark.parametrize("part", ["factor", "beta_fast", "beta_slow", "original_positions"])
def test_every_part_of_the_rope_scaling_counts(config, part):
    yarn = config.rope_scaling
    yarn = dataclasses.replace(yarn, **{part: getattr(yarn, part) + 1})
    found = changed(fields_of(config), fields_of(Altered(config, rope_scaling=yarn)))
    assert found == {"config.rope_scaling"}


@pytest.mark.parametrize("name", sorted(DECODER_ALONE | LIMITS))
def test_what_the_decoder_alone_reads_changes_nothing(config, name):
    value = getattr(config, name)
    altered = Altered(config, **{name: other(value) if value else ("a line",)})
    # Layers after E only, so that their names come and go.
    if name == "num_hidden_layers":
        ratios = (*config.compress_ratios, 1)
        altered = dataclasses.replace(config, num_hidden_layers=value + 1, compress_ratios=ratios)
    assert changed(fields_of(config), fields_of(altered)) == set()


@pytest.mark.parametrize("name", sorted(TABLES))
def test_of_the_layer_tables_the_encoders_part_counts(config, name):
    table = getattr(config, name)
    first = Altered(config, **{name: (table[0] + 1, *table[1:])})
    assert changed(fields_of(config), fields_of(first)) == {f"config.{name}"}
    after = Altered(config, **{name: (*table, E + 2)})
    if name != "kv_source_layer_ids":
        assert changed(fields_of(config), fields_of(after)) == set()


def expected_field(name):
    """Which field a tensor belongs to; None for the decoder's own."""
    if name.startswith("embed."):
        return "weights.embedding"
    if not name.startswith("layers."):
        return None
    layer, tensor = name.split(".", 2)[1:]
    makes_rows = ("attn_norm.", "attn.compressor.", "attn.indexer.wk.", "attn.indexer.k_norm.")
    if int(layer) < E or (int(layer) == E and tensor.startswith(makes_rows)):
        return f"weights.layers.{layer}"
    return None


def test_every_tensor_that_rows_are_made_with_has_the_field_of_its_layer(config):
    names = list(tensor_shapes(config))
    version = dict.fromkeys(names, 0)

    def digest(of):
        return hashlib.sha256(json.dumps([(n, version[n]) for n in of]).encode()).hexdigest()

    before = fields_of(config, digest=digest)
    found = {}
    for name in names:
        version[name] = 1
        found[name] = changed(before, fields_of(config, digest=digest))
        version[name] = 0
    assert found == {n: {expected_field(n)} - {None} for n in names}
    # Layer E gives five tensors of its many: four of the source and the norm before it.
    assert sum(expected_field(n) == "weights.layers.4" for n in names) == 5


def test_the_token_map_has_a_field(config):
    found = changed(fields_of(config), fields_of(config, token_map="another"))
    assert found == {"engram.token_map"}


def test_replay_settings_change_nothing(model):
    engines = [
        alone(model, **options)
        for options in ({}, {"replay_windows": 3}, {"mode": "exact"}, {"mode": "full"})
    ]
    first, *others = [fingerprint(engine.family, model) for engine in engines]
    assert all(fields == first for fields in others)


def test_a_miss_names_whichever_field_differs(model, tmp_path):
    publish(model, tmp_path / "kv", IDS)
    engine = with_store(model, tmp_path / "kv")
    fields, streams = fingerprint(engine.family, model), engine.family.streams()
    assert engine.store.explain(IDS[:256]).reason == "hit"
    for name in fields:
        altered = {**fields, name: "something else"}
        with Store.open(tmp_path / "kv", fingerprint=altered, streams=streams) as store:
            explanation = store.explain(IDS)
            assert store.match(IDS).blocks == 0
        assert explanation.reason == f"fingerprint:{name}"
        assert explanation.ours == "something else"
    engine.close()


def altered_weights(model, dst, name):
    """A copy of a model with one byte of one tensor changed."""
    folder = shutil.copytree(model, dst)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[name].view(-1).view(torch.uint8)[0] ^= 1
    save_file(tensors, path)
    return folder


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("layers.2.ffn.experts.1.w2.weight", "weights.layers.2"),
        slow("layers.3.attn.wkv.scale", "weights.layers.3"),
        slow("layers.4.attn.compressor.wkv.weight", "weights.layers.4"),
        ("layers.4.attn.wkv.weight", None),
        slow("layers.6.ffn.gate.weight", None),
        slow("head.weight", None),
    ],
)
def test_a_changed_weight_is_a_miss_where_rows_depend_on_it(model, tmp_path, name, field):
    publish(model, tmp_path / "kv", IDS)
    folder = altered_weights(model, tmp_path / "altered", name)
    engine = with_store(folder, tmp_path / "kv")
    reason = engine.store.explain(IDS[:256]).reason
    _, usage = answer(engine, IDS, [5])
    assert (reason, usage.reused_disk) == (("hit", 256) if field is None else
                                           (f"fingerprint:{field}", 0))  # fmt: skip
    assert engine.notices == []
    engine.close()


def test_a_changed_config_or_token_map_is_a_miss(tmp_path):
    model = shutil.copytree(ENGRAM, tmp_path / "model")
    publish(model, tmp_path / "kv", IDS)

    def reason_after(file, change):
        folder = shutil.copytree(model, tmp_path / file.split(".")[0])
        values = json.loads((folder / file).read_text())
        change(values)
        (folder / file).write_text(json.dumps(values))
        engine = with_store(folder, tmp_path / "kv")
        reason = engine.store.explain(IDS[:256]).reason
        engine.close()
        return reason

    def swap(token_map):
        token_map[5], token_map[6] = token_map[6], token_map[5]

    def warmer(config):
        config["text_config"]["gate_temp"] = 1.25

    assert reason_after("engram_token_map.json", swap) == "fingerprint:engram.token_map"
    assert reason_after("config.json", warmer) == "fingerprint:config.gate_temp"
