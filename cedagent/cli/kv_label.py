"""Which label a user means by what the `kv` commands show of it.

Knows labels as they are stored and as they are shown, where their control characters are left out.
Invariant: a label that equals what was given is the one that is meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cedagent.cli.kv_screen import one_line
from cedagent.errors import UsageError

if TYPE_CHECKING:
    from ced_kvstore import Store


def meant(store: Store, given: str) -> str | None:
    """Return the label that is given, or else the one that is shown like it; None without one.

    Raises UsageError when several are shown so.
    """
    labels = {anchor.label for anchor in store.anchors()}
    if given in labels:
        return given
    shown = _shown(given)
    alike = [label for label in labels if shown and _shown(label) == shown]
    if len(alike) > 1:
        raise UsageError(
            f"{len(alike)} labels are shown as {shown!r}; name a block of the one that you mean "
            "(`kv ls` has them): kv show HASH, kv rm --block HASH"
        )
    return alike[0] if alike else None


def _shown(label: str) -> str:
    # Blanks at the end of a line cannot be seen.
    return one_line(label).rstrip()
