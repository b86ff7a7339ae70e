"""Publish: settled blocks of one sequence to the prefix store, with the anchor at their end.

What the store cannot take becomes one line for the user; it is never an error in an answer. Nothing
is pinned for an open sequence: its rows are in RAM, and what was dropped meanwhile is written anew.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from ced_kvstore import Anchor, Match, Store
from ced_kvstore.evict import TOO_SMALL
from cedagent.engine.buffers import raw
from cedagent.engine.family import Family, State
from cedagent.model.config import TILE


def publish(
    family: Family[Any],
    state: State,
    ids: Sequence[int],
    *,
    store: Store,
    label: str,
    kind: str,
    pinned: bool,
) -> str | None:
    """Commit the settled blocks that the store does not have; return a notice or None."""
    if not store.read_only and state.settled:
        path = ids[: state.settled]
        match = store.match(path)
        n_new = len(path) // TILE - match.blocks
        rows = {}
        if n_new:
            packed = family.pack(state, match.blocks, n_new)
            rows = {name: raw(buffer) for name, buffer in packed.items()}
        hashes = store.hashes(path)
        anchor = Anchor(
            block_hash=hashes[-1],
            label=label,
            kind=kind,
            pinned=pinned,
            n_tokens=len(ids),
        )
        commit = store.commit(
            path,
            first_block=match.blocks,
            rows=rows,
            anchors=[anchor],
            snapshots=_snapshots(family, state, hashes, match),
        )
        if commit.reason is not None and store.notice is None:
            return _told(store, commit.reason)
    return store.notice


def _told(store: Store, reason: str) -> str:
    line = f"prefix store {store.directory}: not everything is stored: {reason}"
    if reason == TOO_SMALL:
        # Nothing will ever be stored here, whatever goes.
        folder = shlex.quote(str(store.directory))
        line += f"; `cedagent kv gc --kv {folder} --max-bytes 5GB` gives it another"
    return line


def _snapshots(
    family: Family[Any], state: State, hashes: Sequence[bytes], match: Match
) -> dict[bytes, bytes]:
    """Return the snapshot that helps to resume at the settled end, unless it is stored."""
    windows = family.windows
    if windows is None or windows.wanted(state.settled) in match.snapshots:
        return {}
    taken = windows.snapshot(state)
    return {} if taken is None else {hashes[taken[0] // TILE - 1]: taken[1]}
