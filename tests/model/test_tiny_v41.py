"""Tiny V4.1 checkpoints have the release's shape in small, and weights that exercise all of it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from ced_kernels.ordered.kernel_set import OrderedReference
from cedagent.chat import Tokenizer
from cedagent.errors import ConfigError
from cedagent.model.cost import read_cost
from cedagent.model.engram import Engram, NgramHash
from cedagent.model.engram_map import load_token_map
from cedagent.model.release import ReleaseCheckpoint, tensor_shapes
from cedagent.model.tiny_v41 import write_tiny_v41
from cedagent.model.tokenizer_build import TINY_DSML_CONTROL_TOKENS, build_tiny_dsml
from cedagent.model.v41_config import V41Config

VECTORS = Path(__file__).parents[1] / "vectors"
SMALLEST = {"n_experts": 2, "moe_intermediate_size": 32, "hidden_size": 32, "q_lora_rank": 32}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_v41(tmp_path_factory.mktemp("v41") / "tiny", seed=5)


def modes(config: V41Config) -> list[str]:
    return [config.mode(layer) for layer in range(config.num_hidden_layers)]


def stored(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Type and shape of every tensor."""
    found = {}
    for file in path.glob("model*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                found[name] = (part.get_dtype(), part.get_shape())
    return found


def test_every_layer_mode_is_there_in_eight_layers(tiny: Path) -> None:
    config = V41Config.load(tiny)
    assert modes(config) == [
        "window", "window", "full", "reuse", "full", "reuse", "reindex", "reuse",
    ]  # fmt: skip
    assert (config.n_encoder_layers, config.n_decoder_layers, config.window) == (4, 4, 16)
    assert [config.ratio(layer) for layer in range(8)] == [0, 0, 2, 2, 1, 1, 1, 1]
    assert config.candidate_source_layer_id == 4
    assert config.engram_layer_ids == (1, 2)
    assert (config.chat_format, config.eos_token_id, config.replay_windows) == ("dsml", 1, 1)


def test_a_long_model_has_the_sources_of_the_release(tmp_path: Path) -> None:
    made = write_tiny_v41(
        tmp_path / "long", n_encoder_layers=20, n_decoder_layers=5, replay_windows=2, **SMALLEST
    )
    config = V41Config.load(made)
    assert config.kv_source_layer_ids == (2, 8, 14, 20)
    assert config.index_source_layer_ids == (2, 8, 14, 20, 22, 24)
    assert config.engram_layer_ids == (1, 14)
    assert config.replay_windows == 2
    assert config.kv_source(13) == 8
    assert config.index_source(23) == 22
    assert read_cost(made, n_tokens=1000).ced_token_layers == 1000 * 20 + 32 * 5


@pytest.mark.parametrize(
    ("encoder", "decoder", "expected", "engram"),
    [
        (1, 1, ["window", "full"], (0,)),
        (2, 1, ["window", "window", "full"], (1,)),
        (3, 2, ["window", "window", "full", "full", "reuse"], (1, 2)),
    ],
)
def test_the_shortest_models_are_valid(
    tmp_path: Path, encoder: int, decoder: int, expected: list[str], engram: tuple[int, ...]
) -> None:
    made = write_tiny_v41(
        tmp_path / "m", n_encoder_layers=encoder, n_decoder_layers=decoder, **SMALLEST
    )
    config = V41Config.load(made)
    assert modes(config) == expected
    assert config.engram_layer_ids == engram
    ReleaseCheckpoint(made, config, weights="keep")


@pytest.mark.parametrize(("encoder", "decoder"), [(0, 2), (2, 0)])
def test_a_model_without_one_half_is_refused_and_leaves_nothing(
    tmp_path: Path, encoder: int, decoder: int
) -> None:
    with pytest.raises(ConfigError, match=f"at least one .*, got {encoder} and {decoder}"):
        write_tiny_v41(tmp_path / "m", n_encoder_layers=encoder, n_decoder_layers=decoder)
    with pytest.raises(ConfigError, match="sliding_window must be at least 1, got 0"):
        write_tiny_v41(tmp_path / "m", window=0)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("quantized", "engram", "golden"),
    [(True, False, "v41_tiny_fp8"), (False, False, "v41_tiny")],
)
def test_names_types_and_shapes_are_those_of_the_vectors(
    tmp_path: Path, quantized: bool, engram: bool, golden: str
) -> None:
    made = write_tiny_v41(tmp_path / "m", quantized=quantized, engram=engram)
    assert stored(made) == stored(VECTORS / golden)
    ours, theirs = (
        json.loads((path / "config.json").read_text()) for path in (made, VECTORS / golden)
    )
    assert ours.get("quantization_config") == theirs.get("quantization_config")
    assert ours["text_config"].keys() - theirs["text_config"].keys() == set()


