"""LlamaModel: the whole network of one model directory, both halves and what joins them.

Knows weights and arithmetic; every state is handed in. E_out crosses from the encoder to the
decoder in its stored type, bfloat16 on the int8 path and float32 on the reference path, so that
live rows and restored ones are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ced_kernels.int8_product import Int8Impl, choose_impl
from ced_kernels.kernel_set import KernelSet, ReferenceKernels
from cedagent.errors import ConfigError
from cedagent.model.config import WeightsDtype
from cedagent.model.llama.cache import KvCache
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.decoder import Decoder
from cedagent.model.llama.encoder import Encoder
from cedagent.model.llama.layer import Arithmetic
from cedagent.model.llama.linear import load_linear
from cedagent.model.llama.rope import Rope
from cedagent.model.llama.weights import EMBEDDING, HEAD, Checkpoint, tensor_shapes


class LlamaModel:
    """One loaded model; `precision` "int8" is served, "float32" is the reference path."""

    def __init__(
        self,
        model_dir: Path,
        *,
        precision: WeightsDtype = "int8",
        impl: Int8Impl | None = None,
        kernels: KernelSet | None = None,
    ) -> None:
        """Read the weights; `impl` None takes `int_mm` where this CPU does it exactly.

        `kernels` None takes the references; others serve int8 alone. A set belongs to one model.
        Raises ConfigError or WeightsError.
        """
        self.config = config = LlamaConfig.load(model_dir)
        if precision == "int8" and config.weights_dtype != "int8":
            raise ConfigError(
                f"{model_dir}: expected int8 weights, got {config.weights_dtype} only; convert "
                "the checkpoint again, or load it with precision float32"
            )
        self.precision: WeightsDtype = precision
        self.impl: Int8Impl = choose_impl() if impl is None else impl
        if kernels is None:
            kernels = ReferenceKernels(self.impl if precision == "int8" else None)
        self.kernels = kernels
        self.checkpoint = checkpoint = Checkpoint(model_dir, config, dtype=precision)
        rope = Rope(config)
        self._embedding = load_linear(checkpoint, [EMBEDDING], impl=self.impl)
        self._head = (
            load_linear(checkpoint, [HEAD], impl=self.impl)
            if HEAD in tensor_shapes(config, precision)
            else self._embedding
        )
        self._norm = checkpoint.vector("model.norm.weight")
        arithmetic = Arithmetic(self.impl, kernels)
        self.encoder = Encoder(checkpoint, config, rope=rope, arithmetic=arithmetic)
        self.decoder = Decoder(checkpoint, config, rope=rope, arithmetic=arithmetic)

    @property
    def e_out_dtype(self) -> torch.dtype:
        """The type in which E_out is kept."""
        return torch.bfloat16 if self.precision == "int8" else torch.float32

    def new_cache(self, *, base: int = 0) -> KvCache:
        """Return an empty cache for one layer."""
        return KvCache(self.config, int8=self.precision == "int8", base=base)

    def embed(self, ids: Sequence[int]) -> Tensor:
        """Return embeddings [T, D] float32 of token ids."""
        return self._embedding.rows(torch.tensor(ids, dtype=torch.int64))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [T, V] float32 of last hidden states [T, D]."""
        normed = self.kernels.norm_rows(hidden, self._norm, eps=self.config.rms_norm_eps)
        return self.kernels.dequantize(self._head(normed))
