"""The healing stage: a student learns to be its parent, on plain text, without labels.

Divergence of the logits at temperature 2, and distance of the last hidden states; on a share of the
texts the decoder runs as a bounded replay and the decoding after it, as it will be served. Knows no
optimiser. Invariant: only global tensors and adapters change: the decoder's, where the recipe says
so those of windowed encoder layers, and whatever adapters an earlier stage left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random

import torch
from torch import Tensor

from cedagent.errors import UsageError
from cedagent.upcycle.data.plain import plain_example
from cedagent.upcycle.training.adapters import Rounding, TrainedWeights, layer_matrices
from cedagent.upcycle.training.batches import Batch, Example, Room, TokenStream, plain_passes
from cedagent.upcycle.training.losses import distance, distillation, divergence
from cedagent.upcycle.training.pair import Pair
from cedagent.upcycle.training.recipe import Recipe

TEMPERATURE = 2.0
"""Of the divergence: the parent's unlikely tokens count for more."""

_HELD_OUT_PASSES = 2
_AFTER_PREFILL = 32
"""Rows after a prefill end that are scored as one figure."""


class Heal:
    """Self-distillation on plain text."""

    def __init__(
        self,
        pair: Pair,
        recipe: Recipe,
        *,
        plain: Iterator[Example],
        held_out: Iterator[Example],
        room: Room,
        rounding: Rounding | None = None,
    ) -> None:
        """Take endless examples, and held-out ones; raises UsageError where nothing trains."""
        config = pair.config
        layers = list(range(config.n_encoder_layers, config.num_hidden_layers))
        if recipe.encoder_adapters:
            layers += config.encoder_windowed_layers
        if not layers:
            raise UsageError(
                "nothing to heal: the model has no decoder layers, and adapters on windowed "
                "encoder layers were not asked for"
            )
        pair.weights.adapt(layer_matrices(layers), rank=recipe.rank, seed=recipe.seed)
        self._pair, self._recipe, self._room = pair, recipe, room
        self._plain = plain
        self._held_out = fixed_passes(held_out, room)
        self.rounding = rounding

    @property
    def weights(self) -> TrainedWeights:
        """The student's tensors."""
        return self._pair.weights

    def steps(self) -> Iterator[Sequence[Batch]]:
        """Yield each step's passes, from the first step on."""
        recipe, stream = self._recipe, TokenStream(self._plain)
        for step in count():
            draw = Random(f"{recipe.seed}/{step}")
            yield plain_passes(stream, n_tokens=recipe.batch_tokens, room=self._room, draw=draw)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Return a pass's loss, its divergence and its distance."""
        mine, theirs = self._pair.both_rows(batch.to(self._pair.device))
        head = self._pair.student.head
        apart = distillation(mine, theirs, head, temperature=TEMPERATURE)
        hidden = distance(mine, theirs)
        figures = {"divergence": float(apart.detach()), "hidden": float(hidden.detach())}
        return apart + self._recipe.hidden_weight * hidden, figures

    def held_out(self) -> dict[str, float]:
        """Return the KL to the parent on held-out text, whole and after a bounded prefill."""
        return closeness(self._pair, self._held_out)


def fixed_passes(examples: Iterator[Example], room: Room) -> list[Batch]:
    """Return passes over the same tokens of held-out text twice: whole, and replayed."""
    longest = min(max(room.lengths), room.pass_tokens, room.config.max_position_embeddings)
    n_tokens = _HELD_OUT_PASSES * (room.pass_tokens // longest) * longest
    tokens = TokenStream(examples).take(n_tokens)
    found = []
    for share in (0.0, 1.0):
        same = Room(room.config, room.pass_tokens, replay_share=share, lengths=(longest,))
        stream = TokenStream(iter([plain_example(tokens)]))
        found += plain_passes(stream, n_tokens=n_tokens, room=same, draw=Random(0))
    return found


@torch.no_grad()
def closeness(pair: Pair, passes: Sequence[Batch]) -> dict[str, float]:
    """Return KL(parent || student) in nats: of rows of whole texts past the window, and of the
    first rows after a bounded prefill."""
    config = pair.config
    found: dict[str, list[float]] = {"kl": [], "kl_after_prefill": []}
    for batch in passes:
        batch = batch.to(pair.device)
        rows = divergence(*pair.both_rows(batch), pair.student.head).tolist()
        (some,) = batch.documents
        # A stretch that starts within the text is a replay of R * W rows and what follows.
        replayed = config.replay_windows * config.decoder_window
        ends = {stretch.start + replayed for stretch in batch.stretches if stretch.start}
        for place, value in zip((batch.places % some.length).tolist(), rows, strict=True):
            if not ends and place >= config.decoder_window:
                found["kl"].append(value)
            elif any(end - 1 <= place < end + _AFTER_PREFILL for end in ends):
                found["kl_after_prefill"].append(value)
    return {name: sum(values) / len(values) for name, values in found.items() if values}
