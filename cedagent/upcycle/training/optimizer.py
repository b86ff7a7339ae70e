"""AdamW over named parameters in two groups, with moments that can be written down.

Knows no schedule and no loss: a step is told what share of the highest learning rate to take.
Invariant: restored values and moments go on as if nothing had come between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

_CLIP = 1.0
"""Largest norm of a step's gradient."""
_BETAS = (0.9, 0.95)
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """Steps without weight decay, their gradient clipped."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        whole: Collection[str],
        lr: float,
        lr_whole: float,
    ) -> None:
        """Take parameters by name; those in `whole` have a learning rate of their own."""
        self._parameters = parameters
        rates = {name: lr_whole if name in whole else lr for name in parameters}
        self._adam = torch.optim.AdamW(
            [
                {
                    "params": [p for name, p in parameters.items() if rates[name] == rate],
                    "most": rate,
                }
                for rate in dict.fromkeys(rates.values())
            ],
            betas=_BETAS,
            weight_decay=0.0,
        )

    def forget_gradients(self) -> None:
        """Drop what was added up."""
        self._adam.zero_grad(set_to_none=True)

    def clip(self) -> float:
        """Shorten the gradient to the largest norm allowed; return the norm that it had."""
        return float(torch.nn.utils.clip_grad_norm_(self._parameters.values(), _CLIP))

    def step(self, share: float) -> None:
        """Take one step with this share of the highest learning rates."""
        for group in self._adam.param_groups:
            group["lr"] = group["most"] * share
        self._adam.step()

    def tensors(self) -> dict[str, Tensor]:
        """Return values and moments by name."""
        made = {f"value/{name}": p for name, p in self._parameters.items()}
        for name, parameter in self._parameters.items():
            # Empty before the first step.
            state = self._adam.state.get(parameter, {})
            made |= {f"{m}/{name}": state[m] for m in _MOMENTS if state}
        return made

    def restore(self, tensors: Mapping[str, Tensor], *, steps: int) -> None:
        """Take back what `tensors` returned after this many steps."""
        for name, parameter in self._parameters.items():
            with torch.no_grad():
                parameter.copy_(tensors[f"value/{name}"])
            if steps:
                moments = {m: tensors[f"{m}/{name}"].to(parameter.device) for m in _MOMENTS}
                # Every parameter has a gradient in every step, so all have made as many.
                self._adam.state[parameter] = {"step": torch.tensor(float(steps)), **moments}
