"""The tensors of a `deepseek_v41` checkpoint: names, shapes, and the format each is stored in.

Names are those of the release's safetensors (technical report arXiv 2609.19969), without a `model.`
prefix. Knows no files. A text checkpoint has exactly these tensors: draft layers (mtp.*) and the
vision tower are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Literal

from cedagent.model.v41_config import V41Config

Stored = Literal["fp8", "fp8_rows", "fp4", "bf16", "fp32"]
"""fp8 with a scale for each 32 x 32 block, fp8 with one for each 32 channels of a row, packed fp4
with one for each 32 channels of a row."""

SCALE_SUFFIX = ".scale"

_FP32 = ("attn_sink", "gate.bias", "hc_attn_fn", "hc_attn_base", "hc_attn_scale", "hc_ffn_fn",
         "hc_ffn_base", "hc_ffn_scale")  # fmt: skip
_FP8 = ("attn.wq_a.weight", "attn.wq_b.weight", "attn.wkv.weight", "attn.wo_a.weight",
        "attn.wo_b.weight", "indexer.wq_b.weight", "shared_experts.w1.weight",
        "shared_experts.w2.weight", "shared_experts.w3.weight", "engram.wkv.weight")  # fmt: skip
_ENGRAM_TABLE = "engram.embed.weight"


def tensor_shapes(config: V41Config) -> dict[str, tuple[int, ...]]:
    """Return name -> logical shape of every tensor of a text checkpoint of this config."""
    return dict(named_shapes(config))


def named_shapes(config: V41Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the logical shape of every tensor; a config may claim millions."""
    hidden = config.hidden_size
    yield "embed.weight", (config.vocab_size, hidden)
    for layer in range(config.num_hidden_layers):
        for name, shape in _layer(config, layer):
            yield f"layers.{layer}.{name}", shape
    yield "norm.weight", (hidden,)
    yield "head.weight", (config.vocab_size, hidden)


def weight_groups(config: V41Config) -> dict[str, list[str]]:
    """Return group -> tensor names: embedding, layers.N, head. A group is what `kv why` names."""
    groups: dict[str, list[str]] = {}
    for name in tensor_shapes(config):
        if name.startswith("layers."):
            group = "layers." + name.split(".")[1]
        else:
            group = "embedding" if name.startswith("embed.") else "head"
        groups.setdefault(group, []).append(name)
    return groups


def released_format(name: str) -> Stored:
    """Return the format in which the release stores a tensor."""
    if name.endswith(_FP32):
        return "fp32"
    if ".ffn.experts." in name:
        return "fp4"
    if name.endswith(_ENGRAM_TABLE):
        return "fp8_rows"
    return "fp8" if name.endswith(_FP8) else "bf16"


def is_matrix(name: str) -> bool:
    """Return whether a tensor is multiplied with or looked up in, and may be stored with scales."""
    return name.endswith(".weight") and not name.endswith("norm.weight")


def is_table(name: str) -> bool:
    """Return whether a matrix is only looked up in, row by row."""
    return name == "embed.weight" or name.endswith(_ENGRAM_TABLE)


def scale_of(name: str) -> str:
    """Return the name of the scale that belongs to NAME.weight."""
    return name.removesuffix(".weight") + SCALE_SUFFIX


def _layer(config: V41Config, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = config.hidden_size
    yield from _attention(config, layer).items()
    yield from _ffn(config)
    yield from _hyper(config).items()
    yield "attn_norm.weight", (hidden,)
    yield "ffn_norm.weight", (hidden,)
    if layer in config.engram_layer_ids:
        yield from _engram(config, layer).items()


def _attention(config: V41Config, layer: int) -> dict[str, tuple[int, ...]]:
    hidden, head, rank = config.hidden_size, config.head_dim, config.q_lora_rank
    n_heads, low = config.num_attention_heads, config.o_groups * config.o_lora_rank
    shapes: dict[str, tuple[int, ...]] = {
        "attn.wq_a.weight": (rank, hidden),
        "attn.q_norm.weight": (rank,),
        "attn.wq_b.weight": (n_heads * head, rank),
        "attn.wkv.weight": (head, hidden),
        "attn.kv_norm.weight": (head,),
        "attn.wo_a.weight": (low, n_heads * head // config.o_groups),
        "attn.wo_b.weight": (hidden, low),
        "attn.attn_sink": (n_heads,),
    }
    mode, index_head = config.mode(layer), config.index_head_dim
    if mode == "full":
        shapes["attn.compressor.wkv.weight"] = (head, hidden)
        if config.ratio(layer) > 1:
            shapes["attn.compressor.wgate.weight"] = (head, hidden)
        shapes |= {
            "attn.compressor.norm.weight": (head,),
            "attn.indexer.wk.weight": (index_head, head),
            "attn.indexer.k_norm.weight": (index_head,),
        }
    if mode in ("full", "reindex"):
        shapes |= {
            "attn.indexer.wq_b.weight": (config.index_n_heads * index_head, rank),
            "attn.indexer.weights_proj.weight": (config.index_n_heads, hidden),
        }
    return shapes


def _ffn(config: V41Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    yield "ffn.gate.weight", (config.n_routed_experts, hidden)
    yield "ffn.gate.bias", (config.n_routed_experts,)
    experts = (f"experts.{index}" for index in range(config.n_routed_experts))
    for expert in chain(experts, ["shared_experts"]):
        yield f"ffn.{expert}.w1.weight", (inner, hidden)
        yield f"ffn.{expert}.w2.weight", (hidden, inner)
        yield f"ffn.{expert}.w3.weight", (inner, hidden)


def _hyper(config: V41Config) -> dict[str, tuple[int, ...]]:
    streams = config.hc_mult
    # One weight into and one out of the sublayer for each stream, and a matrix that mixes them.
    mixes = (2 + streams) * streams
    shapes: dict[str, tuple[int, ...]] = {}
    for site in ("attn", "ffn"):
        shapes |= {
            f"hc_{site}_fn": (mixes, streams * config.hidden_size),
            f"hc_{site}_base": (mixes,),
            f"hc_{site}_scale": (3,),
        }
    return shapes


def _engram(config: V41Config, layer: int) -> dict[str, tuple[int, ...]]:
    hidden, width = config.hidden_size, config.engram_head_dim
    columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
    rows = config.engram_num_embeddings[config.engram_layer_ids.index(layer)]
    return {
        "engram.embed.weight": (rows, width),
        # A key for each stream, and one value.
        "engram.wkv.weight": ((config.hc_mult + 1) * hidden, columns * width),
        "engram.q_weight": (config.hc_mult, hidden),
        "engram.k_weight": (config.hc_mult, hidden),
    }
