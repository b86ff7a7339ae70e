"""Attention of one V4.1 layer around its softmax (report, multi-query latent attention and CSA2).

Queries are low-rank; one row per token is key and value for all heads, its last channels turned by
adjacent pairs. Window rows are rounded to fp8 as trained. Since values carry rotated channels, the
output is turned back by the query's own angle before the grouped low-rank output projection.

Letters: T rows, D hidden, R query rank, H heads, d head dimension, g output groups, n window
keys, N stored rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ced_kernels.block_codes import WINDOW, BlockCodes
from ced_kernels.ordered.kernel_set import OrderedKernels, PickedRows
from ced_kernels.ordered.norm import ordered_rms_norm
from ced_kernels.rope import rotate_pairs
from cedagent.model.forward import Forward
from cedagent.model.release import ReleaseCheckpoint
from cedagent.model.rope import Angles
from cedagent.model.v41_config import V41Config


class Attention:
    """Tensors layers.N.attn.{wq_a, q_norm, wq_b, wkv, kv_norm, wo_a, wo_b, attn_sink}."""

    def __init__(
        self,
        checkpoint: ReleaseCheckpoint,
        config: V41Config,
        *,
        layer: int,
        kernels: OrderedKernels,
    ) -> None:
        """Read the layer's projections."""
        self._kernels = kernels
        prefix = f"layers.{layer}.attn."
        self._wq_a = checkpoint.matrix(prefix + "wq_a.weight")
        self._q_norm = checkpoint.vector(prefix + "q_norm.weight")
        self._wq_b = checkpoint.matrix(prefix + "wq_b.weight")
        self._wkv = checkpoint.matrix(prefix + "wkv.weight")
        self._kv_norm = checkpoint.vector(prefix + "kv_norm.weight")
        self._wo_a = checkpoint.matrix(prefix + "wo_a.weight")
        self._wo_b = checkpoint.matrix(prefix + "wo_b.weight")
        self._sinks = checkpoint.vector(prefix + "attn_sink")
        self._n_heads = config.num_attention_heads
        self._width = config.head_dim
        self._n_groups = config.o_groups
        self._eps = config.rms_norm_eps

    def low_rank(self, x: Tensor) -> Tensor:
        """Return low-rank queries [T, R] of rows [T, D]; the indexer reads them too."""
        return ordered_rms_norm(
            self._kernels,
            self._kernels.product(x, self._wq_a.transposed()),
            self._q_norm,
            eps=self._eps,
        )

    def window_rows(self, x: Tensor, angles: Angles) -> BlockCodes:
        """Return the window rows of x [T, D], as stored."""
        rows = ordered_rms_norm(
            self._kernels,
            self._kernels.product(x, self._wkv.transposed()),
            self._kv_norm,
            eps=self._eps,
        )
        return WINDOW.encode(rotate_pairs(rows, *angles))

    def __call__(
        self, q_low: Tensor, window: Tensor, stored: Tensor, angles: Angles, rows: Forward
    ) -> Tensor:
        """Return the output [T, D] of queries [T, R] over window [n, d] and picked rows [N, d]."""
        q = self._kernels.product(q_low, self._wq_b.transposed())
        q = q.view(-1, self._n_heads, self._width)
        picks = rows.shared.picks
        if picks is None:
            picks = torch.empty(rows.n, 0, dtype=torch.int64)
        attended = self._kernels.attend(
            rotate_pairs(q, *angles),
            window,
            rows.seen,
            PickedRows(stored, picks),
            sinks=self._sinks,
            scale=self._width**-0.5,
        )
        return self._project(rotate_pairs(attended, *angles, inverse=True))

    def _project(self, attended: Tensor) -> Tensor:
        """Return [T, D] of [T, H, d]: each group of heads to its own low rank, then one map."""
        parts = attended.reshape(len(attended), self._n_groups, -1)
        # The stored rows of wo_a are the groups' outputs, one group after the other.
        maps = self._wo_a.transposed().tensor_split(self._n_groups, dim=1)
        low = [self._kernels.product(parts[:, g], maps[g]) for g in range(self._n_groups)]
        return self._kernels.product(torch.cat(low, dim=-1), self._wo_b.transposed())
