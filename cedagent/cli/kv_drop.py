"""`cedagent kv rm`: what goes from the store, and what that gives back to the disk.

Knows labels and hashes as `ls` shows them. `sessions rm` drops blocks through here, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.cli import kv_screen
from cedagent.cli.kv_block import anchors_at
from cedagent.cli.kv_folder import NOTHING, folder_option, open_store
from cedagent.cli.options import json_option
from cedagent.cli.report import count, print_json, size
from cedagent.errors import EngineError, UsageError

if TYPE_CHECKING:
    from ced_kvstore import Anchor, Removal, Store


@dataclass(frozen=True, slots=True)
class Dropped:
    """What one removal did."""

    anchors: int
    blocks: int
    bytes: int
    """Bytes that are dead now."""
    left_disk: int
    """Bytes by which the segments on disk became smaller."""
    reason: str | None = None
    """Why something stays that is to go."""
    at_once: bool = False
    """Whether the bytes were to leave the disk with it."""

    @property
    def words(self) -> str:
        """What was dropped, to be said after a name."""
        said = f"{count(self.blocks, 'block')}, {size(self.bytes)}; "
        said += f"{size(self.left_disk)} left the disk"
        if self.reason is not None:
            return f"{said}; {self.reason}"
        if self.at_once or self.left_disk >= self.bytes:
            return said
        return f"{said}, the rest goes when its file is rewritten (`kv gc`: at once)"


@click.command()
@click.argument("label", required=False)
@click.option("--session", metavar="NAME", help="What only this session kept.")
@click.option("--block", metavar="HASH", help="What is only needed at this block (see ls).")
@click.option("--all", "everything", is_flag=True, help="Everything, pinned or not.")
@click.option("--purge", is_flag=True, help="Take the bytes off the disk at once.")
@folder_option
@json_option
def rm(
    label: str | None,
    session: str | None,
    block: str | None,
    everything: bool,
    purge: bool,
    folder: Path | None,
    as_json: bool,
) -> int:
    """Remove what a LABEL (from ls) kept.

    Blocks that something else needs stay.
    """
    if [label, session, block, everything or None].count(None) != 3:
        raise UsageError("kv rm: expected one of LABEL, --session NAME, --block HASH, --all")
    store, dropped, labels = open_store(folder), None, set[str]()
    name = "everything" if block is None else block
    if label is not None or session is not None:
        name = str(label) if session is None else f"session:{session}"
    if store is not None:
        with store:
            if everything or block is not None:
                anchors = store.anchors() if block is None else anchors_at(store, block)
                name = name if block is None else anchors[0].block_hash.hex()
                labels = {anchor.label for anchor in anchors}
                dropped = _drop_blocks(store, name, anchors, purge=purge)
            else:
                dropped, labels = drop_label(store, name, purge=purge), {name}
    if dropped is None and not everything:
        raise UsageError(f"nothing is stored under {name!r}; `cedagent kv ls` lists the labels")
    if as_json:
        print_json({"removed": name, "labels": sorted(labels), "dropped": dropped})
    elif dropped is None:
        click.echo(NOTHING)
    else:
        what = name if block is None else f"{', '.join(sorted(labels))} at block {name}"
        if everything and dropped.reason is not None:
            what = "all that no process uses"
        line = f"removed {what}, {count(dropped.anchors, 'anchor')}, {dropped.words}"
        kv_screen.say(line)
    return 0


def drop_label(store: Store, label: str, *, purge: bool) -> Dropped | None:
    """Remove what one label kept, or return None when nothing is stored under it.

    Raises EngineError when the store cannot be written.
    """
    if not any(anchor.label == label for anchor in store.anchors()):
        return None
    return _measured(store, lambda: store.remove(label, purge=purge), label, purge=purge)


def _drop_blocks(store: Store, name: str, anchors: Iterable[Anchor], *, purge: bool) -> Dropped:
    """Remove what is anchored at some blocks; by the name "everything" what is not, too."""
    from ced_kvstore import Removal

    hashes = {anchor.block_hash for anchor in anchors}

    def drop() -> Removal:
        # All at once: what is needed by nothing else is then looked for once.
        removal = store.remove(*hashes, purge=purge) if hashes else Removal(0, 0, 0)
        if name != "everything" or store.read_only:
            return removal
        store.evict(0)
        reason = store.gc().reason if purge else None
        if blocks := store.stats().blocks:
            # What had an anchor and what had none.
            reason = reason or f"what another process is using stays ({count(blocks, 'block')})"
        return replace(removal, reason=reason or removal.reason)

    return _measured(store, drop, name, purge=purge)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show that it goes on, and say on Ctrl-C what becomes of the rest."""
    try:
        with kv_screen.busy(what):
            yield
    except KeyboardInterrupt:
        click.echo(
            f"stopped while {kv_screen.one_line(what)}; what was removed by then stays away, and "
            "`cedagent kv gc` takes the rest of its bytes off the disk",
            err=True,
        )
        raise


def _measured(store: Store, drop: Callable[[], Removal], name: str, *, purge: bool) -> Dropped:
    """Drop, and return what went; raises EngineError when nothing could."""
    before = store.stats()
    with working(f"removing {name}"):
        removal = drop()
    after = store.stats()
    blocks = max(before.blocks - after.blocks, removal.blocks)
    if store.read_only or (removal.reason and not removal.anchors and not blocks):
        raise EngineError(f"the store keeps the blocks of {name}: {store.notice or removal.reason}")
    return Dropped(
        anchors=removal.anchors,
        blocks=blocks,
        bytes=max(before.bytes_live - after.bytes_live, removal.bytes),
        left_disk=max(0, before.bytes_on_disk - before.bytes_index
                      - after.bytes_on_disk + after.bytes_index),
        reason=removal.reason,
        at_once=purge,
    )  # fmt: skip
