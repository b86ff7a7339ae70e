"""Engram: every hash id of independent vectors, in any split, and the gated memory itself."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from ced_kernels.ordered.kernel_set import OrderedReference
from cedagent.errors import ConfigError
from cedagent.model.engram import Engram, NgramHash, hash_ids, multipliers, primes
from cedagent.model.engram_map import load_token_map
from cedagent.model.release import ReleaseCheckpoint
from cedagent.model.v41_config import V41Config

VECTORS = Path(__file__).parents[1] / "vectors"
CASES = json.loads((VECTORS / "engram" / "vectors.json").read_text())["cases"]
TINY = VECTORS / "v41_tiny_engram"

RELEASE = {
    "vocab_size": 129280, "engram_layer_ids": [1, 14], "engram_max_ngram_size": 4,
    "engram_n_heads": 8, "engram_vocab_size": 16_000_000, "engram_pad_id": 2,
    "engram_compressed_vocab_size": 99092, "engram_num_embeddings": [384_006_168, 384_016_682],
}  # fmt: skip
SMALL = {
    "vocab_size": 9, "engram_layer_ids": [0, 3], "engram_max_ngram_size": 4, "engram_n_heads": 3,
    "engram_vocab_size": 40, "engram_pad_id": 2, "engram_compressed_vocab_size": 5,
}  # fmt: skip
SMALL_MAP = [0, 1, 2, 3, 4, 1, 0, 3, 4]


def naive(config: dict[str, Any], token_map: list[int], ids: list[int], dead: set[int]) -> Any:
    """Hash ids by the rule, one position at a time, in Python's unbounded integers."""
    found = []
    sizes = primes(config)
    for t in range(len(ids)):
        layers = []
        for index, layer in enumerate(config["engram_layer_ids"]):
            words, alive = [], True
            for back in range(config["engram_max_ngram_size"]):
                alive = alive and t - back >= 0 and t - back not in dead
                words.append(token_map[ids[t - back] if alive else config["engram_pad_id"]])
            columns, offset = [], 0
            for order, heads in enumerate(sizes[index]):
                rolling = 0
                for word, factor in zip(
                    words[: order + 2], multipliers(config, layer), strict=False
                ):
                    assert word * factor < 2**63
                    rolling ^= word * factor
                for prime in heads:
                    columns.append(rolling % prime + offset)
                    offset += prime
            layers.append(columns)
        found.append(layers)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{len(case['input_ids'])} ids")
def test_every_hash_id_is_that_of_another_implementation(case: dict[str, Any]) -> None:
    config, ids = case["config"], case["input_ids"]
    assert primes(config) == case["primes"]
    found = hash_ids(config, case["token_map"], ids)
    assert found.dtype is torch.int64
    assert found.tolist() == case["hash_ids"]
    for dead in (case["dead_positions"], set(case["dead_positions"])):
        assert hash_ids(config, case["token_map"], ids, dead).tolist() == case["hash_ids_with_dead"]
    assert case["hash_ids_with_dead"] != case["hash_ids"]


def test_a_config_and_its_json_mapping_hash_alike() -> None:
    config = V41Config.load(TINY)
    mapping = json.loads((TINY / "config.json").read_text())["text_config"]
    token_map = load_token_map(TINY, config)
    ids = load_file(TINY / "expected.safetensors")["input_ids"].tolist()
    found = hash_ids(config, token_map, ids)
    assert torch.equal(found, hash_ids(mapping, token_map, ids))
    assert found.tolist() == naive(mapping, token_map, ids, set())


def test_the_released_tables_are_filled_to_the_last_row() -> None:
    """The release's row counts are sums of 24 primes each; no prime is used twice."""
    sizes = primes(RELEASE)
    assert [sum(map(sum, orders)) for orders in sizes] == RELEASE["engram_num_embeddings"]
    flat = [prime for orders in sizes for heads in orders for prime in heads]
    assert len(set(flat)) == len(flat) == 48


def test_table_sizes_are_the_primes_from_the_vocabulary_on() -> None:
    config = {**SMALL, "engram_vocab_size": 5, "engram_n_heads": 2, "engram_max_ngram_size": 3}
    assert primes(config) == [[[5, 7], [11, 13]], [[17, 19], [23, 29]]]
    config["engram_vocab_size"] = 2
    assert primes(config)[0] == [[2, 3], [5, 7]]


