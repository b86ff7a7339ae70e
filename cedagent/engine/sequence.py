"""CedSequence: one sequence of tokens and the three things the engine does to it.

An append drops the overlay and encodes tiles from the settled part on, so that a live sequence, one
in RAM, one on disk and a cold one all start from the same thing. After an output, `settle` encodes
its complete tiles on the grid. Nothing here knows text, turns or calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from cedagent.engine.catch_up import catch_up
from cedagent.engine.family import State
from cedagent.engine.protocol import Cancelled, PrefillUsage, Progress, Sampling
from cedagent.engine.reuse import Known
from cedagent.engine.sampler import sample
from cedagent.errors import ContextLimitError, EngineError
from cedagent.model.config import TILE

if TYPE_CHECKING:
    from cedagent.engine.engine import Engine


class CedSequence:
    """One sequence of an engine; used by one thread at a time."""

    def __init__(self, engine: Engine, ids: Sequence[int] = ()) -> None:
        """Start over ids that are known but not yet run; costs nothing until a prefill."""
        self._engine = engine
        self._ids = list(ids)
        self._seen = len(self._ids)
        self._state: State = engine.family.new_state()
        self._prefill_end: int | None = None
        self._logits: Tensor | None = None

    @property
    def ids(self) -> Sequence[int]:
        """All token ids so far."""
        return tuple(self._ids)

    @property
    def known(self) -> Known:
        """The ids and state that other sequences may copy settled rows from."""
        return Known(self._ids, self._state)

    @property
    def logits(self) -> Tensor:
        """Next-token logits [V] float32; raises EngineError when nothing has just been run."""
        if self._logits is None:
            raise EngineError("no logits here: prefill first (an append of no tokens will do)")
        return self._logits

    def prefill(
        self,
        new_ids: Sequence[int],
        *,
        progress: Progress | None = None,
        cancelled: Cancelled | None = None,
        label: str = "prefill",
    ) -> PrefillUsage:
        """Append ids (perhaps none), encode what is not known, replay; leaves next-token logits.

        Raises ContextLimitError before anything is appended when the ids do not fit, EngineError
        when there is no token at all.
        """
        engine = self._engine
        seen, stop = self._seen, len(self._ids) + len(new_ids)
        engine.check_ids(new_ids)
        engine.check_fits(stop)
        if not stop:
            raise EngineError("nothing to prefill: the sequence has no tokens")
        self._ids.extend(new_ids)
        self._logits, self._prefill_end = None, None
        self._state.drop_overlay()

        def before_tile(pos: int, known: int) -> bool:
            if progress is not None:
                progress(pos, stop, known)
            return cancelled is None or not cancelled()

        caught_up = catch_up(engine, self._state, self._ids, sequence=self, before_tile=before_tile)
        self._state = state = caught_up.state
        first = state.settled
        finished = caught_up.finished
        finished = finished and self._encode(stop, lambda pos: before_tile(pos, first))
        finished = finished and before_tile(stop, first)
        replayed, encoded_stop = 0, state.settled
        if finished:
            with engine.forward():
                self._logits, replayed = engine.family.replay(state, n_tokens=stop)
            self._prefill_end = encoded_stop = stop
        self._seen = max(seen, encoded_stop)
        self._publish(label, "prefill")
        return PrefillUsage(
            reused_ram=caught_up.ram,
            reused_disk=caught_up.disk,
            encoded=encoded_stop - first,
            reencoded=max(0, min(seen, encoded_stop) - first),
            rerun=caught_up.rerun,
            padded=-encoded_stop % TILE,
            replayed=replayed,
            cancelled=not finished,
        )

    def sample(
        self,
        sampling: Sampling,
        allowed: bytes | None = None,
        *,
        majority: int | None = None,
    ) -> int:
        """Draw the next token from the current logits, among the allowed ids; appends nothing.

        Greedy decoding takes `majority` exactly if it has half of the probability.
        """
        pos = len(self._ids)
        return sample(self.logits, sampling, pos=pos, allowed=allowed, majority=majority)

    def feed(self, token: int) -> None:
        """Append one token through both halves; leaves next-token logits.

        Raises ContextLimitError when the context is full, EngineError without a prefill.
        """
        engine, pos = self._engine, len(self._ids)
        if self._prefill_end is None:
            raise EngineError("nothing to decode after: prefill first")
        if pos >= engine.context_limit:
            raise ContextLimitError(
                f"the context of {engine.context_limit} tokens is full; start a new session"
            )
        engine.check_ids([token])
        self._ids.append(token)
        try:
            with engine.forward():
                self._logits = engine.family.decode(
                    self._state, self._ids, pos=pos, prefill_end=self._prefill_end
                )
        except BaseException:
            # Also on Ctrl-C: a token that was not run is not in the sequence.
            del self._ids[pos:]
            raise
        self._seen = pos + 1

    def append_unseen(self, ids: Sequence[int]) -> None:
        """Append closing ids after an output without running them; the next prefill does."""
        self._engine.check_ids(ids)
        self._ids.extend(ids)
        self._logits = None

    def settle(self, label: str = "output") -> int:
        """Encode an output's complete tiles on the grid and publish them.

        Returns how many of its tokens were encoded by this. After a cancelled prefill it does
        nothing: what was not encoded waits for the next append.
        """
        end, state = self._prefill_end, self._state
        if end is None:
            return 0
        self._logits, self._prefill_end = None, None
        before = state.settled
        self._encode(len(self._ids) // TILE * TILE, lambda pos: True)
        self._seen = len(self._ids)
        self._publish(label, "output")
        return max(0, state.settled - max(before, end))

    def fork(self, n_tokens: int | None = None) -> CedSequence:
        """Return a new sequence over the first `n_tokens` ids (all by default).

        It copies settled rows from this one, while it is open, at its first prefill.
        """
        n_tokens = len(self._ids) if n_tokens is None else n_tokens
        if not 0 <= n_tokens <= len(self._ids):
            raise EngineError(f"fork at {n_tokens}: expected 0 .. {len(self._ids)}")
        return self._engine.sequence(self._ids[:n_tokens])

    def close(self) -> None:
        """Drop the state held in RAM; the ids stay readable."""
        self._engine.forget(self)
        self._state = self._engine.family.new_state()
        self._logits, self._prefill_end = None, None

    def _encode(self, stop: int, before_tile: Callable[[int], bool]) -> bool:
        """Encode tiles up to `stop`, holding the engine for one tile at a time; False: stopped."""
        engine = self._engine
        for tile in range(self._state.settled // TILE, -(-stop // TILE)):
            if not before_tile(tile * TILE):
                return False
            engine.encode_tile(self._state, self._ids[:stop], tile=tile)
        return True

    def _publish(self, label: str, kind: str) -> None:
        self._engine.publish(self._ids, self._state, label=label, kind=kind)
