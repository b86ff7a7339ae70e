"""What the engine asks of a model family: states of sequences, forwards, rows as bytes.

The engine, its sequences, reuse and publish know a family by this door alone, and no model. A
family is one loaded model with the replay settings of its engine. Invariant: a settled row is a
function of the tokens up to it alone, in every family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, Self, TypeVar

from torch import Tensor

from ced_kvstore import Stream
from cedagent.model.config import ModelConfig

Mode = Literal["bounded", "exact", "full"]


class State(Protocol):
    """What the engine knows of the rows held in RAM for one sequence."""

    settled: int
    """F, a multiple of 128: rows below are settled."""

    def drop_overlay(self) -> None:
        """Forget what belongs to one prefill and its decoded tokens."""
        ...

    def copy_settled(self, source: Self, stop: int) -> None:
        """Copy settled rows [settled, stop) from another sequence of the same family."""
        ...


# Each family takes back the states that it made, and no others.
S = TypeVar("S", bound=State)


class EncoderWindows(Protocol[S]):
    """Encoder windows of a family that has them; positions are multiples of 128.

    To go on at F, a state needs each windowed layer's last rows, and what the next replay needs
    from before F that is not a stream. `wanted(F)` is the position from which the latter is needed.
    """

    def wanted(self, settled: int) -> int:
        """Return the newest position at which windows are worth a snapshot, to go on at F."""
        ...

    def empty_start(self, settled: int) -> int:
        """Return where windows may begin empty so that a re-run to F leaves all that is needed."""
        ...

    def ready_at(self, state: S, settled: int, *, limit: int) -> int | None:
        """Return the newest boundary up to `limit` from which a state's rows lead to F, or None."""
        ...

    def begin(self, state: S) -> S:
        """Return a scratch state for a re-run: the same settled rows, windows of its own."""
        ...

    def copy(self, scratch: S, source: S, *, start: int) -> None:
        """Take windows at `start`, and what else is wanted before it, from another state."""
        ...

    def restore(self, scratch: S, *, start: int, data: bytes) -> bool:
        """Begin windows at `start` with the rows of a snapshot; False if it is of another shape."""
        ...

    def begin_empty(self, scratch: S, *, start: int) -> None:
        """Begin windows at `start` with rows that stand for none."""
        ...

    def rerun_tile(
        self, scratch: S, ids: Sequence[int], *, tile: int, empty_from: int
    ) -> int | None:
        """Run a settled tile again; returns the first position whose stored row is not the same.

        `empty_from` is where windows began empty, 0 when they did not.
        """
        ...

    def finish(self, state: S, scratch: S, *, empty_from: int) -> None:
        """Take what a re-run made, without rows that are not exact or that nothing will read."""
        ...

    def trim(self, state: S) -> None:
        """Forget rows that lie further back than a replay or a snapshot reaches."""
        ...

    def snapshot(self, state: S) -> tuple[int, bytes] | None:
        """Return (position, its windows as bytes), None where there is nothing to keep."""
        ...


class Family(Protocol[S]):
    """One loaded model; `S` is its state of one sequence."""

    notices: list[str]
    """One-line warnings for the user that came up while it was loaded."""

    @property
    def windows(self) -> EncoderWindows[S] | None:
        """The encoder windows; None where settled rows are all that a sequence goes on from."""
        ...

    @property
    def config(self) -> ModelConfig:
        """What every family's config has."""
        ...

    def new_state(self) -> S:
        """Return the state of a sequence of which nothing is known."""
        ...

    def encode_tile(self, state: S, ids: Sequence[int], *, tile: int) -> None:
        """Encode tile `tile` of the sequence and write its rows; a whole tile is settled by it."""
        ...

    def replay(self, state: S, *, n_tokens: int) -> tuple[Tensor, int]:
        """Return (next-token logits [V] float32, rows run through the first decoder layer)."""
        ...

    def score(self, state: S, *, n_tokens: int) -> Tensor:
        """Return logits [P, V] float32 of every position, computed as mode `full` does."""
        ...

    def decode(self, state: S, ids: Sequence[int], *, pos: int, prefill_end: int) -> Tensor:
        """Run the token ids[pos] and return the logits [V] float32 that follow it.

        Earlier ids may be looked back at; those after `pos` are not read.
        """
        ...

    def streams(self) -> list[Stream]:
        """Return the streams of this model with the bytes of one block in each."""
        ...

    def pack(self, state: S, first_block: int, n_blocks: int) -> dict[str, Tensor]:
        """Return the settled rows of these blocks as uint8 [n_blocks, block_bytes] per stream."""
        ...

    def unpack(self, state: S, buffers: dict[str, Tensor], first_block: int, n_blocks: int) -> None:
        """Write the first `n_blocks` of the buffers as settled rows from `first_block` on."""
        ...

    def fingerprint(self) -> dict[str, str | int | None]:
        """Return the fields of this family that decide what a stored row is."""
        ...

    def weights_digest(self) -> str:
        """Return a text that differs when any weight in use does."""
        ...
