"""A CED forward written from its definition, position by position, in float64: the oracle.

Reads the float32 weights itself and shares no code with the engine.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file


class NaiveCed:
    def __init__(self, model_dir: Path) -> None:
        self.config = json.loads((model_dir / "config.json").read_text())
        raw = load_file(model_dir / "model.safetensors")
        self.weights = {name: tensor.double() for name, tensor in raw.items()}

    def norm(self, x, name):
        mean = x.square().mean(-1, keepdim=True)
        return x / (mean + self.config["rms_norm_eps"]).sqrt() * self.weights[name]

    def rotate(self, x, positions):
        d = x.shape[-1]
        theta = self.config["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = positions.double().unsqueeze(-1) * theta
        a, b = x[..., : d // 2], x[..., d // 2 :]
        cos, sin = angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def heads(self, x, name):
        return (x @ self.weights[name].t()).view(len(x), -1, self.config["head_dim"])

    def softmax_rows(self, q, k, v, visible):
        """q [T, Hq, d]; k, v [N, H, d]; visible [T, N] -> [T, Hq * d]."""
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("thd,nhd->htn", q, k) * self.config["head_dim"] ** -0.5
        scores = scores.masked_fill(~visible, float("-inf"))
        return torch.einsum("htn,nhd->thd", scores.softmax(-1), v).flatten(1)

    def forward(self, ids, *, replay_start=0):
        """Logits of rows replay_start .. P-1 with the decoder's windows clipped there."""
        config, p = self.config, len(ids)
        w = config["decoder_window"]
        positions = torch.arange(p)
        x = self.weights["model.embed_tokens.weight"][torch.tensor(ids)]
        causal = positions.unsqueeze(1) >= positions
        near = causal & (positions.unsqueeze(1) - positions < w)
        for layer in range(config["n_encoder_layers"]):
            seen = causal if layer in config["encoder_global_layers"] else near

            def encoder_attention(q, k, v, seen=seen):
                return self.softmax_rows(q, k, v, seen)

            x = self.layer(x, layer, positions, encoder_attention)
        e_out = x
        rows = positions[replay_start:]
        h = e_out[replay_start:]
        for layer in range(config["n_encoder_layers"], config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            normed = self.norm(e_out, prefix + "global_norm.weight")
            global_k = self.rotate(self.heads(normed, prefix + "global_k.weight"), positions)
            global_v = self.heads(normed, prefix + "global_v.weight")
            t, j = rows.unsqueeze(1), rows
            window = (j > t - w) & (j <= t)
            far = positions < torch.maximum(torch.tensor(replay_start), t - w + 1)
            visible = torch.cat((far, window), dim=1)

            def attention(q, k, v, gk=global_k, gv=global_v, seen=visible):
                return self.softmax_rows(q, torch.cat((gk, k)), torch.cat((gv, v)), seen)

            h = self.layer(h, layer, rows, attention)
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return self.norm(h, "model.norm.weight") @ head.t()

    def layer(self, x, layer, positions, attention):
        prefix = f"model.layers.{layer}."
        normed = self.norm(x, prefix + "input_layernorm.weight")
        q, k, v = (self.heads(normed, f"{prefix}self_attn.{name}_proj.weight") for name in "qkv")
        mixed = attention(self.rotate(q, positions), self.rotate(k, positions), v)
        x = x + mixed @ self.weights[prefix + "self_attn.o_proj.weight"].t()
        normed = self.norm(x, prefix + "post_attention_layernorm.weight")
        gate, up = (
            normed @ self.weights[f"{prefix}mlp.{n}_proj.weight"].t() for n in ("gate", "up")
        )
        down = torch.nn.functional.silu(gate) * up
        return x + down @ self.weights[prefix + "mlp.down_proj.weight"].t()