def test_released_hashes_are_exact() -> None:
    """Products come close to 2^63; Python's integers say what they are."""
    chosen = random.Random(0)
    token_map = [min(i, 99091) for i in range(129280)]
    ids = [129279] * 5 + [chosen.randrange(129280) for _ in range(40)] + [99091, 2, 99090]
    found = hash_ids(RELEASE, token_map, ids)
    assert found.tolist() == naive(RELEASE, token_map, ids, set())
    assert 99091 * max(max(multipliers(RELEASE, layer)) for layer in (1, 14)) > 2**61


def test_int64_hash_multipliers_survive_json() -> None:
    """With few classes they exceed 2^53: a reader that makes floats of them changes every hash."""
    drawn = [factor for layer in (0, 3) for factor in multipliers(SMALL, layer)]
    assert all(type(factor) is int and factor % 2 == 1 and factor < 2**63 // 5 for factor in drawn)
    assert max(drawn) > 2**53
    assert json.loads(json.dumps(drawn)) == drawn
    assert [int(float(factor)) for factor in drawn] != drawn
    ids = [8, 4, 8, 4, 4, 8, 7, 3]
    through_json = json.loads(json.dumps(SMALL))
    exact = hash_ids(through_json, SMALL_MAP, ids).tolist()
    assert exact == naive(SMALL, SMALL_MAP, ids, set())


ID = st.integers(0, 8)


@settings(max_examples=60, deadline=None)
@given(
    ids=st.lists(ID, max_size=24),
    dead=st.sets(st.integers(0, 24), max_size=4),
    cuts=st.lists(st.integers(0, 24), max_size=5),
    n_gram=st.integers(2, 5),
)
def test_any_split_hashes_as_one_shot(
    ids: list[int], dead: set[int], cuts: list[int], n_gram: int
) -> None:
    config = {**SMALL, "engram_max_ngram_size": n_gram}
    hashes = NgramHash(config, SMALL_MAP)
    whole = hashes.of(ids, 0, len(ids), dead=dead)
    assert whole.shape == (len(ids), 2, 3 * (n_gram - 1))
    assert whole.tolist() == naive(config, SMALL_MAP, ids, dead)
    edges = [0, *sorted(cut for cut in cuts if cut <= len(ids)), len(ids)]
    for start, stop in itertools.pairwise(edges):
        # What comes after `stop` is not there yet when a token is decoded.
        part = hashes.of(ids[:stop], start, stop, dead={d for d in dead if d < stop})
        assert torch.equal(part, whole[start:stop])
    if ids:
        decoded = hashes.of(ids, len(ids) - 1, len(ids), dead=dead)
        assert torch.equal(decoded, whole[-1:])


def test_look_back_crosses_a_tile_boundary() -> None:
    """Position 128 is a 4-gram of 125 .. 128, whatever tile or append its ids came in."""
    chosen = random.Random(1)
    token_map = [i % 97 for i in range(200)]
    config = {**RELEASE, "vocab_size": 200, "engram_compressed_vocab_size": 97}
    hashes = NgramHash(config, token_map)
    ids = [chosen.randrange(97) for _ in range(130)]
    first = hashes.of(ids, 128, 129)
    for position in range(129):
        changed = [*ids[:position], (ids[position] + 1) % 97, *ids[position + 1 :]]
        same = torch.equal(hashes.of(changed, 128, 129), first)
        assert same == (position < 125), position
    alone = hashes.of(ids[128:], 0, 1)
    assert not torch.equal(alone, first)


def test_nothing_is_looked_back_at_beyond_a_dead_position() -> None:
    hashes = NgramHash(SMALL, SMALL_MAP)
    ids = [8, 3, 1, 7, 4, 0, 3]
    cut = hashes.of(ids, 0, 7, dead=[3])
    assert torch.equal(cut[:3], hashes.of(ids, 0, 3))
    assert torch.equal(cut[4:], hashes.of(ids[4:], 0, 3))
    assert torch.equal(cut[3:4], hashes.of([2], 0, 1))


def test_ids_of_one_class_hash_alike() -> None:
    hashes = NgramHash(SMALL, SMALL_MAP)
    assert torch.equal(hashes.of([1, 0, 3], 0, 3), hashes.of([5, 6, 7], 0, 3))
    assert not torch.equal(hashes.of([1, 0, 3], 0, 3), hashes.of([1, 0, 4], 0, 3))


def test_no_rows_are_no_error() -> None:
    assert NgramHash(SMALL, SMALL_MAP).of([], 0, 0).shape == (0, 2, 9)
    assert NgramHash(SMALL, SMALL_MAP).of([1, 2], 2, 2).shape == (0, 2, 9)


def test_a_table_of_another_size_than_its_hashes_is_refused_with_both_numbers() -> None:
    sums = [sum(map(sum, orders)) for orders in primes(SMALL)]
    assert primes({**SMALL, "engram_num_embeddings": sums}) == primes(SMALL)
    for wrong in (-1, 1):
        other = {**SMALL, "engram_num_embeddings": [sums[0], sums[1] + wrong]}
        with pytest.raises(ConfigError, match=f"layer 3: .* {sums[1]} .* is {sums[1] + wrong}$"):
            primes(other)
    with pytest.raises(ConfigError, match="one engram_num_embeddings per engram_layer_ids"):
        primes({**SMALL, "engram_num_embeddings": sums[:1]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engram_max_ngram_size": 1}, "engram_max_ngram_size must be at least 2"),
        ({"engram_n_heads": 0}, "engram_n_heads must be at least 1"),
        ({"engram_pad_id": 9}, r"engram_pad_id must be 0 \.\. 8, got 9"),
        ({"engram_compressed_vocab_size": 4}, r"classes 0 \.\. 3"),
        ({"engram_layer_ids": []}, "engram_layer_ids names no layer"),
        ({"engram_layer_ids": [-1]}, "engram_layer_ids must be at least 0, got -1"),
        ({"engram_layer_ids": 1}, "engram_layer_ids must be tuple"),
        ({"engram_vocab_size": "x"}, "engram_vocab_size must be int, got 'x'"),
        ({"engram_vocab_size": 1.5}, "engram_vocab_size must be int, got 1.5"),
        ({"engram_vocab_size": 10**30}, "engram_vocab_size must be at most 1000000000"),
        ({"engram_n_heads": 2**31}, "engram_n_heads must be at most 256"),
        ({"engram_pad_id": None}, "missing engram_pad_id"),
        ({"engram_pad_token_id": 3}, "expected one pad, got engram_pad_id = 2 and"),
        ({"vocab_size": None}, "missing vocab_size"),
        ({"vocab_size": 8}, "token map has 9 token ids, but vocab_size is 8"),
        ({"vocab_size": 10}, "token map has 9 token ids, but vocab_size is 10"),
    ],
)
def test_fields_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NgramHash({**SMALL, **changes}, SMALL_MAP)
    with pytest.raises(ConfigError, match="missing engram_n_heads"):
        NgramHash({k: v for k, v in SMALL.items() if k != "engram_n_heads"}, SMALL_MAP)


@pytest.mark.parametrize("wrong", [-1, 9])
def test_ids_without_a_class_are_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=r"token ids 0 \.\. 8, got \["):
        hash_ids(SMALL, SMALL_MAP, [1, wrong])
    with pytest.raises(ValueError, match=r"positions within 0 \.\. 2"):
        NgramHash(SMALL, SMALL_MAP).of([1, 2], 1, 3)


