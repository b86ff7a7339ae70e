"""Rounds a matrix as int8 serving will: smoothed, per output channel, and back.

How far smoothing moved each input channel is read off a model directory, which holds the tensors
both ways. Rows need no such factor: a row's codes do not change with its scale. Knows no gradient.
Invariant: without error of rounding the matrix is the one that came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ced_kernels.rows import quantize_rows
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import Checkpoint


def rounding_of(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], config: LlamaConfig
) -> Callable[[str, Tensor], Tensor]:
    """Return a function of (name, float32 matrix [N, K]) that gives what int8 makes of it.

    `checkpoint` is the model's int8 one, `tensors` its float32 ones.
    """
    columns: dict[str, Tensor] = {}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."

        def of_norm(name: str, prefix: str = prefix) -> Tensor:
            """Return the factor [K] of what the norm feeds."""
            name = f"{prefix}{name}.weight"
            return _ratio(tensors[name], checkpoint.vector(name))

        def of_rows(name: str, before: Tensor) -> Tensor:
            """Return the factor [N] of what the matrix's rows feed."""
            _, scale = checkpoint.matrix(name)
            assert scale is not None
            # Up to a factor of the whole matrix, which changes no code: a scale is a 127th of the
            # row's largest value.
            return _ratio((tensors[name] * before).abs().amax(1), scale)

        qkv, gate_up = of_norm("input_layernorm"), of_norm("post_attention_layernorm")
        columns |= {f"{attention}{name}_proj.weight": qkv for name in "qkv"}
        columns |= {f"{mlp}{name}_proj.weight": gate_up for name in ("gate", "up")}
        columns[mlp + "down_proj.weight"] = of_rows(mlp + "up_proj.weight", gate_up)
        # The query heads of a group read the same values.
        output = of_rows(attention + "v_proj.weight", qkv).view(config.num_key_value_heads, 1, -1)
        group = config.num_attention_heads // config.num_key_value_heads
        columns[attention + "o_proj.weight"] = output.expand(-1, group, -1).flatten()
        if layer >= config.n_encoder_layers:
            columns |= {f"{prefix}global_{n}.weight": of_norm("global_norm") for n in "kv"}

    def rounded(name: str, matrix: Tensor) -> Tensor:
        column = columns[name].to(matrix.device)
        return quantize_rows(matrix * column).values() / column

    return rounded


def _ratio(before: Tensor, after: Tensor) -> Tensor:
    """Return before / after; the least of it where both are 0, in a channel that is never used.

    Smoothing shrinks the weights that such a channel meets to next to nothing, too.
    """
    used = after != 0
    ratio = before / after
    return torch.where(used, ratio, ratio[used].min())
