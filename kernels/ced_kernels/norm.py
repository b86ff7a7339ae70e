"""RMS norm: y = x / sqrt(mean(x^2) + eps) * weight, in float32.

Rows are independent: a row's bits do not depend on the rows beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Return the RMS-normalised rows of x, scaled by weight.

    x [..., D] float32, weight [D] float32 -> [..., D] float32. Formula: Zhang and Sennrich 2019,
    arXiv 1910.07467, equation 4, with eps inside the root as Llama has it.
    """
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