@pytest.mark.parametrize(
    "ids", [[1, 2.0], [1, "2"], [1, None], [1, True], [1, [2]], "12", [1, 10**30], [1, math.nan]]
)
def test_ids_that_are_no_integers_are_refused_and_not_cut(ids: Any) -> None:
    with pytest.raises(ValueError, match=r"expected token ids 0 \.\. 8, got ") as told:
        hash_ids(SMALL, SMALL_MAP, ids)
    assert "\n" not in str(told.value)


def test_tensors_and_arrays_of_integers_are_ids() -> None:
    ids = torch.tensor([1, 8, 3])
    expected = hash_ids(SMALL, SMALL_MAP, [1, 8, 3])
    given: list[Any] = [ids, ids.int(), ids.numpy(), list(ids.numpy()), (1, 8, 3)]
    for same in given:
        assert torch.equal(hash_ids(SMALL, torch.tensor(SMALL_MAP), same), expected)
    floats: Any = ids.float()
    with pytest.raises(ValueError, match="expected token ids"):
        hash_ids(SMALL, SMALL_MAP, floats)


@pytest.mark.parametrize("dead", [[2], [-1], [0, 99], [0.0], ["1"], [True], [10**30]])
def test_dead_positions_that_are_none_are_refused(dead: Any) -> None:
    with pytest.raises(ValueError, match=r"dead positions within 0 \.\. 1, got \["):
        hash_ids(SMALL, SMALL_MAP, [1, 2], dead)


def test_without_engram_layers_there_are_no_columns() -> None:
    assert hash_ids({**SMALL, "engram_layer_ids": []}, SMALL_MAP, [1, 2, 3]).shape == (3, 0, 0)
    plain = V41Config.load(VECTORS / "v41_tiny")
    assert hash_ids(plain, [], [1, 2]).shape == (2, 0, 0)
    with pytest.raises(ConfigError, match="missing engram_layer_ids"):
        hash_ids({"vocab_size": 9}, SMALL_MAP, [1])


