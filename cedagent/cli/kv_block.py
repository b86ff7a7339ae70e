"""Which anchors a user means by the first digits of a block's hash.

Knows the store's anchors and what `show` finds. Invariant: what is returned belongs to one block,
and no other block's hash begins with the same digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cedagent.errors import UsageError

if TYPE_CHECKING:
    from ced_kvstore import Anchor, Store

MIN_DIGITS = 12
"""Hex digits that `ls` shows: fewer may be a slip, and what they fit would be gone."""


def anchors_at(store: Store, digits: str) -> list[Anchor]:
    """Return the anchors at the one block whose hash begins so; raises UsageError."""
    expected = (
        f"kv rm --block {digits!r}: expected at least {MIN_DIGITS} digits of the hash of a block "
        "with an anchor, as `cedagent kv ls` shows them"
    )
    if len(digits) < MIN_DIGITS:
        raise UsageError(f"{expected}; got {len(digits)}")
    found = [a for a in store.anchors() if a.block_hash.hex().startswith(digits.lower())]
    if not found:
        raise UsageError(f"{expected}; no such block has one")
    whole = found[0].block_hash.hex()
    # Blocks without an anchor count, too: the user may have meant one of them.
    is_clear = _is_block(store, digits) == _is_block(store, whole)
    if not is_clear or any(anchor.block_hash.hex() != whole for anchor in found):
        raise UsageError(f"{expected}; several blocks begin so, give more digits")
    return found


def _is_block(store: Store, digits: str) -> bool:
    try:
        store.show(digits)
    except ValueError:
        # None begins so, or several do, or the store cannot be read, which whoever removes says.
        return False
    return True
