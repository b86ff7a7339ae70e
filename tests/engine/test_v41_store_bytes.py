"""V4.1 on disk: real fp4 codes and scales, 890 bytes per token at the released shape.

By arithmetic on the released config, and by reading the records of a store that a tiny model wrote
with a decoder of our own: the values are the ones that another implementation has in its cache.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from v41_runs import publish, some_ids, with_store, write_small

from ced_kernels.block_codes import WINDOW
from ced_kvstore.record import ALIGN, HEADER_BYTES, Header, Kind
from cedagent.engine.v41.state import V41State
from cedagent.engine.v41.streams import declared_streams
from cedagent.engine.v41.windows import V41Windows
from cedagent.model.v41_config import V41Config

GOLDEN = Path(__file__).parents[1] / "vectors" / "v41_tiny"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
RELEASED = {
    "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1280,
    "qk_rope_head_dim": 64, "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128,
    "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "max_position_embeddings": 1048576,
    "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0] * 3,
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36], "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048, "candidate_block_size": 8, "index_n_heads": 32,
    "index_head_dim": 128, "index_topk": 512, "n_routed_experts": 384, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "moe_intermediate_size": 2304, "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0, "gate_temp": 1.0, "hc_mult": 4, "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6, "rms_norm_eps": 1e-20, "tie_word_embeddings": False, "hidden_act": "silu",
    "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256,
    "engram_vocab_size": 16000000, "engram_pad_id": 2, "engram_compressed_vocab_size": 99092,
    "num_nextn_predict_layers": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def released():
    return V41Config.from_json({"model_type": "deepseek_v41", "text_config": RELEASED})


def test_the_released_shape_takes_890_bytes_a_token(released):
    streams = {stream.name: stream.block_bytes for stream in declared_streams(released)}
    rows = {layer: 128 // released.ratio(layer) for layer in (2, 8, 14, 20)}
    assert rows == {2: 64, 8: 64, 14: 64, 20: 128}
    # A latent is 512 fp4 codes and a scale per 16; a key 128 codes and a scale per 32.
    expected = {f"latent.{layer}": n * (256 + 32) for layer, n in rows.items()}
    expected |= {f"index_key.{layer}": n * (64 + 4) for layer, n in rows.items()}
    assert streams == expected
    assert sum(streams.values()) == 890 * 128
    assert sum(v for name, v in streams.items() if "latent" in name) == 720 * 128


def test_a_released_snapshot_takes_1_34_mb(released):
    """W - 1 rows of each of the 20 encoder layers, 528 bytes each."""
    state = V41State(released)
    state.windows = [state.new_window(1) for _ in range(20)]
    for own in state.windows:
        own.write_zeros(128)
    state.settled = 256
    windows = V41Windows(SimpleNamespace(config=released), reach=128)
    position, data = windows.snapshot(state)
    assert WINDOW.code_bytes(512) + WINDOW.scale_bytes(512) == 528
    assert (position, len(data)) == (128, 20 * 127 * 528)
    assert 1.33e6 < len(data) < 1.36e6


def records(kv):
    """Header and payload of every record in the store's segments."""
    for path in sorted((kv / "seg").iterdir()):
        raw, offset = path.read_bytes(), 0
        while offset < len(raw) and raw[offset : offset + 4] == b"CEDK":
            header = Header.unpack(raw[offset : offset + HEADER_BYTES])
            start = offset + HEADER_BYTES
            yield header, raw[start : start + header.length]
            offset = -(-(start + header.length) // ALIGN) * ALIGN


def test_a_store_takes_what_the_arithmetic_says(tmp_path):
    model = write_small(tmp_path / "model")
    publish(model, tmp_path / "kv", some_ids(300))
    # Head dimension 64, index keys of 32; sources with ratio 2 and 1; 4 layers with 15 rows.
    per_token = (64 // 2 + 64 // 16 + 32 // 2 + 32 // 32) * (1 / 2 + 1)
    found = list(records(tmp_path / "kv"))
    blocks = [header.length for header, _ in found if header.kind == Kind.BLOCK]
    assert blocks == [512 + 128 * per_token] * 2
    snapshots = [header.length for header, _ in found if header.kind == Kind.SNAPSHOT]
    assert snapshots == [4 * 15 * (64 + 64 // 32)]


def fp4_values(codes, width):
    """Two codes a byte, the low half first."""
    codes = np.frombuffer(codes, dtype=np.uint8).reshape(-1, width // 2)
    return E2M1[np.stack((codes & 15, codes >> 4), axis=-1).reshape(-1, width)]


def latent_values(raw, n_rows, width):
    n_codes = n_rows * width // 2
    scales = torch.frombuffer(bytearray(raw[n_codes:]), dtype=torch.float8_e4m3fn).float().numpy()
    scales = scales.reshape(n_rows, width // 16)
    return fp4_values(raw[:n_codes], width) * np.repeat(scales, 16, axis=1)


def key_values(raw, n_rows, width):
    n_codes = n_rows * width // 2
    exponents = np.frombuffer(raw[n_codes:], dtype=np.uint8).astype(int) - 127
    scales = 2.0 ** exponents.reshape(n_rows, width // 32)
    return fp4_values(raw[:n_codes], width) * np.repeat(scales, 32, axis=1)


def test_the_bytes_are_the_codes_of_the_values_that_others_cache(tmp_path):
    expected = load_file(GOLDEN / "expected.safetensors")
    publish(GOLDEN, tmp_path / "kv", expected["input_ids"].tolist())
    engine = with_store(GOLDEN, tmp_path / "kv")
    streams = engine.store.streams
    engine.close()
    ((_, payload),) = [r for r in records(tmp_path / "kv") if r[0].kind == Kind.BLOCK]
    assert np.frombuffer(payload[:512], "<u4").tolist() == expected["input_ids"].tolist()[:128]
    start, n_values, n_flipped = 512, 0, 0
    for stream in streams:
        raw = payload[start : start + stream.block_bytes]
        start += stream.block_bytes
        kind, layer = stream.name.split(".")
        n_rows = {"2": 64, "4": 128}[layer]
        if kind == "latent":
            found, name = latent_values(raw, n_rows, 64), f"compressed_kv.{layer}"
        else:
            found, name = key_values(raw, n_rows, 32), f"index_keys.{layer}"
        theirs = expected[name].squeeze(0).float().numpy()[:n_rows]
        assert found.shape == theirs.shape
        n_values += found.size
        n_flipped += int((~np.isclose(found, theirs, rtol=1e-6, atol=0)).sum())
    assert start == len(payload)
    assert n_values == 192 * (64 + 32)
    assert n_flipped <= n_values // 1000
