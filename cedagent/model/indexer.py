"""The indexer: which stored rows a query reads (report, CSA2 with Full and Reindex layers).

A Full layer makes index keys from its compressor's latents; a Reindex layer scores the same keys
with queries of its own. The candidate source also keeps the best blocks of rows; later index
sources pick inside them alone. Keys and queries are rounded to fp4 as trained. Every query is
scored against its source's own keys, at odd lengths too (docs/decisions/0005).

Letters: T rows, D hidden, R query rank, h index heads, k index head dimension, d head dimension,
G groups, N stored rows, K picks.
"""

from __future__ import annotations

from torch import Tensor

from ced_kernels.block_codes import INDEX, BlockCodes
from ced_kernels.index_picks import candidate_blocks, index_scores, keep_candidates, top_picks
from ced_kernels.ordered.kernel_set import OrderedKernels
from ced_kernels.ordered.norm import ordered_rms_norm
from ced_kernels.rope import rotate_pairs
from cedagent.model.forward import Forward
from cedagent.model.release import ReleaseCheckpoint
from cedagent.model.rope import Angles
from cedagent.model.v41_config import V41Config


class Indexer:
    """Queries of one index source layer; tensors layers.N.attn.indexer.{wq_b, weights_proj}."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        layer: int,
        kernels: OrderedKernels,
    ) -> None:
        """Read the layer's indexer."""
        self._kernels = kernels
        prefix = f"layers.{layer}.attn.indexer."
        self._wq = checkpoint.matrix(prefix + "wq_b.weight")
        self._weights = checkpoint.matrix(prefix + "weights_proj.weight")
        self._n_heads = config.index_n_heads
        self._width = config.index_head_dim
        self._ratio = config.ratio(layer)
        self._n_picks = config.index_topk
        self._n_blocks = config.candidate_topk_blocks
        self._block = config.candidate_block_size
        self._is_source = layer == config.candidate_source_layer_id
        self._is_bound = 0 <= config.candidate_source_layer_id < layer

    def pick(self, x: Tensor, q_low: Tensor, keys: Tensor, angles: Angles, rows: Forward) -> None:
        """Leave the picks [T, K] of rows x [T, D] with low-rank queries [T, R] in `rows.shared`.

        keys [N, k] are the stored index keys of the tokens below `rows.stop`.
        """
        q = self._kernels.product(q_low, self._wq.transposed()).view(-1, self._n_heads, self._width)
        q = INDEX.round(rotate_pairs(q, *angles))
        scale = self._width**-0.5 * self._n_heads**-0.5
        weights = self._kernels.product(x, self._weights.transposed()) * scale
        visible = rows.visible(self._ratio)
        scores = index_scores(self._kernels, q, keys, weights, visible=visible)
        shared = rows.shared
        if self._is_source:
            shared.candidates = candidate_blocks(
                scores, visible=visible, n_blocks=self._n_blocks, block=self._block
            )
        elif self._is_bound:
            assert shared.candidates is not None
            scores = keep_candidates(scores, shared.candidates, block=self._block)
        shared.picks = top_picks(scores, n_picks=self._n_picks)


class IndexKeys:
    """Keys of one KV source layer; tensors layers.N.attn.indexer.{wk, k_norm}."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        layer: int,
        kernels: OrderedKernels,
    ) -> None:
        """Read the layer's key projection."""
        self._kernels = kernels
        prefix = f"layers.{layer}.attn.indexer."
        self._wk = checkpoint.matrix(prefix + "wk.weight")
        self._norm = checkpoint.vector(prefix + "k_norm.weight")
        self._eps = config.rms_norm_eps

    def keys(self, latents: Tensor, angles: Angles) -> BlockCodes:
        """Return the stored keys of latents [G, d], turned at their groups' first positions."""
        keys = ordered_rms_norm(
            self._kernels,
            self._kernels.product(latents, self._wk.transposed()),
            self._norm,
            eps=self._eps,
        )
        return INDEX.encode(rotate_pairs(keys, *angles))
