"""What a stage trains: low-rank adapters beside frozen matrices, and some tensors in full.

An adapted matrix is W + B A with A [r, K] and B [N, r]. The forward multiplies the merged matrix,
rounded to the type of products, as serving does; its gradient passes the rounding unchanged and is
folded into A, B or the full tensor by `collect`. One product for the merged gradient costs what the
four thin products of the usual form cost on a CPU, and the forward knows nothing of adapters.
Invariants: the tensors handed in never change; after `collect` every parameter has a gradient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from cedagent.model.llama.config import LlamaConfig

GLOBAL_TENSORS = ("global_norm", "global_k", "global_v")
"""A decoder layer's tensors that its parent does not have; trained in full."""

_MATRICES = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip

Rounding = Callable[[str, Tensor], Tensor]
"""(name, merged float32 matrix) -> the matrix as it would be served."""


def layer_matrices(layers: Iterable[int]) -> list[str]:
    """Return the names of the seven matrices of each of these layers."""
    return [f"model.layers.{layer}.{name}.weight" for layer in layers for name in _MATRICES]


def global_tensors(config: LlamaConfig) -> list[str]:
    """Return the names of every decoder layer's global tensors."""
    layers = range(config.n_encoder_layers, config.num_hidden_layers)
    return [f"model.layers.{layer}.{name}.weight" for layer in layers for name in GLOBAL_TENSORS]


def frozen_weights(
    tensors: Mapping[str, Tensor], *, dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """Return tensors as `TrainModel` multiplies them: matrices and the head in `dtype`."""
    embedding = "model.embed_tokens.weight"
    made = {
        name: tensor.to(device, dtype if tensor.ndim == 2 and name != embedding else torch.float32)
        for name, tensor in tensors.items()
    }
    made.setdefault("lm_head.weight", tensors[embedding].to(device, dtype))
    return made


class TrainedWeights(dict[str, Tensor]):
    """A model's tensors as its forward takes them; the trained ones made anew by `refresh`."""

    def __init__(
        self, tensors: Mapping[str, Tensor], frozen: Mapping[str, Tensor], *, full: Iterable[str]
    ) -> None:
        """Start with `tensors` (float32) as they are, of which `frozen` holds the product copies;
        the tensors named in `full` are trained whole."""
        super().__init__(frozen)
        self._start = tensors
        self._device = frozen["model.norm.weight"].device
        self._dtype = frozen["lm_head.weight"].dtype
        self.full = {name: self._parameter(tensors[name]) for name in full}
        self.pairs: dict[str, tuple[Tensor, Tensor]] = {}
        """Matrix -> (A [r, K], B [N, r])."""
        self._base: dict[str, Tensor] = {}

    def adapt(self, names: Iterable[str], *, rank: int, seed: int) -> None:
        """Give each of these matrices an adapter that changes nothing yet, unless it has one."""
        for name in names:
            if name in self.pairs:
                continue
            n_out, n_in = self._start[name].shape
            # Its own draws, so that an adapter does not depend on which others there are.
            draw = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7])
            generator = torch.Generator().manual_seed(draw)
            a = (2 * torch.rand(rank, n_in, generator=generator) - 1) * n_in**-0.5
            self._adopt(name, a, torch.zeros(n_out, rank))

    def go_on_from(
        self, full: Mapping[str, Tensor], pairs: Mapping[str, tuple[Tensor, Tensor]]
    ) -> None:
        """Take what was trained before: tensors in full, and adapters (A, B)."""
        for name, values in full.items():
            self.full[name] = self._parameter(values)
        for name, (a, b) in pairs.items():
            self._adopt(name, a, b)

    def parameters(self) -> dict[str, Tensor]:
        """Return every trained tensor by a name of its own, in an order that never changes."""
        made = dict(sorted(self.full.items()))
        for name, (a, b) in sorted(self.pairs.items()):
            made |= {f"{name}.a": a, f"{name}.b": b}
        return made

    def refresh(self, *, rounding: Rounding | None = None) -> None:
        """Make the trained tensors of the forward from the present parameters."""
        with torch.no_grad():
            for name, whole in self.full.items():
                self._put(name, whole, rounding if whole.ndim == 2 else None)
            for name, (a, b) in self.pairs.items():
                self._put(name, torch.addmm(self._base[name], b, a), rounding)

    def collect(self) -> None:
        """Add the gradients of the forward's tensors to those of the parameters, and drop them."""
        with torch.no_grad():
            for name, whole in self.full.items():
                _add(whole, self._taken(name))
            for name, (a, b) in self.pairs.items():
                gradient = self._taken(name)
                _add(a, b.t() @ gradient)
                _add(b, gradient @ a.t())

    def _adopt(self, name: str, a: Tensor, b: Tensor) -> None:
        self.pairs[name] = self._parameter(a), self._parameter(b)
        self._base[name] = self._start[name].to(self._device)

    def _parameter(self, values: Tensor) -> Tensor:
        return values.detach().to(self._device, torch.float32).clone().requires_grad_()

    def _put(self, name: str, merged: Tensor, rounding: Rounding | None) -> None:
        served = merged if rounding is None else rounding(name, merged)
        dtype = self._dtype if merged.ndim == 2 else torch.float32
        self[name] = served.detach().to(dtype, copy=True).requires_grad_()

    def _taken(self, name: str) -> Tensor:
        """Return a leaf's gradient, zero where the pass did without it: texts that fit into the
        window have no use for global keys."""
        leaf = self[name]
        gradient, leaf.grad = leaf.grad, None
        return (torch.zeros_like(leaf) if gradient is None else gradient).float()


def _add(parameter: Tensor, gradient: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient
