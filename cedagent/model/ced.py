"""V41Model: a DeepSeek-V4.1 checkpoint (report, overview): both halves and what joins them.

Knows weights and arithmetic, in float32 on the stored weights' values; every state is handed in.
The draft layers and the vision tower of the release are not read.

Letters: T rows, S streams, D hidden, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ced_kernels.ordered.kernel_set import OrderedKernels, OrderedReference
from ced_kernels.ordered.norm import ordered_rms_norm
from cedagent.model.block import Block
from cedagent.model.decoder import Decoder
from cedagent.model.encoder import Encoder, Outputs
from cedagent.model.engram import NgramHash
from cedagent.model.engram_map import load_token_map
from cedagent.model.hyper import collapse
from cedagent.model.release import ReleaseCheckpoint
from cedagent.model.rope import Ropes
from cedagent.model.v41_config import V41Config


class V41Model:
    """One loaded model of family deepseek_v41."""

    def __init__(
        self,
        model_dir: Path,
        config: V41Config,
        checkpoint: ReleaseCheckpoint,
        *,
        kernels: OrderedKernels | None = None,
    ) -> None:
        """Read the weights; `kernels` None takes the reference ones.

        Raises ConfigError or WeightsError.
        """
        self.kernels = kernels = OrderedReference() if kernels is None else kernels
        self.config = config
        self.checkpoint = checkpoint
        ropes = Ropes(config)
        decoder = [
            Block(checkpoint, config, layer=layer, ropes=ropes, kernels=kernels)
            for layer in range(config.n_encoder_layers, config.num_hidden_layers)
        ]
        self.encoder = Encoder(
            checkpoint, config, ropes=ropes, kernels=kernels, decoder_source=decoder[0]
        )
        self.decoder = Decoder(config, decoder)
        self._embedding = checkpoint.matrix("embed.weight")
        self._head = checkpoint.matrix("head.weight")
        self._norm = checkpoint.vector("norm.weight")
        self._hashes: NgramHash | None = None
        self.token_map_digest: str | None = None
        """SHA-256 (hex) of Engram's token map, None without Engram."""
        if config.engram_layer_ids:
            token_map = load_token_map(model_dir, config)
            self._hashes = NgramHash(config, token_map)
            self.token_map_digest = hashlib.sha256(json.dumps(token_map).encode()).hexdigest()

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Return embeddings [T, D] float32 of token ids."""
        return self._embedding.rows(torch.tensor(ids, dtype=torch.int64))

    def hashes(self, ids: Sequence[int], start: int, stop: int) -> Tensor | None:
        """Return Engram hash ids [T, layers, columns] of positions start .. stop - 1, if any."""
        return None if self._hashes is None else self._hashes.of(ids, start, stop)

    def logits(self, outputs: Outputs) -> Tensor:
        """Return logits [T, V] float32 of the last layer's outputs."""
        hidden = collapse(outputs.streams, outputs.pre)
        normed = ordered_rms_norm(self.kernels, hidden, self._norm, eps=self.config.rms_norm_eps)
        return self.kernels.product(normed, self._head.transposed())
