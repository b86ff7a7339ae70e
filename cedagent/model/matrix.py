"""Matrix: a stored weight matrix and its float32 values.

Stored as bf16 or float32, as fp8 with ue8m0 scales, or as packed fp4 with ue8m0 scales, as the
release's safetensors have them (technical report arXiv 2609.19969; tensors NAME.weight and
NAME.scale). Knows the formats, no model. Values are a function of the stored bytes alone: kept or
dequantised, whole or by rows, they have the same bits.

Letters: N rows, K columns, T rows asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ced_kernels.block_codes import BlockCodes, BlockFormat
from cedagent.errors import WeightsError

BLOCK = 32
FP8 = BlockFormat("e4m3", BLOCK, "ue8m0", least_amax=448 * 2.0**-126)
FP4 = BlockFormat("e2m1", BLOCK, "ue8m0", least_amax=6 * 2.0**-126)

_NOT_A_NUMBER = 0xFF


class Matrix:
    """One matrix of N rows and K columns. Nothing is read before the first use."""

    def __init__(
        self,
        name: str,
        stored: Callable[[], tuple[Tensor, Tensor | None]],
        *,
        rows_per_scale: int = 1,
        keep: bool,
    ) -> None:
        """Take what opens the stored tensors (codes, scales), views of a mapped file.

        codes [N, K] bfloat16 or float32 without scales, [N, K] float8_e4m3fn, or [N, K/2] int8
        (two fp4 codes a byte); scales [ceil(N / rows_per_scale), K/32] uint8. With `keep` each
        call reads the stored bytes again, else values stay in memory once they were asked for.
        """
        self.name = name
        # Opened anew at each use: thousands of small views that stay pin the heap that large
        # values leave behind (seen: 2.3 GB of it after 1.2 GB of experts, 0.01 GB without).
        self._stored = stored
        self._rows_per_scale = rows_per_scale
        self._keep = keep
        self._transposed: Tensor | None = None

    def transposed(self) -> Tensor:
        """Return it as [K, N] float32, contiguous, as ordered products read it.

        Not to be written to. Raises WeightsError.
        """
        if self._transposed is not None:
            return self._transposed
        codes, scales = self._stored()
        if scales is not None and self._rows_per_scale > 1:
            scales = scales.repeat_interleave(self._rows_per_scale, 0)[: len(codes)]
        transposed = self._decode(codes, scales).t().contiguous()
        if not self._keep:
            self._transposed = transposed
        return transposed

    def value(self) -> Tensor:
        """Return the matrix, [N, K] float32, a view of `transposed`; raises WeightsError."""
        return self.transposed().t()

    def rows(self, index: Tensor) -> Tensor:
        """Return rows [T, K] float32 by their numbers [T] int64; reads no others.

        Raises WeightsError.
        """
        codes, scales = self._stored()
        if scales is None:
            return self._decode(codes[index], None)
        # Not every type of codes can be gathered, bytes can.
        gathered = codes.view(torch.uint8)[index].view(codes.dtype)
        return self._decode(gathered, scales[index // self._rows_per_scale])

    def _decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        if scales is None:
            return codes.float()
        if bool((scales == _NOT_A_NUMBER).any()):
            raise WeightsError(
                f"tensor {self.name}: a scale is not a number (byte 255); fetch the file again"
            )
        stored = BlockCodes(codes.view(torch.uint8), scales)
        return (FP4 if codes.dtype is torch.int8 else FP8).decode(stored)
