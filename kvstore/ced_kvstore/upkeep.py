"""The half of a store's calls that look after the whole folder: what is in it, and what goes.

Each is one delegate to the module that does it; those that few programs call are imported when they
are called. It knows no fingerprint. Invariant: whatever the disk does is a reason, or nothing is
found; only `show`, `export` and `import_` raise for it, as they say.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ced_kvstore import evict, remove
from ced_kvstore import verify as verifying
from ced_kvstore.core import Core
from ced_kvstore.errors import TROUBLE
from ced_kvstore.results import Anchor, Collected, Problem, Removal, StoreStats
from ced_kvstore.stats import cold_notice, collect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ced_kvstore.archive import Archived
    from ced_kvstore.unpack import Imported
    from ced_kvstore.usage import Shown, TreeNode, Usage


class Upkeep:
    """What `Store` does with its folder as a whole."""

    _core: Core

    @property
    def directory(self) -> Path:
        """The store's folder."""
        return self._core.directory

    @property
    def read_only(self) -> bool:
        """Whether commits are no-ops (writing failed, or may not begin)."""
        return self._core.read_only

    @property
    def notice(self) -> str | None:
        """One line for the user when the store is read-only, or looked up many times without a hit;
        else None."""
        return self._core.notice or cold_notice(self._core)

    def anchors(self) -> list[Anchor]:
        """Return all anchors, of every fingerprint, oldest first."""
        try:
            with self._core.read() as tables:
                found = [anchor for anchor, _place in tables.anchors()]
        except TROUBLE:
            return []
        return sorted(found, key=lambda anchor: anchor.created)

    def stats(self) -> StoreStats:
        """Return sizes now and counts since this process opened the store."""
        return collect(self._core)

    def du(self) -> tuple[Usage, ...]:
        """Return what each label keeps on the disk, and last what nobody points at."""
        from ced_kvstore import usage

        return usage.du(self._core)

    def tree(self) -> tuple[TreeNode, ...]:
        """Return the runs of blocks between forks and anchors, parents first."""
        from ced_kvstore import usage

        return usage.tree(self._core)

    def show(self, prefix: str) -> Shown:
        """Return all that is known of the one block whose hash begins with these hex digits.

        Raises ValueError when there is not exactly one, or none can be looked up.
        """
        from ced_kvstore import usage

        return usage.show(self._core, prefix)

    def remove(self, *targets: str | bytes, purge: bool = False) -> Removal:
        """Drop the anchors of labels (str) or at blocks (bytes), and what only they needed.

        A block goes when no other anchor is at it or after it, with everything after it. Its bytes
        leave the disk with the next compaction of their segment or `gc`, or at once with `purge`:
        all copies of them, and if it is cut short, with the next commit or `gc`.
        """
        return self._core.change(
            lambda core, index: remove.remove(core, index, frozenset(targets), purge=purge),
            lambda reason: Removal(0, 0, 0, reason),
        )

    def evict(self, to_bytes: int) -> int:
        """Drop what is worth least until the store takes no more than `to_bytes`; return the bytes
        given back to the disk. Pinned blocks and the path matched last stay."""
        return self._core.change(
            lambda core, index: evict.shrink(core, index, to_bytes), lambda _reason: 0
        )

    def compact(self) -> int:
        """Move live records out of segments less than half of which is live; return the bytes given
        back to the disk."""
        return self._core.change(evict.give_back, lambda _reason: 0)

    def gc(self) -> Collected:
        """Drop blocks that no anchor and no pin needs, then give every dead byte back: each segment
        that has one is rewritten."""
        return self._core.change(evict.collect, lambda reason: Collected(0, 0, 0, reason))

    def verify(self, fix: bool = False) -> list[Problem]:
        """Check every record; with `fix` drop what is damaged and what comes after it.

        Reads the whole store once; while fixing, commits wait.
        """
        return verifying.verify(self._core, fix=fix)

    def export(self, path: str | Path, targets: Sequence[str | bytes] = ()) -> Archived:
        """Write the whole store, or the paths of these labels and blocks, to one archive.

        Raises StoreError when there is no archive in the end: a target that is not stored, a store
        that cannot be read, a full disk.
        """
        from ced_kvstore import archive

        return archive.export(self._core, Path(path), targets)

    def import_(self, path: str | Path) -> Imported:
        """Add what an archive holds, after every byte of it was checked.

        What the byte budget has no room for is left out, by whole paths: nothing goes that an
        anchor of the store needs.

        Raises StoreError for one that is not whole and consistent; nothing was published then,
        unless it changed while it was read.
        """
        from ced_kvstore import unpack

        return unpack.import_(self._core, Path(path))
