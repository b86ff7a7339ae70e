"""Windowed encoder layers: rows run, rows held, bytes stored, and what a stored row depends on."""

import json
import random
import shutil
from pathlib import Path

import pytest
from windowed_runs import (
    GLOBAL,
    WINDOWED,
    alone,
    answer,
    publish,
    slow,
    some_ids,
    with_store,
    write_windowed,
)

from ced_kvstore.record import ALIGN, HEADER_BYTES, Header, Kind
from cedagent.engine.fingerprint import fingerprint
from cedagent.model.cost import read_cost
from cedagent.model.llama.layer import LlamaLayer
from cedagent.model.tiny import write_tiny

W, E, D = 100, 5, 2
FILLED = 112
"""Rows of a replay of W: filled up to a multiple of 16."""
OFTEN = ["native", slow("reference"), slow("float32")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_windowed(tmp_path_factory.mktemp("w100") / "model", window=W)


@pytest.fixture
def ran(monkeypatch):
    """Rows that each layer ran, by layer; read and emptied by a call."""
    found, run = {}, LlamaLayer.run

    def spy(self, x, *args, **options):
        found[id(self)] = found.get(id(self), 0) + len(x)
        return run(self, x, *args, **options)

    monkeypatch.setattr(LlamaLayer, "run", spy)

    def taken(engine):
        layers = [*engine.family.model.encoder._layers, *engine.family.model.decoder._layers]
        rows = [found.get(id(layer), 0) for layer in layers]
        found.clear()
        return rows

    return taken


@pytest.mark.parametrize(
    ("n", "filled"), [(1, 1), (2, 16), (129, FILLED), slow(16, 16), slow(99, FILLED)]
)
def test_a_cold_prefill_runs_whole_tiles_once_and_one_window_of_the_decoder(model, ran, n, filled):
    engine = alone(model)
    _, usage = answer(engine, [], some_ids(n))
    assert ran(engine) == [-(-n // 128) * 128] * E + [filled] * D
    assert (usage.encoded, usage.replayed, usage.padded) == (n, min(n, W), -n % 128)
    assert (usage.rerun, usage.reused_ram, usage.reused_disk, usage.reencoded) == (0, 0, 0, 0)


def test_an_append_runs_its_tokens_and_the_unfinished_tile(model, ran):
    engine = alone(model)
    sequence = engine.sequence()
    sequence.prefill(some_ids(200))
    ran(engine)
    usage = sequence.prefill(some_ids(20, seed=1))
    assert ran(engine) == [128] * E + [FILLED] * D
    assert (usage.encoded, usage.reencoded, usage.rerun) == (92, 72, 0)
    for token in some_ids(7, seed=2):
        sequence.feed(token)
    assert ran(engine) == [7] * (E + D)
    sequence.prefill(some_ids(40, seed=3))
    ran(engine)
    # 267 tokens, all of whole tiles settled already.
    assert sequence.settle() == 0
    assert ran(engine) == [0] * (E + D)
    sequence.close()


def test_a_restart_runs_the_tail_and_without_a_snapshot_the_tiles_of_the_formula(
    model, tmp_path, ran, monkeypatch
):
    ids = some_ids(650)
    publish(model, tmp_path / "kv", ids)
    engine = with_store(model, tmp_path / "kv")
    ran(engine)
    for read, rerun in ((True, 0), (False, 384)):
        if not read:
            monkeypatch.setattr(engine.store, "read_snapshot", lambda block_hash: None)
        _, usage = answer(engine, ids, some_ids(3, seed=1))
        assert ran(engine) == [rerun + 128] * E + [FILLED] * D
        assert (usage.rerun, usage.encoded, usage.reencoded, usage.padded) == (rerun, 13, 10, 115)
        assert (usage.reused_disk, usage.reused_ram) == (640, 0)
    engine.close()


def test_usage_sums_to_the_prompt_in_every_situation(model, tmp_path):
    rng = random.Random(3)
    engine = with_store(model, tmp_path / "kv")
    sequence, known = engine.sequence(), 0
    for n in (1, 126, 1, 50, 0):
        usage = sequence.prefill(some_ids(n, seed=n))
        known += n
        assert usage.reused_ram + usage.reused_disk + usage.encoded == known
        assert usage.reencoded < 128
        assert (usage.rerun, usage.padded) == (0, -known % 128)
        for _ in range(rng.randrange(90)):
            sequence.feed(rng.randrange(300))
        before, known = known, len(sequence.ids)
        assert sequence.settle() == max(0, known // 128 * 128 - before)
    assert not engine.notices
    engine.close()


def held(sequence):
    """First row and capacity of each encoder layer."""
    return [(cache.base, cache.capacity) for cache in sequence._state.encoder]


def test_windowed_layers_hold_their_last_rows_alone(model):
    """However long the text and the output before: the tiles of the last W - 1, and room."""
    sequence = alone(model).sequence()
    sequence.prefill(some_ids(900))
    rows = held(sequence)
    assert [rows[layer][0] for layer in WINDOWED] == [768] * 3
    assert all(rows[layer][1] <= 512 for layer in WINDOWED)
    assert all(rows[layer] == (0, rows[layer][1]) and rows[layer][1] >= 900 for layer in GLOBAL)
    for token in some_ids(400, seed=1):
        sequence.feed(token)
    # The overlay holds what was decoded, until the output settles.
    assert all(held(sequence)[layer][1] > 512 for layer in WINDOWED)
    sequence.settle()
    assert [held(sequence)[layer][0] for layer in WINDOWED] == [1152] * 3
    assert all(held(sequence)[layer][1] <= 640 for layer in WINDOWED)
    # After a re-run, too, with no tile behind it to run.
    fork = sequence.fork(1024)
    assert fork.prefill([]).rerun == 384
    assert [held(fork)[layer][0] for layer in WINDOWED] == [896] * 3
    fork.close()
    sequence.close()


@pytest.mark.parametrize("path", OFTEN)
def test_streams_are_of_global_layers_and_e_out_alone(model, path):
    family = alone(model, path).family
    found = {stream.name: stream.block_bytes for stream in family.streams()}
    head = 16 * 4 if path == "float32" else 16 + 2
    e_out = 48 * (4 if path == "float32" else 2)
    assert found == {"kv.1": 128 * 2 * head, "kv.4": 128 * 2 * head, "e_out": 128 * e_out}
    if path != "float32":
        assert sum(found.values()) == 128 * read_cost(model, n_tokens=1).bytes_per_token


def records(kv):
    """Kind and length of the payload of every record in the store's segments."""
    for segment in sorted((kv / "seg").iterdir()):
        raw, offset = segment.read_bytes(), 0
        while offset < len(raw) and raw[offset : offset + 4] == b"CEDK":
            header = Header.unpack(raw[offset : offset + HEADER_BYTES])
            yield header.kind, header.length
            offset = -(-(offset + HEADER_BYTES + header.length) // ALIGN) * ALIGN


@pytest.mark.parametrize("path", OFTEN)
def test_a_store_takes_what_the_arithmetic_says(model, tmp_path, path):
    publish(model, tmp_path / "kv", some_ids(300), path=path)
    found = list(records(tmp_path / "kv"))
    streams = alone(model, path).family.streams()
    block = 512 + sum(stream.block_bytes for stream in streams)
    assert [length for kind, length in found if kind == Kind.BLOCK] == [block] * 2
    # Three windowed layers; 99 rows of a key and a value head of 16 channels.
    snapshot = 3 * 99 * 2 * (16 * 4 if path == "float32" else 16 + 2)
    assert [length for kind, length in found if kind == Kind.SNAPSHOT] == [snapshot]
    if path != "float32":
        assert snapshot == read_cost(model, n_tokens=1).snapshot_bytes


def test_a_snapshot_is_the_rows_as_they_are_stored(model):
    """By layer: codes of keys and values, then their scales; of a short text, all rows."""
    engine = alone(model)
    for n_tokens, first in ((130, 29), (390, 285)):
        sequence = engine.sequence()
        sequence.prefill(some_ids(n_tokens))
        settled = n_tokens // 128 * 128
        assert first == settled - 99
        position, data = engine.family.windows.snapshot(sequence._state)
        parts = [sequence._state.encoder[i].rows(first, settled) for i in WINDOWED]
        expected = [part.contiguous().numpy().tobytes() for rows in parts for part in rows]
        assert (position, data) == (settled, b"".join(expected))
        sequence.close()
    assert engine.family.windows.snapshot(engine.family.new_state()) is None


def fields_of(folder, change=None):
    """The family's fields of the fingerprint, with some of config.json changed."""
    if change:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return alone(folder).family.fingerprint()


def test_the_window_and_the_global_layers_have_fields(model, tmp_path):
    fields = fields_of(model)
    assert fields["config.encoder_global_layers"] == "(1, 4)"
    assert fields["config.decoder_window"] == "100"
    for n, (change, name) in enumerate((
        ({"decoder_window": 99}, "config.decoder_window"),
        ({"encoder_global_layers": [1, 3]}, "config.encoder_global_layers"),
        ({"replay_windows": 2}, None),
    )):  # fmt: skip
        other = fields_of(shutil.copytree(model, tmp_path / str(n)), change)
        differing = {key for key in fields | other if fields.get(key) != other.get(key)}
        assert differing == ({name} if name else set())


def test_a_miss_names_the_window(model, tmp_path):
    ids = some_ids(300)
    publish(model, tmp_path / "kv", ids)
    folder = shutil.copytree(model, tmp_path / "other")
    fields_of(folder, {"decoder_window": 99})
    engine = with_store(folder, tmp_path / "kv")
    assert engine.store.explain(ids).reason == "fingerprint:config.decoder_window"
    assert answer(engine, ids, [5])[1].reused_disk == 0
    engine.close()


def test_where_every_layer_is_global_the_window_is_the_decoders_alone(tmp_path):
    """No windows, no snapshot, no field: a store of W = 20 serves W = 40."""
    model = write_tiny(tmp_path / "20", window=20, n_layers=4, n_encoder_layers=2)
    family = alone(model).family
    assert family.windows is None
    assert "config.decoder_window" not in fingerprint(family, Path(model))
    assert [stream.name for stream in family.streams()] == ["kv.0", "kv.1", "e_out"]
    ids = some_ids(300)
    publish(model, tmp_path / "kv", ids)
    assert Kind.SNAPSHOT not in {kind for kind, _ in records(tmp_path / "kv")}
    other = shutil.copytree(model, tmp_path / "40")
    fields_of(other, {"decoder_window": 40})
    engine = with_store(other, tmp_path / "kv")
    assert answer(engine, ids, [5])[1].reused_disk == 256
    engine.close()
