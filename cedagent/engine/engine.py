"""Engine: one loaded model, many sequences, perhaps a prefix store. The narrow door.

A lock admits one forward at a time, a tile or a token long. What the store cannot do (full disk,
read-only folder, damaged record) becomes one notice and a miss, never an error in an answer.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from ced_kvstore import Store, StoreError
from cedagent.engine.encode import encode_tile
from cedagent.engine.fingerprint import fingerprint, model_digest
from cedagent.engine.kernel_choice import KernelChoice, choose_kernels
from cedagent.engine.protocol import PrefillUsage, Progress
from cedagent.engine.publish import publish
from cedagent.engine.replay import Mode, score
from cedagent.engine.reuse import Known, take_known
from cedagent.engine.sequence import CedSequence
from cedagent.engine.state import SequenceState
from cedagent.engine.streams import declared_streams
from cedagent.errors import ContextLimitError, UsageError
from cedagent.model.ced import CedModel
from cedagent.model.config import TILE, ModelConfig, WeightsDtype
from cedagent.model.locate import resolve_model


class Engine:
    """A CED model ready to run; `load` makes one, `sequence` opens a sequence on it."""

    def __init__(
        self,
        model: CedModel,
        model_dir: Path,
        *,
        store: Store | None = None,
        mode: Mode = "bounded",
        replay_windows: int | None = None,
    ) -> None:
        """Take a loaded model and an open store; `load` is the usual way."""
        self.model = model
        self.model_dir = model_dir
        self.store = store
        self.mode: Mode = mode
        self.replay_windows = replay_windows or model.config.replay_windows
        self.notices: list[str] = []
        """One-line warnings for the user, in the order in which they came up."""
        self._lock = threading.RLock()
        self._open: weakref.WeakSet[CedSequence] = weakref.WeakSet()
        self._digest: str | None = None
        self.take_notice(None if store is None else store.notice)

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        kv: str | Path | None = None,
        precision: WeightsDtype = "int8",
        mode: Mode = "bounded",
        replay_windows: int | None = None,
        max_kv_bytes: int | None = None,
        kernels: KernelChoice = "auto",
    ) -> Engine:
        """Load a model by name or directory, with the prefix store in folder `kv` if given.

        `precision` "float32" is the reference path. `mode` and `replay_windows` say how many rows
        a replay runs (see docs/structure.md). `kernels` "auto" takes compiled ones where a compiler
        and the CPU allow. Raises UsageError and its kinds, EngineError when "native" cannot be had.
        """
        if mode not in ("bounded", "exact", "full"):
            raise UsageError(f"mode must be bounded, exact or full, got {mode!r}")
        if precision not in ("int8", "float32"):
            raise UsageError(f"precision must be int8 or float32, got {precision!r}")
        if replay_windows is not None and replay_windows < 1:
            raise UsageError(f"replay_windows must be at least 1, got {replay_windows}")
        if kv is not None and not str(kv):
            raise UsageError("kv must name a folder, got an empty text; None goes without a store")
        if max_kv_bytes is not None and max_kv_bytes < 0:
            raise UsageError(f"max_kv_bytes must not be negative, got {max_kv_bytes}")
        model_dir = resolve_model(model)
        chosen, notice = choose_kernels(kernels, ModelConfig.load(model_dir), precision=precision)
        loaded = CedModel(model_dir, precision=precision, kernels=chosen)
        store, refusal = None, None
        if kv is not None:
            try:
                store = Store.open(
                    Path(kv).expanduser(),
                    fingerprint=fingerprint(loaded, model_dir),
                    streams=declared_streams(loaded),
                    max_bytes=max_kv_bytes,
                )
            except StoreError as error:
                refusal = f"the prefix store is not used: {error}"
        engine = cls(loaded, model_dir, store=store, mode=mode, replay_windows=replay_windows)
        engine.take_notice(refusal)
        engine.take_notice(notice)
        if loaded.precision == "int8" and loaded.impl != "int_mm":
            engine.take_notice(
                "this CPU's int8 product is not exact (no VNNI); the slower exact int8_fp32 runs"
            )
        return engine

    @property
    def model_digest(self) -> str:
        """Hex digest of config and weights: another value means another model."""
        if self._digest is None:
            self._digest = model_digest(self.model)
        return self._digest

    @property
    def chat_format(self) -> str:
        """Name of the chat format in config.json."""
        return self.model.config.chat_format

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        return self.model.config.vocab_size

    @property
    def context_limit(self) -> int:
        """Most tokens a sequence can hold."""
        return self.model.config.max_position_embeddings

    def sequence(self, ids: Sequence[int] = ()) -> CedSequence:
        """Open a sequence over ids that are known but not yet run; a prefill runs them."""
        self.check_ids(ids)
        sequence = CedSequence(self, ids)
        self._open.add(sequence)
        return sequence

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return logits [T, V] float32 of every position, scored in `full` mode.

        Raises UsageError for no ids, ContextLimitError when they do not fit.
        """
        self.check_ids(ids)
        if not len(ids):
            raise UsageError("expected at least one token id to score, got none")
        self.check_fits(len(ids))
        state = SequenceState(self.model)
        with self.forward():
            for tile in range(-(-len(ids) // TILE)):
                encode_tile(self.model, state, ids, tile=tile)
            return score(self.model, state, n_tokens=len(ids))

    def warm(
        self, ids: Sequence[int], *, label: str = "warm", progress: Progress | None = None
    ) -> PrefillUsage:
        """Encode and publish the whole blocks of a shared prefix, and pin its anchor.

        Idempotent. The last, partial block is left to the session that goes on from there. Raises
        UsageError for ids out of the vocabulary, ContextLimitError when they do not fit.
        """
        self.check_ids(ids)
        self.check_fits(len(ids))
        stop = len(ids) // TILE * TILE
        state = SequenceState(self.model)
        with self.forward():
            reused = take_known(
                self.model, state, ids[:stop], open_sequences=self.known_to(None), store=self.store
            )
        self.take_notice(reused.notice)
        first = state.settled
        for tile in range(first // TILE, stop // TILE):
            if progress is not None:
                progress(tile * TILE, stop, first)
            with self.forward():
                encode_tile(self.model, state, ids, tile=tile)
        if progress is not None:
            progress(stop, stop, first)
        self.publish(ids, state, label=label, kind="warm", pinned=True)
        return PrefillUsage(reused_ram=reused.ram, reused_disk=reused.disk, encoded=stop - first)

    def close(self) -> None:
        """Close the store; open sequences stay usable, without it."""
        if self.store is not None:
            self.store.close()
            self.store = None

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Hold the engine for one forward."""
        with self._lock, torch.inference_mode():
            yield

    def check_ids(self, ids: Sequence[int]) -> None:
        """Refuse what is no token id of the vocabulary; raises UsageError."""
        for token in ids:
            if not isinstance(token, int) or not 0 <= token < self.vocab_size:
                raise UsageError(
                    f"a token id must be an int 0 .. {self.vocab_size - 1}, got {token!r}"
                )

    def check_fits(self, n_tokens: int) -> None:
        """Refuse more tokens than the context holds; raises ContextLimitError."""
        if n_tokens > self.context_limit:
            raise ContextLimitError(
                f"{n_tokens} tokens do not fit the context of {self.context_limit}; shorten the "
                "text or begin a new session"
            )

    def known_to(self, sequence: CedSequence | None) -> Iterator[Known]:
        """Yield what other open sequences hold in RAM."""
        for other in list(self._open):
            if other is not sequence:
                yield other.known

    def forget(self, sequence: CedSequence) -> None:
        """Take a closed sequence out of what others may copy from."""
        self._open.discard(sequence)

    def publish(
        self,
        ids: Sequence[int],
        state: SequenceState,
        *,
        label: str,
        kind: str,
        pinned: bool = False,
    ) -> None:
        """Commit the settled blocks that the store does not have, and the anchor at their end."""
        if self.store is None:
            return
        with self.forward():
            notice = publish(
                self.model,
                state,
                ids,
                store=self.store,
                label=label,
                kind=kind,
                pinned=pinned,
            )
        self.take_notice(notice)

    def take_notice(self, notice: str | None) -> None:
        """Add a warning for the user, once."""
        if notice is not None and notice not in self.notices:
            self.notices.append(notice)
