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
from typing import Any

import torch
from torch import Tensor

from ced_kvstore import Store
from cedagent.engine.catch_up import catch_up
from cedagent.engine.families import load_family
from cedagent.engine.family import Family, Mode, State
from cedagent.engine.fingerprint import model_digest
from cedagent.engine.kernel_choice import KernelChoice
from cedagent.engine.prefix_store import open_store
from cedagent.engine.protocol import PrefillUsage, Progress
from cedagent.engine.publish import publish
from cedagent.engine.reuse import Known
from cedagent.engine.sequence import CedSequence
from cedagent.engine.settings import Precision, Settings
from cedagent.errors import ContextLimitError, UsageError
from cedagent.model.config import TILE
from cedagent.model.locate import resolve_model
from cedagent.model.weights_choice import WeightsChoice


class Engine:
    """A CED model ready to run; `load` makes one, `sequence` opens a sequence on it."""

    def __init__(
        self,
        family: Family[Any],
        model_dir: Path,
        *,
        store: Store | None = None,
    ) -> None:
        """Take a loaded model and an open store; `load` is the usual way."""
        self.family = family
        self.model_dir = model_dir
        self.store = store
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
        precision: Precision = "auto",
        mode: Mode = "bounded",
        replay_windows: int | None = None,
        max_kv_bytes: int | None = None,
        kernels: KernelChoice = "auto",
        weights: WeightsChoice = "auto",
    ) -> Engine:
        """Load a model by name or directory, with the prefix store in folder `kv` if given.

        `mode` and `replay_windows` say how many rows a replay runs (see docs/structure.md). For
        ced_llama: `precision` "float32" is the reference path, `kernels` "auto" takes compiled ones
        where a compiler and the CPU allow. For deepseek_v41: `weights` "dequantize" holds them as
        float32, "keep" as stored, "auto" the former where it fits in memory. Raises UsageError and
        its kinds, EngineError when "native" cannot be had.
        """
        settings = Settings(
            kv=kv,
            max_kv_bytes=max_kv_bytes,
            precision=precision,
            mode=mode,
            replay_windows=replay_windows,
            kernels=kernels,
            weights=weights,
        )
        model_dir = resolve_model(model)
        family = load_family(model_dir, settings)
        store, refusal = open_store(family, model_dir, settings)
        engine = cls(family, model_dir, store=store)
        for notice in (refusal, *family.notices):
            engine.take_notice(notice)
        return engine

    @property
    def model_digest(self) -> str:
        """Hex digest of config and weights: another value means another model."""
        if self._digest is None:
            self._digest = model_digest(self.family)
        return self._digest

    @property
    def chat_format(self) -> str:
        """Name of the chat format in config.json."""
        return self.family.config.chat_format

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        return self.family.config.vocab_size

    @property
    def context_limit(self) -> int:
        """Most tokens a sequence can hold."""
        return self.family.config.max_position_embeddings

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
        state: State = self.family.new_state()
        with self.forward():
            for tile in range(-(-len(ids) // TILE)):
                self.family.encode_tile(state, ids, tile=tile)
            return self.family.score(state, n_tokens=len(ids))

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

        def before_tile(pos: int, known: int) -> bool:
            if progress is not None:
                progress(pos, stop, known)
            return True

        known = catch_up(
            self, self.family.new_state(), ids[:stop], sequence=None, before_tile=before_tile
        )
        state, first = known.state, known.state.settled
        for tile in range(first // TILE, stop // TILE):
            before_tile(tile * TILE, first)
            self.encode_tile(state, ids, tile=tile)
        before_tile(stop, first)
        self.publish(ids, state, label=label, kind="warm", pinned=True)
        return PrefillUsage(
            reused_ram=known.ram,
            reused_disk=known.disk,
            encoded=stop - first,
            rerun=known.rerun,
        )

    def close(self) -> None:
        """Close the store; open sequences stay usable, without it."""
        if self.store is not None:
            self.store.close()
            self.store = None

    def encode_tile(self, state: State, ids: Sequence[int], *, tile: int) -> None:
        """Encode one tile, and keep of what lies before it only what will be read again."""
        with self.forward():
            self.family.encode_tile(state, ids, tile=tile)
            if self.family.windows is not None:
                self.family.windows.trim(state)

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
        state: State,
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
                self.family,
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
