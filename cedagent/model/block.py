"""One V4.1 layer: Engram, attention and experts between hyper-connections (report, overview).

What a layer attends to is decided by table (window only, Full, Reindex, Reuse; V41Config.mode): its
own window always; a source's stored rows where it has a compressed branch; picks of its own where
it is an index source, else those of the last one before it.

Letters: T rows, S streams, D hidden.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ced_kernels.ordered.kernel_set import OrderedKernels
from ced_kernels.ordered.norm import ordered_rms_norm
from cedagent.model.attention import Attention
from cedagent.model.engram import Engram
from cedagent.model.forward import Forward, Shared
from cedagent.model.hyper import HyperConnection, collapse, expand
from cedagent.model.indexer import Indexer
from cedagent.model.moe import MixtureOfExperts
from cedagent.model.release import ReleaseCheckpoint
from cedagent.model.rope import Ropes
from cedagent.model.source import SourceRows
from cedagent.model.stored_rows import StoredRows
from cedagent.model.v41_config import V41Config


class Block:
    """A layer with all its weights but its compressor, which makes rows and not outputs."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        layer: int,
        ropes: Ropes,
        kernels: OrderedKernels,
    ) -> None:
        """Read the layer."""
        self._kernels = kernels
        self.layer = layer
        self._config = config
        self._ropes = ropes
        prefix = f"layers.{layer}."
        self._attention_norm = checkpoint.vector(prefix + "attn_norm.weight")
        self._ffn_norm = checkpoint.vector(prefix + "ffn_norm.weight")
        self._attention_mix = HyperConnection(
            checkpoint, config, layer=layer, site="attn", kernels=kernels
        )
        self._ffn_mix = HyperConnection(
            checkpoint, config, layer=layer, site="ffn", kernels=kernels
        )
        self._attention = Attention(checkpoint, config, layer=layer, kernels=kernels)
        self._experts = MixtureOfExperts(checkpoint, config, layer=layer, kernels=kernels)
        self._engram, self._engram_index = None, 0
        if layer in config.engram_layer_ids:
            self._engram = Engram(checkpoint, config, layer=layer, kernels=kernels)
            self._engram_index = config.engram_layer_ids.index(layer)
        picks = config.mode(layer) in ("full", "reindex")
        self._indexer = Indexer(checkpoint, config, layer=layer, kernels=kernels) if picks else None

    def remember(self, streams: Tensor, hashes: Tensor | None) -> Tensor:
        """Return streams [T, S, D] with the layer's Engram added; hashes [T, layers, columns]."""
        if self._engram is None:
            return streams
        assert hashes is not None
        return self._engram(streams, hashes[:, self._engram_index])

    def enter(self, streams: Tensor, pre: Tensor) -> Tensor:
        """Return the normalised input [T, D] of the attention; a source makes its rows from it."""
        return self._norm(collapse(streams, pre), self._attention_norm)

    def run(
        self,
        streams: Tensor,
        x: Tensor,
        rows: Forward,
        own: StoredRows,
        sources: Mapping[int, SourceRows],
    ) -> tuple[Tensor, Tensor]:
        """Return (streams [T, S, D], pre [T, S]) after the layer; writes its window rows to `own`.

        x [T, D] is what `enter` gave. The rows of its source must be written already.
        """
        config, layer = self._config, self.layer
        angles = self._ropes.angles(layer, rows.start, rows.n)
        q_low = self._attention.low_rank(x)
        own.write(rows.start, self._attention.window_rows(x, angles))
        stored = torch.empty(0, config.head_dim)
        source = config.kv_source(layer)
        if source is None:
            rows = rows.sharing(Shared())
        else:
            kept = sources[source]
            n_rows = rows.stop // kept.ratio
            stored = kept.latents.values(0, n_rows)
            if self._indexer is not None:
                keys = kept.keys.values(0, n_rows)
                self._indexer.pick(x, q_low, keys, angles, rows)
        mixes = self._attention_mix.mixes(streams)
        window = own.values(rows.first_key, rows.stop)
        streams = expand(self._attention(q_low, window, stored, angles, rows), streams, mixes)
        inner = collapse(streams, mixes.pre)
        mixes = self._ffn_mix.mixes(streams)
        output = self._experts(self._norm(inner, self._ffn_norm), rows.routed)
        return expand(output, streams, mixes), mixes.pre

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return ordered_rms_norm(self._kernels, x, weight, eps=self._config.rms_norm_eps)
