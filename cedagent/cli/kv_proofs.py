"""What `kv selftest` proves: the findings of each length, and a line of plain words for each claim.

Knows findings and words; selftest.py makes the findings. Invariant: a claim holds only if it holds
at every length, and if there was something to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

BLOCK = 128


@dataclass(frozen=True, slots=True)
class Compared:
    """One length: which of the ways gave the cold run's bits, and how much each read from disk."""

    tokens: int
    live: bool
    ram: bool
    disk: bool
    reused_disk: int
    """Tokens that were truly read from disk in the new process."""
    rerun: int
    """Tokens of these that were run again, for windows and outputs that are not stored."""
    no_snapshot: bool | None
    """From disk without a snapshot on the way; None for a model without encoder windows."""
    rerun_no_snapshot: int | None
    reused_no_snapshot: int | None = None
    moved: bool | None = None
    """From a store that was exported and imported."""
    reused_moved: int | None = None
    damaged: bool | None = None
    """From a store in which a bit of the second block is flipped."""
    reused_damaged: int | None = None

    @property
    def whole(self) -> int:
        """Tokens of whole blocks: what a store can hold."""
        return self.tokens // BLOCK * BLOCK

    @property
    def same(self) -> bool:
        """Whether every way gave the same bits."""
        ways = self.live, self.ram, self.disk, self.no_snapshot, self.moved, self.damaged
        return all(way is not False for way in ways)

    @property
    def is_read(self) -> bool:
        """Whether all whole blocks came from disk, so that there was something to compare."""
        read = self.reused_disk, self.reused_no_snapshot, self.reused_moved
        return all(tokens is None or tokens >= self.whole for tokens in read)

    @property
    def is_missed(self) -> bool:
        """Whether reading stopped before the second block, if that is damaged and on the path."""
        return self.reused_damaged is None or self.whole < 2 * BLOCK or self.reused_damaged == BLOCK


@dataclass(frozen=True, slots=True)
class Proof:
    """One claim."""

    name: str
    claim: str
    holds: bool
    tokens: Sequence[int]
    """Lengths at which it was tried."""
    fails_at: Sequence[int]
    """Those of them at which it does not hold."""

    @property
    def answer(self) -> str:
        """yes or NO."""
        return "yes" if self.holds else "NO"

    @property
    def words(self) -> str:
        """The claim, and where it was tried or does not hold."""
        if self.holds:
            return f"{self.claim} (tried at {_listed(self.tokens)} tokens)"
        return f"{self.claim}: NOT SO at {_listed(self.fails_at)} tokens"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _of_blocks(row: Compared, holds: bool | None) -> bool | None:
    """Return whether a claim about blocks holds; None at a length that has none and is no proof."""
    return None if holds and not row.whole else holds


Claim = tuple[str, str, Callable[[Compared], bool | None]]

_CLAIMS: tuple[Claim, ...] = (
    ("live", "an append to a live session gives the bits of a cold run", lambda row: row.live),
    ("fork", "so does a fork that shares its rows in RAM", lambda row: row.ram),
    (
        "restart",
        "so does what another process restores from disk after a restart",
        lambda row: _of_blocks(row, row.disk and row.reused_disk >= row.whole),
    ),
    (
        "no_snapshot",
        "so does a restore without a snapshot on the way, where windows are run again",
        lambda row: _of_blocks(row, row.no_snapshot and row.is_read),
    ),
    (
        "archive",
        "so does a restore after `kv export` and `kv import` into another folder",
        lambda row: _of_blocks(row, row.moved and row.is_read),
    ),
    (
        "damage",
        "a flipped bit on the disk makes its block a miss, not a wrong answer",
        lambda row: row.damaged and row.is_missed if row.whole >= 2 * BLOCK else None,
    ),
)
"""Name, claim, and whether it holds at a length; None where it was not tried."""


def proofs_of(rows: Sequence[Compared]) -> list[Proof]:
    """Return one proof for each claim that was tried."""
    proofs = []
    for name, claim, holds in _CLAIMS:
        found = {row.tokens: holds(row) for row in rows}
        tried = [tokens for tokens, held in found.items() if held is not None]
        fails = [tokens for tokens in tried if not found[tokens]]
        if tried:
            proofs.append(Proof(name, claim, not fails, tried, fails))
    return proofs
