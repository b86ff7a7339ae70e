"""What the fields of a `deepseek_v41` config must be: served, and free of contradictions.

Technical report arXiv 2609.19969; fields of `text_config` in the release's config.json. Knows the
rules, not what follows from a config. Every refusal is a ConfigError of one line that names the
field.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from cedagent.model.config import TILE
from cedagent.model.config_fields import expect, shown
from cedagent.model.engram_primes import primes
from cedagent.model.v41_limits import ENGRAM_INTEGERS, check_engram_limits, check_limits

if TYPE_CHECKING:
    from cedagent.model.v41_config import V41Config

_SERVED: Mapping[str, object] = {
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""Fields of the config with the one value that the layers compute."""

QUANTIZATION: Mapping[str, object] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "scale_fmt": "ue8m0",
    "weight_block_size": [32, 32],
    "expert_dtype": "fp4",
}
"""quantization_config of the release, the formats that are read."""


def check_config(config: V41Config) -> None:
    """Refuse values that are not served or contradict each other; raises ConfigError."""
    for name, served in _SERVED.items():
        got = getattr(config, name)
        expect(got == served, f"{name} must be {served!r}", shown(got))
    check_limits(config)
    eos = config.eos_token_id
    expect(
        0 <= eos < config.vocab_size,
        f"eos_token_id must be a token id 0 .. {config.vocab_size - 1}",
        eos,
    )
    _check_widths(config)
    _check_layers(config)
    if config.engram_layer_ids:
        _check_engram(config)


def _check_widths(config: V41Config) -> None:
    for name in ("head_dim", "index_head_dim"):
        width = getattr(config, name)
        # Window rows and index keys are stored in blocks of 32 channels.
        expect(width % 32 == 0, f"{name} must be a multiple of 32", width)
    rope_dim = config.qk_rope_head_dim
    widest = min(config.head_dim, config.index_head_dim)
    expect(
        rope_dim % 2 == 0 and rope_dim <= widest,
        f"qk_rope_head_dim must be even and at most {widest} (head_dim and index_head_dim)",
        rope_dim,
    )
    expect(
        config.num_attention_heads % config.o_groups == 0,
        f"o_groups must divide num_attention_heads {config.num_attention_heads}",
        config.o_groups,
    )
    expect(
        config.num_experts_per_tok <= config.n_routed_experts,
        f"num_experts_per_tok must be at most n_routed_experts {config.n_routed_experts}",
        config.num_experts_per_tok,
    )
    if (yarn := config.rope_scaling) is not None:
        expect(
            yarn.beta_slow < yarn.beta_fast,
            f"rope_scaling.beta_slow must be below beta_fast {yarn.beta_fast:g}",
            yarn.beta_slow,
        )


def _check_layers(config: V41Config) -> None:
    n_layers, ratios = config.num_hidden_layers, config.compress_ratios
    expect(len(ratios) >= n_layers, f"compress_ratios must have {n_layers} entries or more", ratios)
    expect(
        not any(ratios[n_layers:]), "compress_ratios of draft layers must be 0", ratios[n_layers:]
    )
    expect(
        all(r == 0 or (r > 0 and TILE % r == 0) for r in ratios),
        f"compress_ratios must each be 0 or divide {TILE}",
        ratios,
    )
    kv_sources, index_sources = config.kv_source_layer_ids, config.index_source_layer_ids
    for name, sources in (
        ("kv_source_layer_ids", kv_sources),
        ("index_source_layer_ids", index_sources),
    ):
        _check_ids(name, sources, n_layers)
        expect(bool(sources), f"{name} must name a layer", list(sources))
        windows = [layer for layer in sources if not ratios[layer]]
        expect(not windows, f"{name} must be layers with compress_ratios above 0", windows)
    expect(
        set(kv_sources) <= set(index_sources),
        f"index_source_layer_ids must include kv_source_layer_ids {list(kv_sources)}",
        list(index_sources),
    )
    decoder = kv_sources[-1]
    first = ratios.index(1) if 1 in ratios else None
    expect(
        first == decoder,
        "the last of kv_source_layer_ids starts the decoder and must be the first layer with ratio "
        f"1 ({first})",
        decoder,
    )
    for layer in range(n_layers):
        if ratios[layer]:
            source = max((s for s in kv_sources if s <= layer), default=None)
            same = source is not None and ratios[source] == ratios[layer]
            expect(
                same,
                f"layer {layer} must follow a kv source of its own ratio {ratios[layer]}",
                f"source {source}",
            )
    candidate = config.candidate_source_layer_id
    expect(
        candidate < 0 or candidate == decoder,
        f"candidate_source_layer_id must be the decoder's source {decoder}, or negative for none",
        candidate,
    )


def _check_engram(config: V41Config) -> None:
    layers, tables = config.engram_layer_ids, config.engram_num_embeddings
    # Decoder rows are replayed without their token ids.
    _check_ids("engram_layer_ids", layers, config.n_encoder_layers)
    expect(
        len(tables) == len(layers) and all(rows >= 1 for rows in tables),
        f"engram_num_embeddings must be {len(layers)} table sizes, one for each Engram layer",
        list(tables),
    )
    for name in ENGRAM_INTEGERS:
        check_engram_limits(name, getattr(config, name))
    pad = config.engram_pad_id
    expect(0 <= pad < config.vocab_size, "engram_pad_id must be a token id", pad)
    # Refuses tables that are not those of the hashes.
    primes(config)


def _check_ids(name: str, layers: tuple[int, ...], n_layers: int) -> None:
    rising = all(a < b for a, b in pairwise(layers))
    inside = all(0 <= layer < n_layers for layer in layers)
    expect(rising and inside, f"{name} must rise within 0 .. {n_layers - 1}", list(layers))
