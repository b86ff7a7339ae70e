"""Numbers far out of range are refused in one line: no overflow, no hang, no absurd allocation."""

import copy
import dataclasses
import json
from pathlib import Path

import pytest

from cedagent.errors import ConfigError
from cedagent.model.v41_config import V41Config
from cedagent.model.v41_limits import ENGRAM_INTEGERS, FLOATS, INTEGERS

TINY = json.loads(
    (Path(__file__).parents[1] / "vectors" / "v41_tiny_engram" / "config.json").read_text()
)
RELEASED = {
    "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 64, "head_dim": 512, "q_lora_rank": 1280, "qk_rope_head_dim": 64,
    "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128, "max_position_embeddings": 2**20,
    "candidate_topk_blocks": 2048, "candidate_block_size": 8, "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 512, "n_routed_experts": 384, "num_experts_per_tok": 6,
    "moe_intermediate_size": 2304, "hc_mult": 4, "hc_sinkhorn_iters": 20, "replay_windows": 20,
    "rope_scaling.original_max_position_embeddings": 65536, "engram_layer_ids": 14,
    "engram_num_embeddings": 384016682, "engram_max_ngram_size": 4, "engram_n_heads": 8,
    "engram_head_dim": 256, "engram_vocab_size": 16_000_000, "engram_pad_id": 2,
    "engram_compressed_vocab_size": 99092,
}  # fmt: skip
KINDS = {item.name: item.type for item in dataclasses.fields(V41Config)}
NUMBERS = ("int", "float", "tuple[int, ...]")


def changed(name, value):
    values = copy.deepcopy(TINY)
    text = values["text_config"]
    part, _, inner = name.rpartition(".")
    where = text[part] if part else text
    where[inner] = [value, *text[name][1:]] if KINDS.get(name) == "tuple[int, ...]" else value
    return values


def refusal(name, value):
    with pytest.raises(ConfigError, match=name.rpartition(".")[2]) as caught:
        V41Config.from_json(changed(name, value))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize("value", [10**30, 10**400], ids=["10^30", "10^400"])
@pytest.mark.parametrize("name", [n for n, kind in KINDS.items() if kind in NUMBERS])
def test_a_huge_value_of_any_field_is_refused_in_one_line(name, value):
    refusal(name, value)


@pytest.mark.parametrize("name", [*INTEGERS, *ENGRAM_INTEGERS])
def test_an_integer_beyond_its_bound_is_refused_with_the_bound(name):
    _, high = (INTEGERS | ENGRAM_INTEGERS)[name]
    message = refusal(name, high + 1)
    # Ids of layers are bounded by the number of layers, before that.
    assert f"at most {high}, got {high + 1}" in message or "engram_layer_ids" in name


@pytest.mark.parametrize("name", FLOATS)
def test_a_float_out_of_range_is_refused(name):
    above, low, high = FLOATS[name]
    assert f"must be above {above:g}, got" in refusal(name, above)
    assert f"must be {low:g} .. {high:g}, got" in refusal(name, high * 1.01)
    assert f"must be {low:g} .. {high:g}, got" in refusal(name, 1e308)
    if low > above:
        assert f"must be {low:g} .. {high:g}, got" in refusal(name, low / 2)
    for value in (float("inf"), float("nan")):
        refusal(name, value)


@pytest.mark.parametrize("name", [*INTEGERS, *ENGRAM_INTEGERS])
def test_bounds_lie_far_above_the_release(name):
    low, high = (INTEGERS | ENGRAM_INTEGERS)[name]
    assert low <= RELEASED[name]
    assert high >= 4 * RELEASED[name]


def test_every_number_has_a_bound():
    bounded_by_others = {
        "compress_ratios", "kv_source_layer_ids", "index_source_layer_ids",
        "candidate_source_layer_id", "num_key_value_heads", "n_shared_experts", "eos_token_id",
    }  # fmt: skip
    numbers = {name for name, kind in KINDS.items() if kind in NUMBERS}
    assert numbers - {*INTEGERS, *ENGRAM_INTEGERS, *FLOATS} == bounded_by_others
