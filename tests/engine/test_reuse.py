"""What a restart, a warm prefix and a damaged store cost: counted, and never another answer."""

import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from ced_kvstore import Store
from cedagent.engine import Engine
from cedagent.errors import ContextLimitError, EngineError, UsageError
from cedagent.model.tiny import write_tiny


def some_ids(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(300), k=n)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def kv(tmp_path):
    return tmp_path / "kv"


def logits_of(engine, ids):
    sequence = engine.sequence()
    usage = sequence.prefill(ids)
    logits = sequence.logits.clone()
    sequence.close()
    return logits, usage


def test_a_resumed_session_encodes_its_tail_and_the_append_alone(model, kv):
    ids = some_ids(3000)
    with_store = Engine.load(model, kv=kv)
    logits_of(with_store, ids)
    with_store.close()
    engine = Engine.load(model, kv=kv)
    sequence = engine.sequence(ids)
    usage = sequence.prefill(some_ids(20, seed=1))
    tail = 3000 % 128
    assert usage.reused_disk == 3000 - tail
    assert usage.reencoded == tail < 128
    assert usage.encoded == tail + 20
    assert usage.rerun == 0
    assert usage.reused_ram + usage.reused_disk + usage.encoded == 3020


def test_usage_sums_to_the_prompt_in_every_situation(model, kv):
    rng = random.Random(3)
    engine = Engine.load(model, kv=kv)
    ids: list[int] = []
    sequence = engine.sequence()
    for n in (1, 126, 1, 1, 127, 300, 0, 5):
        new = rng.choices(range(300), k=n)
        usage = sequence.prefill(new)
        ids += new
        assert usage.reused_ram + usage.reused_disk + usage.encoded == len(ids)
        assert usage.reencoded < 128
        assert usage.padded == -len(ids) % 128
        for _ in range(rng.randrange(140)):
            sequence.feed(rng.randrange(300))
        before = len(ids)
        ids = list(sequence.ids)
        settled = sequence.settle()
        assert settled == max(0, len(ids) // 128 * 128 - before)


def test_a_warm_prefix_leaves_the_partial_block_and_the_users_turn(model, kv):
    system, user = some_ids(700), some_ids(33, seed=2)
    first = Engine.load(model, kv=kv)
    report = first.warm(system, label="warm:test")
    assert (report.encoded, report.reused_disk) == (640, 0)
    again = first.warm(system, label="warm:test")
    assert (again.encoded, again.reused_disk) == (0, 640)
    first.close()
    _, usage = logits_of(Engine.load(model, kv=kv), system + user)
    assert usage.reused_disk == 640
    assert usage.encoded == 60 + 33


def test_a_session_reuses_what_another_open_one_holds(model):
    engine = Engine.load(model)
    ids = some_ids(500)
    first = engine.sequence()
    first.prefill(ids)
    second = engine.sequence()
    usage = second.prefill(ids[:400] + some_ids(100, seed=9))
    assert usage.reused_ram == 384
    first.close()
    third = engine.sequence()
    assert third.prefill(ids).reused_ram == 384
    second.close()
    third.close()
    assert engine.sequence().prefill(ids).reused_ram == 0


@pytest.mark.parametrize("n_shared", [0, 100, 200, 300])
def test_an_open_session_lends_only_the_blocks_that_are_the_same(model, n_shared):
    engine = Engine.load(model)
    first = engine.sequence()
    first.prefill(some_ids(500))
    other = some_ids(500)[:n_shared] + some_ids(500 - n_shared, seed=4)
    second = engine.sequence()
    usage = second.prefill(other)
    assert usage.reused_ram == n_shared // 128 * 128
    assert torch.equal(second.logits, logits_of(Engine.load(model), other)[0])


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["flip", "truncate", "index", "zeros"])
def test_a_damaged_store_never_changes_the_answer(model, kv, damage):
    ids = some_ids(700)
    expected, _ = logits_of(Engine.load(model), ids)
    writer = Engine.load(model, kv=kv)
    logits_of(writer, ids)
    writer.close()
    segment = max(kv.glob("seg/*"), key=lambda path: path.stat().st_size)
    size = segment.stat().st_size
    if damage == "flip":
        flip(segment, size // 2)
    elif damage == "truncate":
        with segment.open("r+b") as file:
            file.truncate(size * 2 // 3)
    elif damage == "index":
        shutil.rmtree(kv / "index")
    else:
        with segment.open("r+b") as file:
            file.seek(size // 2 // 4096 * 4096)
            file.write(bytes(8192))
    engine = Engine.load(model, kv=kv)
    got, usage = logits_of(engine, ids)
    assert torch.equal(got, expected)
    assert usage.reused_disk == (640 if damage == "index" else usage.reused_disk)
    assert usage.reused_disk + usage.encoded == 700
    if damage != "index":
        assert 0 < usage.reused_disk < 640
        (notice,) = engine.notices
        assert f"from token {usage.reused_disk:,} on are damaged" in notice
    engine.close()
    # What was bad has been written again, and is whole.
    assert logits_of(Engine.load(model, kv=kv), ids)[1].reused_disk == 640


def test_what_another_process_drops_before_it_is_read_is_not_called_damaged(model, kv, monkeypatch):
    ids = some_ids(700)
    expected, _ = logits_of(Engine.load(model), ids)
    writer = Engine.load(model, kv=kv)
    logits_of(writer, ids)
    writer.close()
    engine = Engine.load(model, kv=kv)
    plain = Store.match

    def match_then_lose(store, ids):
        found = plain(store, ids)
        store.remove("prefill")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Store, "match", match_then_lose)
        got, usage = logits_of(engine, ids)
    assert torch.equal(got, expected)
    assert usage.reused_disk == 0
    assert list(engine.notices) == []
    engine.close()


def test_a_changed_weight_is_a_miss_that_names_the_tensor_group(model, kv, tmp_path):
    ids = some_ids(300)
    writer = Engine.load(model, kv=kv)
    logits_of(writer, ids)
    writer.close()
    changed = shutil.copytree(model, tmp_path / "changed")
    path = changed / "model-int8.safetensors"
    tensors = load_file(path)
    tensors["model.layers.2.self_attn.k_proj.weight_scale"][0] *= 1.5
    save_file(tensors, path)
    engine = Engine.load(changed, kv=kv)
    explanation = engine.store.explain(ids)
    _, usage = logits_of(engine, ids)
    engine.close()
    assert explanation.reason == "fingerprint:weights.layers.2"
    assert usage.reused_disk == 0


def test_decoder_weights_do_not_matter_to_stored_rows(model, kv, tmp_path):
    ids = some_ids(300)
    writer = Engine.load(model, kv=kv)
    logits_of(writer, ids)
    writer.close()
    healed = shutil.copytree(model, tmp_path / "healed")
    path = healed / "model-int8.safetensors"
    tensors = load_file(path)
    tensors["model.layers.5.global_k.weight_scale"] *= 2
    save_file(tensors, path)
    _, usage = logits_of(Engine.load(healed, kv=kv), ids)
    assert usage.reused_disk == 256


def test_replay_settings_share_the_store_and_the_mode_is_never_a_matter_of_hits(model, kv):
    ids = some_ids(300)
    writer = Engine.load(model, kv=kv, replay_windows=2)
    expected, _ = logits_of(writer, ids)
    writer.close()
    got, usage = logits_of(Engine.load(model, kv=kv, replay_windows=2), ids)
    assert usage.reused_disk == 256
    assert usage.replayed == 256
    assert torch.equal(got, expected)


def test_a_cancel_stops_within_a_tile_and_keeps_whole_tiles(model, kv):
    ids = some_ids(900)
    engine = Engine.load(model, kv=kv)
    sequence = engine.sequence()
    polls = iter([False, False, False, True])
    usage = sequence.prefill(ids, cancelled=lambda: next(polls))
    assert usage.cancelled
    assert usage.encoded == 3 * 128
    with pytest.raises(EngineError, match="no logits"):
        _ = sequence.logits
    assert sequence.settle() == 0
    usage = sequence.prefill([7])
    assert usage.reused_ram == 3 * 128
    assert usage.reencoded < 128
    assert torch.equal(sequence.logits, logits_of(Engine.load(model), [*ids, 7])[0])


def test_progress_runs_from_the_reused_part_to_the_end(model, kv):
    engine = Engine.load(model, kv=kv)
    logits_of(engine, some_ids(300))
    seen = []
    engine.sequence().prefill(some_ids(300), progress=lambda *call: seen.append(call))
    assert seen[0] == (256, 300, 256)
    assert seen[-1] == (300, 300, 256)


def test_the_context_limit_is_checked_before_anything_is_appended(tmp_path):
    engine = Engine.load(write_tiny(tmp_path, max_position_embeddings=200))
    sequence = engine.sequence()
    sequence.prefill(some_ids(150))
    with pytest.raises(ContextLimitError, match="201 tokens do not fit the context of 200"):
        sequence.prefill(some_ids(51))
    assert len(sequence.ids) == 150
    with pytest.raises(ContextLimitError, match="201 tokens do not fit"):
        engine.logits(some_ids(201))
    with pytest.raises(ContextLimitError, match="400 tokens do not fit"):
        engine.warm(some_ids(400))
    sequence.prefill(some_ids(49))
    sequence.feed(3)
    with pytest.raises(ContextLimitError, match="is full"):
        sequence.feed(3)
    assert len(sequence.ids) == 200


def test_bad_ids_and_bad_settings_are_one_line(model):
    engine = Engine.load(model)
    with pytest.raises(UsageError, match=r"token id must be an int 0 \.\. 383, got 384"):
        engine.sequence().prefill([384])
    with pytest.raises(EngineError, match="nothing to prefill"):
        engine.sequence().prefill([])
    with pytest.raises(UsageError, match="at least one token"):
        engine.logits([])
    with pytest.raises(UsageError, match=r"must be an int 0 \.\. 383, got 5\.5"):
        engine.logits([5.5])
    with pytest.raises(UsageError, match="kv must name a folder"):
        Engine.load(model, kv="")
    with pytest.raises(UsageError, match="max_kv_bytes must not be negative"):
        Engine.load(model, kv="kv", max_kv_bytes=-1)
    with pytest.raises(UsageError, match="mode must be"):
        Engine.load(model, mode="approximate")
    with pytest.raises(UsageError, match="precision must be"):
        Engine.load(model, precision="bf16")


def test_a_store_that_has_no_room_says_so_once(model, kv):
    engine = Engine.load(model, kv=kv, max_kv_bytes=300_000)
    logits_of(engine, some_ids(2000))
    assert len(engine.notices) == 1
    assert "not everything is stored: the byte budget is full" in engine.notices[0]
    expected, _ = logits_of(Engine.load(model), some_ids(2000))
    assert torch.equal(logits_of(engine, some_ids(2000))[0], expected)
    assert len(engine.notices) == 1


def test_float32_and_int8_never_share_rows(model, kv):
    ids = some_ids(300)
    writer = Engine.load(model, kv=kv, precision="float32")
    expected, _ = logits_of(writer, ids)
    writer.close()
    engine = Engine.load(model, kv=kv)
    assert logits_of(engine, ids)[1].reused_disk == 0
    engine.close()
    got, usage = logits_of(Engine.load(model, kv=kv, precision="float32"), ids)
    assert usage.reused_disk == 256
    assert torch.equal(got, expected)


def test_bytes_per_token_are_what_the_streams_declare(model, kv):
    engine = Engine.load(model, kv=kv)
    logits_of(engine, some_ids(256))
    config = json.loads((model / "config.json").read_text())
    per_head = config["head_dim"] + 2
    kv_bytes = 2 * config["num_key_value_heads"] * per_head * config["n_encoder_layers"]
    expected = kv_bytes + 2 * config["hidden_size"]
    declared = sum(stream.block_bytes for stream in engine.store.streams) / 128
    assert declared == expected
