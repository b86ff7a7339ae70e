"""RMS norm with an ordered sum: y = x * (1 / sqrt(mean(x^2) + eps)) * weight."""

from __future__ import annotations

import torch
from torch import Tensor

from ced_kernels.ordered.kernel_set import OrderedKernels


def inverse_rms(kernels: OrderedKernels, x: Tensor, *, eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x^2) + eps) of each row: x [M, D] float32 -> [M]."""
    # A root and a division, each rounded: libraries' reciprocal roots differ in the last bit.
    return 1 / torch.sqrt(kernels.row_dots(x, x) / x.shape[1] + eps)


def ordered_rms_norm(
    kernels: OrderedKernels, x: Tensor, weight: Tensor | None, *, eps: float
) -> Tensor:
    """Return the RMS-normalised rows of x [M, D] float32, scaled by weight [D] if there is one.

    Formula: Zhang and Sennrich 2019, arXiv 1910.07467, equation 4, with eps inside the root.
    """
    normed = x * inverse_rms(kernels, x, eps=eps).unsqueeze(1)
    return normed if weight is None else normed * weight
