"""Ridge regression from a layer's input to the keys and values that it should give.

Pure linear algebra, in closed form and float64. Invariant: with no rows, or with infinite strength,
the answer is the prior; with many rows and little strength it is the least-squares fit.
"""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 0.1
"""Pull towards the prior, as a share of the inputs' mean square.

SmolLM2-135M, E = 20, KL at positions 256-1024 of prose in fp32 / int8: 0.0249 / 0.0565 at 0.01,
0.0240 / 0.0544 here, 0.0238 / 0.0541 at 0.3; towards zero instead of the prior 0.0258 / 0.0576.
"""


def fit_towards(x: Tensor, y: Tensor, prior: Tensor, *, ridge: float = RIDGE) -> Tensor:
    """Return W [M, D] that minimises |x W^T - y|^2 + lambda |W - prior|^2.

    x [T, D], y [T, M], prior [M, D]; lambda = ridge times the mean diagonal entry of x^T x. The
    result is float32.
    """
    x, y, start = x.double(), y.double(), prior.double()
    gram = x.t() @ x
    strength = max(ridge * float(gram.diagonal().mean()), torch.finfo(torch.float64).tiny)
    gram.diagonal().add_(strength)
    # Solving for the step away from the prior keeps the right-hand side small.
    residual = y - x @ start.t()
    step = torch.cholesky_solve(x.t() @ residual, torch.linalg.cholesky(gram))
    return (start + step.t()).float()