def test_engram_tensors_are_stored_as_in_the_release(tiny: Path) -> None:
    found = stored(tiny)
    rows = V41Config.load(tiny).engram_num_embeddings[0]
    assert found["layers.1.engram.embed.weight"] == ("F8_E4M3", [rows, 32])
    assert found["layers.1.engram.embed.scale"] == ("F8_E8M0", [rows, 1])
    assert found["layers.1.engram.wkv.weight"] == ("F8_E4M3", [5 * 128, 6 * 32])
    assert found["layers.1.engram.wkv.scale"] == ("F8_E8M0", [20, 6])
    assert found["layers.1.engram.q_weight"] == ("BF16", [4, 128])


def test_a_seed_names_the_weights_in_any_number_of_shards(tmp_path: Path) -> None:
    def digest(name: str, **more: Any) -> str:
        made = write_tiny_v41(tmp_path / name, n_encoder_layers=3, n_decoder_layers=1, **more)
        config = V41Config.load(made)
        checkpoint = ReleaseCheckpoint(made, config, weights="keep")
        return checkpoint.digest(list(tensor_shapes(config)))

    first = digest("a", seed=7)
    assert digest("b", seed=7, shards=3) == first
    assert len(list((tmp_path / "b").glob("model-*-of-00003.safetensors"))) == 3
    assert digest("c", seed=8) != first


def test_the_tokenizer_has_the_control_tokens_of_the_format(tiny: Path) -> None:
    spec = json.loads((tiny / "tokenizer.json").read_text())
    added = {token["content"]: token for token in spec["added_tokens"]}
    bar = "\N{FULLWIDTH VERTICAL LINE}"
    for name in (
        "begin▁of▁sentence", "end▁of▁sentence", "System", "User", "Assistant", "latest_reminder",
        "action", "query", "authority", "domain", "title", "read_url", "deepseek_image",
    ):  # fmt: skip
        assert f"<{bar}{name}{bar}>" in added
    assert {"<think>", "</think>", f"{bar}DSML{bar}"} <= added.keys()
    assert [token["id"] for token in added.values()] == list(range(len(added)))
    # Most are not special in the release: a plain encode would turn a user's text into control.
    assert [t["content"] for t in added.values() if t["special"]] == list(
        TINY_DSML_CONTROL_TOKENS[:3]
    )
    tokenizer = Tokenizer.load(tiny)
    assert tokenizer.control_ids == frozenset(range(17))
    assert tokenizer.control_id(f"<{bar}end▁of▁sentence{bar}>") == V41Config.load(tiny).eos_token_id
    assert not set(tokenizer.encode(f"<{bar}User{bar}> <think>")) & tokenizer.control_ids


def test_every_id_decodes_and_the_tags_of_a_call_are_single_tokens(tiny: Path) -> None:
    tokenizer = Tokenizer.load(tiny)
    assert tokenizer.vocab_size == 512
    assert all(tokenizer.token_bytes(i) for i in range(17, 512))
    for word in (" calls", " invoke", " parameter"):
        assert len(tokenizer.encode(word)) == 1
    text = 'Grüße, naïve 漢字 {"a": [12, null]}\n\n ok'
    assert tokenizer.decode(tokenizer.encode(text)) == text
    with pytest.raises(ValueError, match="at least 352 ids, got 351"):
        build_tiny_dsml(351)


def test_engram_hashes_fill_the_tables(tiny: Path) -> None:
    config = V41Config.load(tiny)
    assert not (tiny / "engram_token_map.json").exists()
    token_map = load_token_map(tiny, config)
    assert len(token_map) == 512
    assert max(token_map) + 1 == config.engram_compressed_vocab_size < 512
    torch.manual_seed(0)
    ids = torch.randint(512, (6000,)).tolist()
    rows = NgramHash(config, token_map).of(ids, 0, len(ids))
    for index, n_rows in enumerate(config.engram_num_embeddings):
        used = rows[:, index].unique()
        assert used.min() >= 0
        assert used.max() < n_rows
        assert len(used) > 0.99 * n_rows


KINDS = {"w1": "expert", "w2": "expert", "w3": "expert"}


def spreads(path: Path) -> dict[str, tuple[int, float, float]]:
    """Kind of tensor -> (elements, mean, deviation times the root of a matrix's fan-in)."""
    values = defaultdict(list)
    for name, tensor in load_file(path / "model.safetensors").items():
        parts = name.removesuffix(".weight").split(".")
        kind = KINDS.get(parts[-1], ".".join(parts[-2:]) if len(parts) > 3 else parts[-1])
        is_matrix = name.endswith(("weight", "_fn")) and tensor.ndim == 2
        scaled = is_matrix and "embed" not in name and not name.endswith(("q_weight", "k_weight"))
        values[kind].append(tensor.float().flatten() * (tensor.shape[-1] ** 0.5 if scaled else 1))
    joined = {kind: torch.cat(parts) for kind, parts in values.items()}
    return {kind: (v.numel(), float(v.mean()), float(v.std())) for kind, v in joined.items()}