def test_the_releases_spelling_of_the_pad_is_read() -> None:
    released = {name: value for name, value in SMALL.items() if name != "engram_pad_id"}
    got = hash_ids({**released, "engram_pad_token_id": 2}, SMALL_MAP, [1, 2, 3])
    assert torch.equal(got, hash_ids(SMALL, SMALL_MAP, [1, 2, 3]))


@pytest.mark.parametrize("wrong", [1.0, "1", None, True])
def test_a_token_map_of_other_things_than_classes_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected a token map of classes 0 \.\. 4"):
        NgramHash(SMALL, [*SMALL_MAP[:-1], wrong])


def opened(layer: int) -> tuple[Engram, V41Config, dict[str, torch.Tensor]]:
    config = V41Config.load(TINY)
    checkpoint = ReleaseCheckpoint(TINY, config, weights="dequantize")
    stored = load_file(TINY / "model.safetensors")
    prefix = f"layers.{layer}.engram."
    tensors = {
        name.removeprefix(prefix): tensor.double()
        for name, tensor in stored.items()
        if name.startswith(prefix)
    }
    return Engram(checkpoint, config, layer=layer, kernels=OrderedReference()), config, tensors


@pytest.mark.parametrize(("layer", "index"), [(1, 0), (3, 1)])
def test_each_stream_takes_the_value_through_its_own_gate(layer: int, index: int) -> None:
    engram, config, w = opened(layer)
    ids = load_file(TINY / "expected.safetensors")["input_ids"].tolist()[:37]
    hashes = hash_ids(config, load_token_map(TINY, config), ids)[:, index]
    torch.manual_seed(0)
    streams = torch.randn(37, 4, 128)
    got = engram(streams, hashes)
    assert got.dtype is torch.float32
    gates = []
    for t in range(37):
        read = torch.cat([w["embed.weight"][row] for row in hashes[t].tolist()])
        *keys, value = (w["wkv.weight"] @ read).split(128)
        for s in range(4):
            h, key = streams[t, s].double(), keys[s]
            h_norm = h / math.sqrt(h.square().mean() + 1e-20) * w["q_weight"][s]
            k_norm = key / math.sqrt(key.square().mean() + 1e-20) * w["k_weight"][s]
            dot = float(h_norm @ k_norm) / math.sqrt(128)
            gate = 1 / (1 + math.exp(-math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)))
            gates.append(gate)
            torch.testing.assert_close(got[t, s].double(), h + gate * value, rtol=1e-5, atol=1e-5)
    # Both signs occur and no gate is saturated, so that each part of the formula is seen.
    assert 0.05 < min(gates) < 0.4
    assert 0.6 < max(gates) < 0.95


def test_a_row_keeps_its_bits_whatever_rows_are_beside_it() -> None:
    engram, _, w = opened(1)
    torch.manual_seed(1)
    streams, rows = torch.randn(128, 4, 128), torch.randint(0, 272, (128, 4))
    others = torch.randn(128, 4, 128) * 50, torch.randint(0, 272, (128, 4))
    whole = engram(streams, rows)
    others[0][77], others[1][77] = streams[77], rows[77]
    assert torch.equal(engram(*others)[77], whole[77])
    assert len(w["embed.weight"]) == 272


class Plain:
    """Tensors as a checkpoint gives them."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def vector(self, name: str) -> torch.Tensor:
        return self._tensors[name.removeprefix("layers.5.engram.")]

    def matrix(self, name: str) -> Any:
        value = self.vector(name)
        return SimpleNamespace(
            transposed=lambda: value.t().contiguous(), rows=lambda index: value[index]
        )


def test_a_key_of_zeros_opens_the_gate_just_above_one_half() -> None:
    """sign(0) is +, and the root has a floor: sigmoid(1e-3), not 0.5, and no NaN."""
    n_streams, width = 2, 32
    wkv = torch.zeros((n_streams + 1) * width, 8)
    wkv[n_streams * width :] = 1
    tensors = {
        "embed.weight": torch.ones(3, 4), "wkv.weight": wkv,
        "q_weight": torch.ones(n_streams, width), "k_weight": torch.ones(n_streams, width),
    }  # fmt: skip
    config: Any = SimpleNamespace(rms_norm_eps=1e-20)
    kernels = OrderedReference()
    engram = Engram(Plain(tensors), config, layer=5, kernels=kernels)  # type: ignore[arg-type]
    got = engram(torch.zeros(1, n_streams, width), torch.tensor([[0, 2]]))
    gate = 1 / (1 + math.exp(-1e-3))
    torch.testing.assert_close(got, torch.full_like(got, 8 * gate), rtol=1e-6, atol=0)
