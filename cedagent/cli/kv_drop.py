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
from cedagent.cli.kv_label import meant
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
    waiting: int = 0
    """Dead bytes that stay on the disk although they were to leave it at once."""

    @property
    def exit_code(self) -> int:
        """The engine's when something that was to leave the disk at once is still there, else 0."""
        return EngineError.exit_code if self.at_once and self.reason is not None else 0

    @property
    def words(self) -> str:
        """What was dropped, to be said after a name."""
        said = f"{count(self.blocks, 'block')}, {size(self.bytes)}; "
        said += f"{size(self.left_disk)} left the disk"
        if self.exit_code:
            wait, later = "", ""
            if self.waiting:
                wait, later = f"{size(self.waiting)} wait: ", ", or they go with its next commit"
            advice = f"{wait}close that program and run `cedagent kv gc`{later}"
            return f"{said}; {self.reason}; {advice}"
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

    Blocks that something else needs stay. Exit code 5 when --purge leaves bytes on the disk.
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
                name = meant(store, name) or name
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
    return 0 if dropped is None else dropped.exit_code


def drop_label(store: Store, label: str, *, purge: bool) -> Dropped | None:
    """Remove what one label kept, or return None when nothing is stored under it.

    Raises EngineError when the store cannot be written.
    """
    if not any(anchor.label == label for anchor in store.anchors()):
        return None
    return _measured(store, lambda: store.remove(label, purge=purge), label, purge=purge)


def waits(n_files: int) -> str:
    """Return what dead bytes in so many files wait for."""
    return (
        f"dead bytes in {count(n_files, 'file')} wait for another process to be done with it, or "
        "for room to move what else is in it"
    )


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
        # What the removal could not do yet, this does; else it has the reason.
        collected = store.gc() if purge else None
        reason = None if collected is None else collected.reason
        if blocks := store.stats().blocks:
            # What had an anchor and what had none.
            reason = reason or f"what another process is using stays ({count(blocks, 'block')})"
        if collected is None:
            reason = reason or removal.reason
        elif collected.waiting:
            reason = reason or waits(collected.waiting)
        return replace(removal, reason=reason)

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
    dead = max(0, after.bytes_on_disk - after.bytes_index - after.bytes_live)
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
        waiting=dead if purge and removal.reason is not None else 0,
    )  # fmt: skip
