"""LlamaFamily: a `ced_llama` model behind the engine's family door.

Knows which of its config, weights and arithmetic decide what an encoded row is. Decoder weights and
replay settings do not: rows do not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from ced_kvstore import Stream
from cedagent.engine.family import Mode
from cedagent.engine.kernel_choice import KernelChoice, choose_kernels
from cedagent.engine.llama.decode import decode
from cedagent.engine.llama.encode import encode_tile
from cedagent.engine.llama.replay import replay, score
from cedagent.engine.llama.state import SequenceState
from cedagent.engine.llama.streams import declared_streams, pack, unpack
from cedagent.engine.llama.windows import LlamaWindows
from cedagent.model.config import WeightsDtype
from cedagent.model.llama.ced import LlamaModel
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import weight_groups

_ENCODED_FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "n_encoder_layers",
    "encoder_global_layers",
)  # fmt: skip
"""Config fields that the encoder reads."""


class LlamaFamily:
    """One loaded `ced_llama` model with the replay settings of its engine."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        mode: Mode = "bounded",
        replay_windows: int | None = None,
        notices: Iterable[str] = (),
    ) -> None:
        """Take a loaded model; `replay_windows` None takes the config's."""
        self.model = model
        self.mode: Mode = mode
        self.replay_windows = replay_windows or model.config.replay_windows
        self.notices = list(notices)
        windowed = model.config.encoder_windowed_layers
        self._windows = LlamaWindows(model) if windowed else None

    @classmethod
    def load(
        cls,
        model_dir: Path,
        config: LlamaConfig,
        *,
        precision: WeightsDtype,
        mode: Mode,
        replay_windows: int | None,
        kernels: KernelChoice,
    ) -> LlamaFamily:
        """Read the weights; raises UsageError's kinds, EngineError when "native" cannot be had."""
        chosen, notice = choose_kernels(kernels, head_dim=config.head_dim, precision=precision)
        notices = [] if notice is None else [notice]
        model = LlamaModel(model_dir, precision=precision, kernels=chosen)
        if precision == "int8" and model.impl != "int_mm":
            notices.append(
                "this CPU's int8 product is not exact (no VNNI); the slower exact int8_fp32 runs"
            )
        return cls(model, mode=mode, replay_windows=replay_windows, notices=notices)

    @property
    def windows(self) -> LlamaWindows | None:
        """The encoder windows; None where every encoder layer is global."""
        return self._windows

    @property
    def config(self) -> LlamaConfig:
        """The model's config."""
        return self.model.config

    def new_state(self) -> SequenceState:
        """Return the state of a sequence of which nothing is known."""
        return SequenceState(self.model)

    def encode_tile(self, state: SequenceState, ids: Sequence[int], *, tile: int) -> None:
        """Encode tile `tile` of the sequence and write its rows; a whole tile is settled by it."""
        encode_tile(self.model, state, ids, tile=tile)

    def replay(self, state: SequenceState, *, n_tokens: int) -> tuple[Tensor, int]:
        """Return (next-token logits [V] float32, rows run through the first decoder layer)."""
        return replay(
            self.model,
            state,
            n_tokens=n_tokens,
            mode=self.mode,
            replay_windows=self.replay_windows,
        )

    def score(self, state: SequenceState, *, n_tokens: int) -> Tensor:
        """Return logits [P, V] float32 of every position, computed as mode `full` does."""
        return score(self.model, state, n_tokens=n_tokens)

    def decode(
        self, state: SequenceState, ids: Sequence[int], *, pos: int, prefill_end: int
    ) -> Tensor:
        """Run the token ids[pos] and return the logits [V] float32 that follow it."""
        return decode(self.model, state, token=ids[pos], pos=pos, prefill_end=prefill_end)

    def streams(self) -> list[Stream]:
        """Return the streams of this model with the bytes of one block in each."""
        return declared_streams(self.model)

    def pack(self, state: SequenceState, first_block: int, n_blocks: int) -> dict[str, Tensor]:
        """Return the settled rows of these blocks as uint8 [n_blocks, block_bytes] per stream."""
        return pack(self.model, state, first_block, n_blocks)

    def unpack(
        self,
        state: SequenceState,
        buffers: dict[str, Tensor],
        first_block: int,
        n_blocks: int,
    ) -> None:
        """Write the first `n_blocks` of the buffers as settled rows from `first_block` on."""
        unpack(state, buffers, first_block, n_blocks)

    def fingerprint(self) -> dict[str, str | int | None]:
        """Return config fields, encoder weights, stored types and arithmetic of encoded rows."""
        model, config = self.model, self.model.config
        int8 = model.precision == "int8"
        fields: dict[str, str | int | None] = {}
        # Where every layer is global, the window is the decoder's alone.
        windows = ("decoder_window",) if config.encoder_windowed_layers else ()
        for name in (*_ENCODED_FIELDS, *windows):
            value = getattr(config, name)
            fields[f"config.{name}"] = value.hex() if isinstance(value, float) else str(value)
        for group, names in weight_groups(config).items():
            if group == "embedding" or _is_encoder_layer(group, config.n_encoder_layers):
                fields[f"weights.{group}"] = model.checkpoint.digest(names)
        fields["streams.kv"] = "int8 codes, float16 scale per row and head" if int8 else "float32"
        fields["streams.e_out"] = str(model.e_out_dtype).removeprefix("torch.")
        fields["weights.dtype"] = model.precision
        fields["ops.product"] = "int8_exact" if int8 else "float32"
        fields["ops.kernels"] = model.kernels.name
        return fields

    def weights_digest(self) -> str:
        """Return the hex digests of all weight groups, one after the other."""
        groups = weight_groups(self.model.config).values()
        return "".join(self.model.checkpoint.digest(names) for names in groups)


def _is_encoder_layer(group: str, n_encoder_layers: int) -> bool:
    return group.startswith("layers.") and int(group.removeprefix("layers.")) < n_encoder_layers
