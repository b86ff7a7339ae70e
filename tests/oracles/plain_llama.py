"""A plain Llama forward and small random parents, written from the published definition.

Shares no code with cedagent. GGUF files are written the way llama.cpp's converter does: Q and K
rows reordered, one by one, from half-split to interleaved RoPE pairs.
"""

import json

import gguf
import torch
from safetensors.torch import save_file

GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@torch.no_grad()
def plain_logits(tensors, config, ids, *, interleaved=False):
    """Logits [T, V] of every position, in the dtype of the tensors.

    `interleaved` takes Q and K rows as llama.cpp stores them and turns neighbouring channels.
    """
    n_heads, n_kv = config["num_attention_heads"], config["num_key_value_heads"]
    d, eps = config["head_dim"], config["rms_norm_eps"]
    n = len(ids)
    frequencies = config["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.arange(n, dtype=torch.float64)[:, None] * frequencies
    embedding = tensors["model.embed_tokens.weight"]
    cos, sin = angles.cos().to(embedding.dtype), angles.sin().to(embedding.dtype)

    def norm(x, name):
        return tensors[name] * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)

    def turn(x):  # [H, T, d]
        if interleaved:
            even, odd = x[..., 0::2], x[..., 1::2]
            return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
        first, second = x[..., : d // 2], x[..., d // 2 :]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    h = embedding[torch.tensor(ids)]
    hidden_keys = torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1)
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        x = norm(h, name + "input_layernorm.weight")
        q, k, v = (
            (x @ tensors[f"{name}self_attn.{w}_proj.weight"].T).view(n, -1, d).transpose(0, 1)
            for w in "qkv"
        )
        k, v = (y.repeat_interleave(n_heads // n_kv, 0) for y in (turn(k), v))
        scores = turn(q) @ k.transpose(1, 2) / d**0.5
        mixed = scores.masked_fill(hidden_keys, float("-inf")).softmax(-1) @ v
        h = h + mixed.transpose(0, 1).flatten(1) @ tensors[name + "self_attn.o_proj.weight"].T
        x = norm(h, name + "post_attention_layernorm.weight")
        gate = x @ tensors[name + "mlp.gate_proj.weight"].T
        up = x @ tensors[name + "mlp.up_proj.weight"].T
        h = h + (gate * torch.sigmoid(gate) * up) @ tensors[name + "mlp.down_proj.weight"].T
    head = tensors.get("lm_head.weight", embedding)
    return norm(h, "model.norm.weight") @ head.T


def random_parent(
    *, layers=5, hidden=96, heads=3, kv_heads=1, head_dim=32, vocab=384, tied=True, seed=0
):
    """(config, tensors) of a random Llama; sizes are multiples of 32, as GGUF blocks need."""
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 160,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "hidden_act": "silu",
        "eos_token_id": 2,
    }
    random = torch.Generator().manual_seed(seed)

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=random) * 1.4 * columns**-0.5

    def vector():
        return 1 + 0.1 * torch.randn(hidden, generator=random)

    tensors = {"model.embed_tokens.weight": matrix(vocab, hidden), "model.norm.weight": vector()}
    if not tied:
        tensors["lm_head.weight"] = matrix(vocab, hidden)
    for layer in range(layers):
        name = f"model.layers.{layer}."
        tensors |= {
            name + "input_layernorm.weight": vector(),
            name + "self_attn.q_proj.weight": matrix(heads * head_dim, hidden),
            name + "self_attn.k_proj.weight": matrix(kv_heads * head_dim, hidden),
            name + "self_attn.v_proj.weight": matrix(kv_heads * head_dim, hidden),
            name + "self_attn.o_proj.weight": matrix(hidden, heads * head_dim),
            name + "post_attention_layernorm.weight": vector(),
            name + "mlp.gate_proj.weight": matrix(160, hidden),
            name + "mlp.up_proj.weight": matrix(160, hidden),
            name + "mlp.down_proj.weight": matrix(hidden, 160),
        }
    return config, tensors


def write_hf_folder(folder, config, tensors, tokenizer, *, shards=1):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names, weight_map = sorted(tensors), {}
    for i in range(shards):
        shard = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        save_file(part, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def gguf_name(name):
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top or not name.startswith("model.layers."):
        return top.get(name, name)
    layer, inner = name.removeprefix("model.layers.").split(".", 1)
    stem, kind = inner.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES.get(stem, stem)}.{kind}"


def interleaved_rows(weight, n_heads):
    """Row i and row i + d/2 of each head become rows 2i and 2i + 1."""
    d = len(weight) // n_heads
    rows = []
    for head in range(n_heads):
        for i in range(d // 2):
            rows += [head * d + i, head * d + i + d // 2]
    return weight[rows]


def write_gguf(
    path, config, tensors, tokenizer, *, arch="llama", quantisation="F32", fields=(), pre="smollm"
):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    saved = json.loads(tokenizer.to_str())
    vocab = sorted(saved["model"]["vocab"], key=saved["model"]["vocab"].get)
    control = {token["content"] for token in saved["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocab)
    writer.add_token_types([3 if token in control else 1 for token in vocab])
    writer.add_token_merges([" ".join(pair) for pair in saved["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    for key, value in fields:
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_uint32(key, value)
    for name, weight in tensors.items():
        if name.endswith("q_proj.weight"):
            weight = interleaved_rows(weight, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            weight = interleaved_rows(weight, config["num_key_value_heads"])
        kind = gguf.GGMLQuantizationType[quantisation if weight.ndim == 2 else "F32"]
        data = gguf.quantize(weight.numpy(), kind)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
