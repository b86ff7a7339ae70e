"""A parent and the student that is trained to be like it, on the tensors of one model directory.

The parent is what the directory was converted from: its own layers, every one global, nothing of
the student's global projections. Where the student's encoder is the parent's, one pass serves both.
Knows no loss. Invariant: the parent's logits never change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from cedagent.errors import UsageError
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import Checkpoint, tensor_shapes
from cedagent.upcycle.training.adapters import TrainedWeights, frozen_weights, global_tensors
from cedagent.upcycle.training.batches import Batch
from cedagent.upcycle.training.forward import TrainModel, parent_of


class Pair:
    """Two forwards over shared frozen tensors; the student's trained ones are in `weights`."""

    def __init__(
        self,
        config: LlamaConfig,
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Take the float32 tensors of a converted model; global tensors are trained in full."""
        frozen = frozen_weights(tensors, dtype=dtype, device=device)
        self.config = config
        self.device = device
        self.weights = TrainedWeights(tensors, frozen, full=global_tensors(config))
        self.student = TrainModel(config, self.weights)
        self._parent = TrainModel(parent_of(config), frozen)

    def student_rows(self, batch: Batch, e_out: Tensor | None = None) -> Tensor:
        """Return the scored rows [M, D] after the final norm, with their graph."""
        student = self.student
        if e_out is None:
            e_out = student.encode(student.embed(batch.ids), batch.documents)
        hidden = student.decode(e_out, batch.documents, batch.stretches)
        return student.normed(hidden[batch.rows])

    def both_rows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (student's, parent's) scored rows [M, D] after the final norm."""
        with torch.no_grad():
            parent, last = self._parent, self.config.n_encoder_layers
            e_out = parent.encode(parent.embed(batch.ids), batch.documents, last=last)
            hidden = parent.encode(e_out, batch.documents, first=last)
            theirs = parent.normed(hidden[batch.places])
        mine = self.student_rows(batch, e_out if self._shares_encoder else None)
        return mine, theirs

    @property
    def _shares_encoder(self) -> bool:
        first_decoder = self.config.n_encoder_layers
        is_adapted = any(int(n.split(".")[2]) < first_decoder for n in self.weights.pairs)
        return not is_adapted and not self.config.encoder_windowed_layers


def load_untrained(model_dir: Path) -> tuple[LlamaConfig, dict[str, Tensor]]:
    """Read a converted model's config and float32 tensors.

    Raises UsageError for a model that carries trained weights: its parent cannot be told from it.
    """
    config = LlamaConfig.load(model_dir)
    try:
        origin = json.loads((model_dir / "origin.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        origin = {}
    if isinstance(origin, dict) and origin.get("trained"):
        raise UsageError(
            f"{model_dir} carries trained weights already: expected a model as `cedagent model "
            "convert` makes it; convert the checkpoint again, and go on from a trained file with "
            "--from"
        )
    checkpoint = Checkpoint(model_dir, config, dtype="float32")
    return config, {
        name: checkpoint.vector(name) if len(shape) == 1 else checkpoint.matrix(name)[0]
        for name, shape in tensor_shapes(config).items()
    }
