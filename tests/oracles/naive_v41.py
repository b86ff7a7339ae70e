"""The text path of DeepSeek-V4.1 from its definition, token by token, in float64: the oracle.

Reads config.json and safetensors itself, rounds with its own code, runs every layer on every token
and shares no code with the model or the kernels. `run` leaves every stage in a trace; given another
program's trace it computes each stage from that program's values of the stages before it, so that a
difference belongs to one stage and does not cascade.

Letters: T tokens, S streams, D hidden, H heads, d head dimension, G groups, h index heads.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E4M3 = [m * 2.0**-9 for m in range(8)]
E4M3 += [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)][:-1]


def nearest(x, grid):
    """The number of `grid` (rising from 0) nearest to each |x|; of two as near, the even entry."""
    values = torch.tensor(grid, dtype=torch.float64)
    size = x.abs().clamp(max=grid[-1])
    above = torch.searchsorted(values, size).clamp(min=1)
    below = above - 1
    up, down = values[above] - size, size - values[below]
    upper = (up < down) | ((up == down) & (above % 2 == 0))
    return values[torch.where(upper, above, below)] * x.sign()


def power_of_two_at_least(x):
    """2^ceil(log2 x), from the exponent that frexp gives: no logarithm is rounded."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.ones_like(x), exponent - (mantissa == 0.5).int())


def blocks_of(x, size):
    return x.unflatten(-1, (-1, size))


def round_window(x):
    """fp8 in blocks of 32 with power-of-two scales."""
    parts = blocks_of(x, 32)
    amax = parts.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = power_of_two_at_least(amax / 448)
    return (nearest(parts / scale, E4M3) * scale).flatten(-2)


def round_latent(x):
    """fp4 in blocks of 16 with fp8 scales."""
    parts = blocks_of(x, 16)
    amax = parts.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-9)
    scale = nearest(amax / 6, E4M3)
    return (nearest(parts / scale, E2M1) * scale).flatten(-2)


def round_index(x):
    """fp4 in blocks of 32 with power-of-two scales: index keys and index queries."""
    parts = blocks_of(x, 32)
    amax = parts.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126)
    scale = power_of_two_at_least(amax / 6)
    return (nearest(parts / scale, E2M1) * scale).flatten(-2)


def read_weights(model_dir: Path):
    """Every weight as float64, whatever it is stored as."""
    raw = {}
    for file in sorted(model_dir.glob("*.safetensors")):
        if file.name != "expected.safetensors":
            raw |= load_file(file)
    weights = {}
    for name, value in raw.items():
        if name.endswith(".scale"):
            continue
        scale = raw.get(name.removesuffix(".weight") + ".scale")
        if scale is None:
            weights[name] = value.double()
            continue
        if value.dtype is torch.int8:
            codes = value.view(torch.uint8).int()
            codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
            grid = torch.tensor(E2M1, dtype=torch.float64)
            value = grid[codes & 7] * torch.where(codes & 8 > 0, -1.0, 1.0).double()
        factor = 2.0 ** (scale.view(torch.uint8).double() - 127)
        per_row = value.shape[0] // factor.shape[0]
        factor = factor.repeat_interleave(per_row, 0).repeat_interleave(32, 1)
        weights[name] = value.double() * factor
    return weights


