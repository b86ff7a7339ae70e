"""Publish: settled blocks of one sequence to the prefix store, with the anchor at their end.

What the store cannot take becomes one line for the user; it is never an error in an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from ced_kvstore import Anchor, Store
from cedagent.engine.state import SequenceState
from cedagent.engine.streams import pack, raw
from cedagent.model.ced import CedModel
from cedagent.model.config import TILE


def publish(
    model: CedModel,
    state: SequenceState,
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
            packed = pack(model, state, match.blocks, n_new)
            rows = {name: raw(buffer) for name, buffer in packed.items()}
        anchor = Anchor(
            block_hash=store.hashes(path)[-1],
            label=label,
            kind=kind,
            pinned=pinned,
            n_tokens=len(ids),
        )
        commit = store.commit(path, first_block=match.blocks, rows=rows, anchors=[anchor])
        if commit.reason is not None and store.notice is None:
            return f"prefix store {store.directory}: not everything is stored: {commit.reason}"
    return store.notice