def test_weights_are_spread_as_those_of_the_vectors(tmp_path: Path) -> None:
    made = write_tiny_v41(tmp_path / "m", quantized=False)
    ours, theirs = spreads(made), spreads(VECTORS / "v41_tiny_engram")
    assert ours.keys() == theirs.keys()
    for kind, (n, mean, deviation) in ours.items():
        if kind == "attn.attn_sink":
            continue
        slack = 0.06 + 2 * min(n, theirs[kind][0]) ** -0.5
        assert abs(mean - theirs[kind][1]) < slack * max(deviation, 0.2), kind
        assert deviation == pytest.approx(theirs[kind][2], rel=slack), kind


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt() * weight


@pytest.mark.parametrize("window", [5, 16, 100])
def test_attention_is_neither_flat_nor_on_one_key_and_sinks_matter(tiny: Path, window: int) -> None:
    config = V41Config.load(tiny)
    checkpoint = ReleaseCheckpoint(tiny, config, weights="dequantize")
    torch.manual_seed(0)
    for layer in range(8):
        prefix = f"layers.{layer}."
        x = normed(torch.randn(200, 128), checkpoint.vector(prefix + "attn_norm.weight"))

        def through(name: str, rows: Tensor, prefix: str = prefix) -> Tensor:
            return rows @ checkpoint.matrix(f"{prefix}attn.{name}.weight").value().t()

        low = normed(through("wq_a", x), checkpoint.vector(prefix + "attn.q_norm.weight"))
        q = through("wq_b", low).view(200, 4, 64)
        keys = normed(through("wkv", x), checkpoint.vector(prefix + "attn.kv_norm.weight"))
        sinks = checkpoint.vector(prefix + "attn.attn_sink").view(1, 4, 1).expand(200, 4, 1)
        scores = torch.einsum("thd,nd->thn", q, keys[:window]) * 64**-0.5
        weights = torch.cat((scores, sinks), dim=-1).softmax(-1)
        effective = (-weights * weights.log()).sum(-1).exp().mean() / (window + 1)
        assert 0.25 < effective < 0.75, (layer, effective)
        assert (weights.amax(-1) > 0.95).float().mean() < 0.05
        assert 0.01 < weights[..., -1].mean() < 0.6


def test_all_experts_are_chosen_and_none_by_every_token(tiny: Path) -> None:
    checkpoint = ReleaseCheckpoint(tiny, V41Config.load(tiny), weights="dequantize")
    torch.manual_seed(0)
    for layer in range(8):
        prefix = f"layers.{layer}.ffn"
        x = normed(torch.randn(400, 128), checkpoint.vector(f"{prefix}_norm.weight"))
        logits = x @ checkpoint.matrix(f"{prefix}.gate.weight").value().t()
        scores = torch.nn.functional.softplus(logits).sqrt()
        bias = checkpoint.vector(f"{prefix}.gate.bias")
        chosen = (scores + bias).topk(2).indices
        share = torch.bincount(chosen.flatten(), minlength=8) / 400
        assert share.min() > 0.02
        assert share.max() < 0.6
        assert not torch.equal(chosen, scores.topk(2).indices), "the bias moves some choices"


def test_engram_gates_are_open_half_way_and_their_values_count(tiny: Path) -> None:
    config = V41Config.load(tiny)
    checkpoint = ReleaseCheckpoint(tiny, config, weights="dequantize")
    hashes = NgramHash(config, load_token_map(tiny, config)).of(list(range(300)), 0, 300)
    torch.manual_seed(0)
    streams = torch.randn(300, 4, 128) * 3
    for index, layer in enumerate(config.engram_layer_ids):
        added = (
            Engram(checkpoint, config, layer=layer, kernels=OrderedReference())(
                streams, hashes[:, index]
            )
            - streams
        )
        assert 0.05 < added.std() / streams.std() < 0.5
        largest = added.norm(dim=-1).amax(-1)
        assert (added.norm(dim=-1).amin(-1) / largest).median() < 0.8, "gates differ by stream"


def test_costs_are_those_of_the_matrices(tmp_path: Path) -> None:
    """With every expert running, a generated token meets all matrices but the looked-up tables."""
    made = write_tiny_v41(tmp_path / "m", n_experts=3, experts_per_token=3)
    shapes = tensor_shapes(V41Config.load(made))
    matrices = sum(
        torch.Size(shape).numel()
        for name, shape in shapes.items()
        if len(shape) == 2 and "embed" not in name and not name.endswith(("q_weight", "k_weight"))
    )
    cost = read_cost(made, n_tokens=7)
    assert cost.generated_parameters == matrices
    # 36 B of latent and 17 B of index key: half a row a token in layer 2, one in layer 4.
    assert cost.bytes_per_token == 26 + 53
