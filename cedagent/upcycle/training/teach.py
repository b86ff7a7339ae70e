"""The tool stage: a student learns what to write in transcripts, and stays close to its parent.

Cross-entropy on the trained tokens of transcripts, each output run after a bounded replay as it
will be served or the text as a whole; added to it, divergence from the parent on plain text, so
that it does not forget. A step's loss is the sum of the two means, whatever their numbers of
tokens. Knows no format and no tool. Invariant: only global tensors and adapters change, those of
encoder layers among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from random import Random

import torch
from torch import Tensor

from cedagent.upcycle.training.adapters import Rounding, TrainedWeights, layer_matrices
from cedagent.upcycle.training.batches import (
    Batch,
    Example,
    Room,
    TokenStream,
    plain_passes,
    transcript_passes,
)
from cedagent.upcycle.training.heal import TEMPERATURE, closeness, fixed_passes
from cedagent.upcycle.training.losses import cross_entropy, distillation, predictions
from cedagent.upcycle.training.pair import Pair
from cedagent.upcycle.training.recipe import Recipe

_HELD_OUT_PASSES = 4


class Teach:
    """Transcripts, and plain text beside them."""

    def __init__(
        self,
        pair: Pair,
        recipe: Recipe,
        *,
        transcripts: Iterator[Example],
        plain: Iterator[Example],
        held_out_transcripts: Iterator[Example],
        held_out_plain: Iterator[Example],
        room: Room,
        rounding: Rounding | None = None,
    ) -> None:
        """Take endless examples, and held-out ones."""
        layers = range(pair.config.num_hidden_layers)
        pair.weights.adapt(layer_matrices(layers), rank=recipe.rank, seed=recipe.seed)
        self._pair, self._recipe, self._room = pair, recipe, room
        self._transcripts, self._plain = transcripts, plain
        self._held_out_plain = fixed_passes(held_out_plain, room)
        self._held_out = transcript_passes(
            held_out_transcripts,
            n_tokens=_HELD_OUT_PASSES * room.pass_tokens,
            room=replace(room, replay_share=1.0),
            draw=Random(0),
        )
        self.rounding = rounding

    @property
    def weights(self) -> TrainedWeights:
        """The student's tensors."""
        return self._pair.weights

    def steps(self) -> Iterator[Sequence[Batch]]:
        """Yield each step's passes, from the first step on."""
        recipe, room, stream = self._recipe, self._room, TokenStream(self._plain)
        n_plain = round(recipe.batch_tokens * recipe.plain_share)
        for step in count():
            draw = Random(f"{recipe.seed}/{step}")
            found: list[Batch] = []
            if n_plain < recipe.batch_tokens:
                n_tokens = recipe.batch_tokens - n_plain
                found += transcript_passes(
                    self._transcripts, n_tokens=n_tokens, room=room, draw=draw
                )
            if n_plain:
                found += plain_passes(stream, n_tokens=n_plain, room=room, draw=draw)
            yield found

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Return a pass's loss under the name of what it is."""
        batch = batch.to(self._pair.device)
        head = self._pair.student.head
        if batch.kind == "predict":
            rows = self._pair.student_rows(batch)
            surprise = cross_entropy(rows, batch.targets, batch.weights, head)
            return surprise, {"surprise": float(surprise.detach())}
        mine, theirs = self._pair.both_rows(batch)
        apart = distillation(mine, theirs, head, temperature=TEMPERATURE)
        return apart, {"divergence": float(apart.detach())}

    @torch.no_grad()
    def held_out(self) -> dict[str, float]:
        """Return surprise and share of right tokens and outputs in held-out transcripts, each token
        predicted from the true ones before it, and the KL to the parent on held-out plain text.

        A token that could be another is neither right nor wrong."""
        head = self._pair.student.head
        surprise, right, n_judged, outputs = 0.0, 0, 0, list[bool]()
        for batch in self._held_out:
            batch = batch.to(self._pair.device)
            rows = self._pair.student_rows(batch)
            mean = cross_entropy(rows, batch.targets, batch.weights, head)
            surprise += float(mean) * batch.share
            is_judged = batch.weights >= 1
            is_right = predictions(rows, head) == batch.targets
            right += int((is_right & is_judged).sum())
            n_judged += int(is_judged.sum())
            outputs += [bool(p.all()) for p in by_output(is_right | ~is_judged, batch.places)]
        figures = {
            "surprise": surprise,
            "tokens_right": right / n_judged,
            "outputs_right": sum(outputs) / len(outputs),
        }
        return figures | closeness(self._pair, self._held_out_plain)


def by_output(rows: Tensor, places: Tensor) -> Sequence[Tensor]:
    """Return rows [M, ...] of each output: these stand beside each other, with gaps between."""
    gaps = (places.diff() != 1).nonzero().flatten() + 1
    return torch.tensor_split(rows, gaps.cpu())