class NaiveV41:
    def __init__(self, model_dir: Path, *, token_map=None, changes=None):
        self.config = json.loads((model_dir / "config.json").read_text())["text_config"]
        self.config |= changes or {}
        self.weights = read_weights(model_dir)
        self.token_map = token_map
        if token_map is None and (model_dir / "engram_token_map.json").exists():
            self.token_map = json.loads((model_dir / "engram_token_map.json").read_text())

    # Section 1.2: what a layer attends to.

    def ratio(self, layer):
        return self.config["compress_ratios"][layer]

    def source(self, layer, field):
        return max(s for s in self.config[field] if s <= layer)

    # Section 1.4: attention.

    def norm(self, x, name=None):
        mean = x.square().mean(-1, keepdim=True)
        x = x / (mean + self.config["rms_norm_eps"]).sqrt()
        return x if name is None else x * self.weights[name + ".weight"]

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].t()

    def frequencies(self, layer):
        """Radians per position of each pair: two bases; YaRN in compressed layers alone."""
        width, compressed = self.config["qk_rope_head_dim"], self.ratio(layer) > 0
        base = self.config["compress_rope_theta" if compressed else "rope_theta"]
        found = []
        yarn = self.config["rope_scaling"] if compressed else None
        for pair in range(width // 2):
            plain = base ** (-2 * pair / width)
            if yarn is None:
                found.append(plain)
                continue
            original = yarn["original_max_position_embeddings"]
            fast, slow = (
                width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
                for turns in (yarn["beta_fast"], yarn["beta_slow"])
            )
            low, high = max(math.floor(fast), 0), min(math.ceil(slow), width - 1)
            if low == high:
                high += 0.001
            part = min(max((pair - low) / (high - low), 0), 1)
            found.append(plain / yarn["factor"] * part + plain * (1 - part))
        return torch.tensor(found, dtype=torch.float64)

    def rope(self, x, layer, positions, sign=1):
        """Turn the last channels of x [T, ..., d] as complex numbers (even, odd)."""
        width = self.config["qk_rope_head_dim"]
        angle = sign * positions.double().unsqueeze(-1) * self.frequencies(layer)
        angle = angle.view(len(x), *[1] * (x.ndim - 2), width // 2)
        pairs = torch.view_as_complex(x[..., -width:].unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle))
        return torch.cat((x[..., :-width], turned.flatten(-2)), dim=-1)

    def low_rank_queries(self, x, layer):
        return self.norm(self.linear(x, f"layers.{layer}.attn.wq_a"), f"layers.{layer}.attn.q_norm")

    def window_rows(self, x, layer):
        rows = self.norm(self.linear(x, f"layers.{layer}.attn.wkv"), f"layers.{layer}.attn.kv_norm")
        return round_window(self.rope(rows, layer, torch.arange(len(x))))

    def attention(self, low, window, stored, picks, layer):
        """picks: one list of stored rows per token -> [T, D]."""
        config, prefix = self.config, f"layers.{layer}.attn."
        n_heads, width = config["num_attention_heads"], config["head_dim"]
        positions = torch.arange(len(low))
        q = self.linear(low, prefix + "wq_b").view(-1, n_heads, width)
        q = self.rope(q, layer, positions)
        sinks = self.weights[prefix + "attn_sink"]
        out = torch.zeros_like(q)
        for t in range(len(q)):
            keys = window[max(0, t - config["sliding_window"] + 1) : t + 1]
            if picks[t]:
                keys = torch.cat((keys, stored[picks[t]]))
            logits = torch.cat((q[t] @ keys.t() * width**-0.5, sinks.unsqueeze(1)), dim=1)
            out[t] = logits.softmax(-1)[:, :-1] @ keys
        out = self.rope(out, layer, positions, sign=-1)
        groups = config["o_groups"]
        maps = self.weights[prefix + "wo_a.weight"].view(groups, config["o_lora_rank"], -1)
        low = [out.view(len(q), groups, -1)[:, g] @ maps[g].t() for g in range(groups)]
        return self.linear(torch.cat(low, dim=-1), prefix + "wo_b")

    # Section 1.5: compressor and indexer.

    def latents(self, x, layer):
        """Complete groups of `ratio` tokens -> [G, d], before rope and rounding."""
        ratio, prefix = self.ratio(layer), f"layers.{layer}.attn.compressor."
        kv = self.linear(x, prefix + "wkv")
        if ratio > 1:
            gate, groups = self.linear(x, prefix + "wgate"), []
            for start in range(0, len(x) - ratio + 1, ratio):
                share = gate[start : start + ratio].softmax(0)
                groups.append((share * kv[start : start + ratio]).sum(0))
            kv = torch.stack(groups) if groups else kv[:0]
        return self.norm(kv, prefix + "norm")

    def stored_latents(self, latents, layer):
        positions = torch.arange(len(latents)) * self.ratio(layer)
        return round_latent(self.rope(latents, layer, positions))

    def index_keys(self, latents, layer):
        prefix = f"layers.{layer}.attn.indexer."
        keys = self.norm(self.linear(latents, prefix + "wk"), prefix + "k_norm")
        return round_index(self.rope(keys, layer, torch.arange(len(keys)) * self.ratio(layer)))

    def index_queries(self, low, layer):
        q = self.linear(low, f"layers.{layer}.attn.indexer.wq_b")
        q = q.view(len(low), self.config["index_n_heads"], -1)
        return round_index(self.rope(q, layer, torch.arange(len(q))))

    def index_scores(self, x, q, keys, layer):
        """[T, N]; what a token may not see yet has no score: see `visible`."""
        config = self.config
        weights = self.linear(x, f"layers.{layer}.attn.indexer.weights_proj")
        weights = weights * config["index_n_heads"] ** -0.5
        dots = torch.einsum("thk,nk->thn", q, keys).clamp(min=0)
        return torch.einsum("th,thn->tn", weights, dots) * config["index_head_dim"] ** -0.5

    def visible(self, t, layer):
        return (t + 1) // self.ratio(layer)

    def blocks(self, scores, layer):
        """Per token the set of blocks that later index sources may pick from."""
        size, n_blocks = self.config["candidate_block_size"], self.config["candidate_topk_blocks"]
        kept = []
        for t in range(len(scores)):
            seen = self.visible(t, layer)
            best = {
                b: float(scores[t, b * size : seen][:size].max()) for b in range(-(-seen // size))
            }
            if best:
                best[max(best)] = math.inf
            kept.append(set(sorted(best, key=lambda b: (-best[b], b))[:n_blocks]))
        return kept

    def allowed(self, n_tokens, layer, blocks):
        """Per token the rows that it may pick."""
        size = self.config["candidate_block_size"]
        rows = [list(range(self.visible(t, layer))) for t in range(n_tokens)]
        candidate = self.config["candidate_source_layer_id"]
        if 0 <= candidate < layer:
            rows = [[j for j in seen if j // size in blocks[t]] for t, seen in enumerate(rows)]
        return rows

    def picks(self, scores, allowed):
        """Of equal scores the oldest row wins."""
        chosen = []
        for t, rows in enumerate(allowed):
            best = sorted(rows, key=lambda j: (-float(scores[t, j]), j))
            chosen.append(sorted(best[: self.config["index_topk"]]))
        return chosen

    # Section 1.6: experts, hyper-connections, Engram.

    def gate(self, x, layer):
        """(weights [T, k], experts [T, k]) by falling biased score."""
        prefix, config = f"layers.{layer}.ffn.gate.", self.config
        logits = self.linear(x, prefix[:-1]) / config["gate_temp"]
        scores = torch.log1p(torch.exp(-logits.abs())) + logits.clamp(min=0)
        scores = scores.sqrt()
        order = (scores + self.weights[prefix + "bias"]).argsort(
            dim=-1, descending=True, stable=True
        )
        chosen = order[:, : config["num_experts_per_tok"]]
        weights = scores.gather(1, chosen)
        if config["norm_topk_prob"]:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * config["routed_scaling_factor"], chosen

    def swiglu(self, x, prefix):
        limit = self.config["swiglu_limit"]
        a = self.linear(x, prefix + "w1").clamp(max=limit)
        b = self.linear(x, prefix + "w3").clamp(-limit, limit)
        return self.linear(a * torch.sigmoid(a) * b, prefix + "w2")

    def experts(self, x, weights, chosen, layer):
        prefix = f"layers.{layer}.ffn."
        out = self.swiglu(x, prefix + "shared_experts.")
        for t in range(len(x)):
            for weight, expert in zip(weights[t], chosen[t].tolist(), strict=True):
                out[t] += weight * self.swiglu(x[t], f"{prefix}experts.{expert}.")
        return out

    def mixes(self, streams, layer, site):
        """(pre [T, S], post [T, S], comb [T, S, S]) of one sublayer."""
        prefix, config = f"layers.{layer}.hc_{site}_", self.config
        n, eps = config["hc_mult"], config["hc_eps"]
        mixed = self.norm(streams.flatten(1)) @ self.weights[prefix + "fn"].t()
        scale, base = self.weights[prefix + "scale"], self.weights[prefix + "base"]
        pre = torch.sigmoid(mixed[:, :n] * scale[0] + base[:n]) + eps
        post = 2 * torch.sigmoid(mixed[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        comb = (mixed[:, 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n)).softmax(-1)
        comb = comb + eps
        for step in range(2 * config["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(1 + step % 2, keepdim=True) + eps)
        return pre, post, comb

    def collapse(self, streams, pre):
        return torch.einsum("tsd,ts->td", streams, pre)

    def expand(self, output, streams, post, comb):
        return torch.einsum("td,tk->tkd", output, post) + torch.einsum(
            "tjd,tjk->tkd", streams, comb
        )

    def hashes(self, ids, layer):
        """Table rows [T, columns] of one Engram layer, in Python integers."""
        config = self.config
        order, heads = config["engram_max_ngram_size"], config["engram_n_heads"]
        bound = max(1, (2**63 - 1) // config["engram_compressed_vocab_size"] // 2)
        draw = np.random.default_rng(10007 * layer).integers(0, bound, size=order, dtype=np.int64)
        odd = [2 * int(value) + 1 for value in draw]
        n_tables, size = (order - 1) * heads, config["engram_vocab_size"]
        primes = []
        while len(primes) < n_tables * len(config["engram_layer_ids"]):
            if size > 1 and all(size % d for d in range(2, math.isqrt(size) + 1)):
                primes.append(size)
            size += 1
        first = config["engram_layer_ids"].index(layer) * n_tables
        primes = primes[first : first + n_tables]
        pad, rows = self.token_map[config["engram_pad_id"]], []
        for t in range(len(ids)):
            rolled, columns = 0, []
            for back in range(order):
                word = self.token_map[ids[t - back]] if t >= back else pad
                rolled ^= word * odd[back]
                columns += [rolled] * heads if back else []
            rows.append([sum(primes[:c]) + value % primes[c] for c, value in enumerate(columns)])
        return torch.tensor(rows)

    def remember(self, streams, ids, layer):
        prefix, width = f"layers.{layer}.engram.", streams.shape[-1]
        read = self.weights[prefix + "embed.weight"][self.hashes(ids, layer)].flatten(1)
        mixed = self.linear(read, prefix + "wkv").unflatten(-1, (-1, width))
        value, out = mixed[:, -1], streams.clone()
        for s in range(streams.shape[1]):
            q = self.norm(streams[:, s]) * self.weights[prefix + "q_weight"][s]
            k = self.norm(mixed[:, s]) * self.weights[prefix + "k_weight"][s]
            dot = (q * k).sum(-1) * width**-0.5
            gate = torch.sigmoid(dot.abs().clamp(min=1e-6).sqrt() * dot.sign())
            out[:, s] += gate.unsqueeze(-1) * value
        return out

    # The whole model.

    def run(self, ids, given=None):
        """Every stage by (name, layer); later ones are computed from those of `given`, if there."""
        trace, given = {}, given or {}

        def stage(name, layer, value):
            trace[name, layer] = value
            other = given.get((name, layer), value)
            return other.double() if isinstance(other, torch.Tensor) else other

        def stage_of(names, layer, values):
            return [stage(n, layer, v) for n, v in zip(names, values, strict=True)]

        config, n_tokens = self.config, len(ids)
        embedded = self.weights["embed.weight"][torch.tensor(ids)]
        streams = embedded.unsqueeze(1).repeat(1, config["hc_mult"], 1)
        pre = torch.zeros(n_tokens, config["hc_mult"], dtype=torch.float64)
        pre[:, 0] = 1
        stored, keys, picks, blocks = {}, {}, [[] for _ in ids], None
        for layer in range(config["num_hidden_layers"]):
            prefix = f"layers.{layer}."
            if layer in config.get("engram_layer_ids", ()):
                streams = stage("remembered", layer, self.remember(streams, ids, layer))
            x = self.norm(self.collapse(streams, pre), prefix + "attn_norm")
            x = stage("entered", layer, x)
            low = stage("low", layer, self.low_rank_queries(x, layer))
            window = stage("window", layer, self.window_rows(x, layer))
            rows = torch.zeros(0, config["head_dim"], dtype=torch.float64)
            if self.ratio(layer):
                if layer in config["kv_source_layer_ids"]:
                    latents = self.latents(x, layer)
                    stored[layer] = stage("latent", layer, self.stored_latents(latents, layer))
                    keys[layer] = stage("key", layer, self.index_keys(latents, layer))
                source = self.source(layer, "kv_source_layer_ids")
                rows = stored[source]
                if layer in config["index_source_layer_ids"]:
                    q = stage("index_query", layer, self.index_queries(low, layer))
                    scores = self.index_scores(x, q, keys[source], layer)
                    scores = stage("score", layer, scores)
                    if layer == config["candidate_source_layer_id"]:
                        blocks = stage("blocks", layer, self.blocks(scores, layer))
                    allowed = self.allowed(n_tokens, layer, blocks)
                    picks = stage("picks", layer, self.picks(scores, allowed))
            mine = picks if self.ratio(layer) else [[] for _ in ids]
            output = self.attention(low, window, rows, mine, layer)
            output = stage("attention", layer, output)
            for site in ("attn", "ffn"):
                if site == "ffn":
                    inner = self.norm(self.collapse(streams, pre), prefix + "ffn_norm")
                    inner = stage("inner", layer, inner)
                    names = ("weights", "chosen")
                    weights, chosen = stage_of(names, layer, self.gate(inner, layer))
                    output = self.experts(inner, weights, chosen.long(), layer)
                    output = stage("experts", layer, output)
                before = streams
                names = [f"{site}_{part}" for part in ("pre", "post", "comb")]
                values = self.mixes(before, layer, site)
                pre, post, comb = stage_of(names, layer, values)
                streams = self.expand(output, before, post, comb)
                streams = stage(f"{site}_streams", layer, streams)
        hidden = self.norm(self.collapse(streams, pre), "norm")
        stage("logits", None, self.linear(hidden, "head"))
        return trace

    def logits(self, ids):
        return self.run(ids)["logits", None]
