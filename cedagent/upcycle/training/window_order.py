"""Which encoder layers can be windowed: a parent compared with itself, some layers seeing W tokens.

First each layer alone. Then, greedily, at every step the one of the cheapest few left that costs
the least beside those windowed already: layers stand in for each other, so the sum of what each
costs alone does not tell (SmolLM2-135M, ten of 20 layers: KL 0.14 in this order, 0.20 for ten that
were chosen by hand from single figures). Knows ids, no text, and trains nothing. Invariant: the
figures are those of the parent's own weights, past the first two windows, where windows are felt.

Letters: N rows of all documents, M of them compared, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cedagent.errors import UsageError
from cedagent.model.llama.config import LlamaConfig
from cedagent.upcycle.source import Parent, Progress, silent
from cedagent.upcycle.training.adapters import frozen_weights
from cedagent.upcycle.training.attention import Documents
from cedagent.upcycle.training.forward import TrainModel
from cedagent.upcycle.training.losses import divergence

_TRIED = 6
"""Layers that are tried at every step."""
_EVERY = 4
"""One position of so many is compared: a head that is large beside its layers takes long."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Some encoder layers that see the whole text; the others see W tokens."""

    global_layers: tuple[int, ...]
    kl: float
    """KL(parent || parent with these windows), nats per token."""


@dataclass(frozen=True, slots=True)
class WindowOrder:
    """What windows cost, before any training."""

    alone: tuple[float, ...]
    """The KL of each encoder layer as the only windowed one."""
    choices: tuple[Choice, ...]
    """From all encoder layers global down to one."""
    n_positions: int
    """Tokens that the figures are means over."""


def document_length(config: LlamaConfig) -> int:
    """Return how many tokens a document has to have: 768 or four windows, if the context allows.

    Raises UsageError when it does not allow more than two windows.
    """
    window, context = config.decoder_window, config.max_position_embeddings
    length = min(max(768, 4 * window), context)
    if length <= 2 * window:
        raise UsageError(
            f"a window of {window} tokens: expected less than half of the checkpoint's context of "
            f"{context} tokens"
        )
    return length


@torch.no_grad()
def window_order(
    parent: Parent,
    documents: Sequence[Sequence[int]],
    *,
    config: LlamaConfig,
    dtype: torch.dtype = torch.float32,
    progress: Progress = silent,
) -> WindowOrder:
    """Return the order in which the encoder layers of `config` are best windowed.

    E and W are the config's, all else the parent's. `documents` are of equal length, more than 2 W;
    products are taken in `dtype`.
    """
    n_encoder_layers = config.n_encoder_layers
    steps = _steps(n_encoder_layers)
    progress("compare", 0, steps)
    compared = _Comparison(parent, documents, config, dtype)
    done = 0

    def cost(layer: int) -> float:
        nonlocal done
        found = compared.kl_with(layer)
        done += 1
        progress("compare", done, steps)
        return found

    alone = tuple(cost(layer) for layer in range(n_encoder_layers))
    left = sorted(range(n_encoder_layers), key=alone.__getitem__)
    choices = [Choice(tuple(range(n_encoder_layers)), 0.0)]
    while len(left) > 1:
        is_first = len(left) == n_encoder_layers
        costs = {
            layer: alone[layer] if is_first else cost(layer)
            for layer in left[: 1 if is_first else _TRIED]
        }
        best = min(costs, key=costs.__getitem__)
        left.remove(best)
        compared.take(best)
        choices.append(Choice(tuple(sorted(left)), costs[best]))
    return WindowOrder(alone, tuple(choices), compared.n_positions)


def _steps(n_layers: int) -> int:
    """Return how many sets of layers are compared."""
    return n_layers + sum(min(_TRIED, n_left) for n_left in range(2, n_layers))


class _Comparison:
    """The parent over some documents, with more and more layers windowed."""

    def __init__(
        self,
        parent: Parent,
        documents: Sequence[Sequence[int]],
        config: LlamaConfig,
        dtype: torch.dtype,
    ) -> None:
        """Run the parent as it is."""
        length = len(documents[0])
        weights = frozen_weights(parent.tensors, dtype=dtype, device=torch.device("cpu"))
        self._model = TrainModel(replace(config, max_position_embeddings=length), weights)
        self._documents = [Documents(0, len(documents), length)]
        self._windowed = frozenset[int]()
        ids = torch.tensor(documents, dtype=torch.int64)
        rows = torch.arange(ids.numel()).view(ids.shape)
        self._kept = rows[:, 2 * config.decoder_window :: _EVERY].flatten()
        self._before = [self._model.embed(ids.flatten())]
        """Rows [N, D] before each of the first layers, all that is windowed taken into account."""
        for layer in range(config.n_encoder_layers):
            self._before.append(self._run(self._before[layer], layer, layer + 1))
        self._parents = self._last_rows(self._before[-1], config.n_encoder_layers)

    @property
    def n_positions(self) -> int:
        """Tokens that are compared."""
        return len(self._kept)

    def kl_with(self, layer: int) -> float:
        """Return the KL with this layer windowed, too: what is below it stays as it is."""
        mine = self._last_rows(self._before[layer], layer, more=(layer,))
        return float(divergence(mine, self._parents, self._model.head).mean())

    def take(self, layer: int) -> None:
        """Window this layer from now on."""
        self._windowed |= {layer}
        for above in range(layer, len(self._before) - 1):
            self._before[above + 1] = self._run(self._before[above], above, above + 1)

    def _last_rows(self, x: Tensor, first: int, *, more: Sequence[int] = ()) -> Tensor:
        """Return compared rows [M, D] after the final norm, from rows before layer `first`."""
        n_layers = self._model.config.num_hidden_layers
        return self._model.normed(self._run(x, first, n_layers, more=more)[self._kept])

    def _run(self, x: Tensor, first: int, last: int, *, more: Sequence[int] = ()) -> Tensor:
        return self._model.encode(
            x, self._documents, first=first, last=last, windowed=self._windowed.union(more)
        )
