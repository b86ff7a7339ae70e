"""The forward of a `ced_llama` model that gradients flow through: whole documents, many at once.

The same config, tensor names, norm, rotation and masks as serving, over rows of many documents
instead of tiles and caches; what is multiplied is whatever tensors it is given, in their type.
Knows no loss, no adapter and no file. Invariant: in float32 its logits are those of
`Engine.logits`, and those after a bounded replay where the stretches say so.

Letters: N rows of all documents, M rows of all stretches, D hidden, H key heads, d head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ced_kernels.norm import rms_norm
from ced_kernels.rope import rotate
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.rope import Rope
from cedagent.upcycle.training.attention import Documents, Layout, Stretch, whole

_Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class TrainModel:
    """One model over a mapping of named tensors, which may change between calls."""

    def __init__(self, config: LlamaConfig, weights: Mapping[str, Tensor]) -> None:
        """Take tensors under the names of `tensor_shapes(config)`.

        Norms and `model.embed_tokens.weight` are float32; matrices, and the head under
        `lm_head.weight`, which a tied model has here, too, are multiplied in their own type.
        """
        self.config = config
        self.weights = weights
        self._rope = Rope(config)

    @property
    def head(self) -> Tensor:
        """The head's matrix [V, D]."""
        return self.weights["lm_head.weight"]

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings [N, D] float32 of ids [N]."""
        return F.embedding(ids, self.weights["model.embed_tokens.weight"])

    def encode(
        self,
        x: Tensor,
        documents: Sequence[Documents],
        *,
        first: int = 0,
        last: int | None = None,
        windowed: Collection[int] | None = None,
    ) -> Tensor:
        """Run encoder layers `first` .. `last` - 1 (E by default) on rows x [N, D].

        Those in `windowed` (by default the config's) see the last W tokens alone.
        """
        config = self.config
        seeing_near = config.encoder_windowed_layers if windowed is None else windowed
        layout = Layout(whole(documents), rope=self._rope, device=x.device)
        for layer in range(first, config.n_encoder_layers if last is None else last):
            window = config.decoder_window if layer in seeing_near else None
            x = self._layer(x, layer, layout, partial(layout.attend, window=window))
        return x

    def decode(
        self, e_out: Tensor, documents: Sequence[Documents], stretches: Sequence[Stretch]
    ) -> Tensor:
        """Run the decoder on the rows of `stretches`: E_out [N, D] -> hidden [M, D]."""
        config = self.config
        everything = Layout(whole(documents), rope=self._rope, device=e_out.device)
        layout = Layout(stretches, rope=self._rope, device=e_out.device)
        x = layout.rows(e_out)
        # RMSNorm without its weight, which is all that layers differ in.
        ones = torch.ones_like(e_out[0])
        shared = rms_norm(e_out, ones, eps=config.rms_norm_eps)
        for layer in range(config.n_encoder_layers, config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            normed = shared * self.weights[prefix + "global_norm.weight"]
            keys, values = (self._heads(normed, f"{prefix}global_{name}.weight") for name in "kv")
            far = rotate(keys, everything.cos, everything.sin).to(keys.dtype), values
            attention = partial(layout.attend, window=config.decoder_window, far=far)
            x = self._layer(x, layer, layout, attention)
        return x

    def normed(self, hidden: Tensor) -> Tensor:
        """Return last hidden states [M, D] after the final norm."""
        return self._norm(hidden, "model.norm.weight")

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [M, V] float32 of last hidden states [M, D]."""
        return F.linear(self.normed(hidden).to(self.head.dtype), self.head).float()

    def _layer(self, x: Tensor, layer: int, layout: Layout, attention: _Attention) -> Tensor:
        prefix = f"model.layers.{layer}."
        normed = self._norm(x, prefix + "input_layernorm.weight")
        q, k, v = (self._heads(normed, f"{prefix}self_attn.{name}_proj.weight") for name in "qkv")
        q, k = (rotate(part, layout.cos, layout.sin).to(v.dtype) for part in (q, k))
        x = x + self._linear(attention(q, k, v), prefix + "self_attn.o_proj.weight")
        normed = self._norm(x, prefix + "post_attention_layernorm.weight")
        gate, up = (self._linear(normed, f"{prefix}mlp.{n}_proj.weight") for n in ("gate", "up"))
        return x + self._linear(F.silu(gate) * up, prefix + "mlp.down_proj.weight")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.weights[name], eps=self.config.rms_norm_eps)

    def _heads(self, x: Tensor, name: str) -> Tensor:
        y = self._linear(x, name)
        return y.view(len(x), -1, self.config.head_dim)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[name]
        return F.linear(x.to(weight.dtype), weight)


def parent_of(config: LlamaConfig) -> LlamaConfig:
    """Return the config of the decoder-only model that one of `config` was converted from."""
    n_layers = config.num_hidden_layers
    return replace(config, n_encoder_layers=n_layers, encoder_global_layers=tuple(range(n_layers)))
