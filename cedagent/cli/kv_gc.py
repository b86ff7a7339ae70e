"""`cedagent kv gc`: what nobody needs goes, and with a budget what is worth least.

Knows the counts of the store before and after. Invariant: what is told is all that went, however
many steps of the store it took.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.cli import kv_screen
from cedagent.cli.kv_drop import waits, working
from cedagent.cli.kv_folder import NOTHING, folder_option, open_store
from cedagent.cli.options import byte_size, json_option
from cedagent.cli.report import count, print_json, size
from cedagent.errors import EngineError

if TYPE_CHECKING:
    from ced_kvstore import Collected, Store

Told = tuple[dict[str, object], list[str]]
"""What there is to say, as JSON and as lines."""


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what there is to drop, and drop nothing.")
@click.option(
    "--max-bytes",
    metavar="SIZE",
    callback=byte_size,
    help="From now on the store is to take no more than this, such as 5GB.",
)
@folder_option
@json_option
def gc(dry_run: bool, max_bytes: int | None, folder: Path | None, as_json: bool) -> int:
    """Drop what nothing names, and give dead bytes back.

    Each file that has some is rewritten. What running programs looked up last stays.
    """
    # A budget may be given before there is anything to keep within it.
    store = open_store(folder, create=max_bytes is not None and not dry_run)
    found: dict[str, object] = {"max_bytes": max_bytes, "collected": None}
    lines = [NOTHING]
    if store is not None:
        with store:
            if dry_run:
                found, lines = _planned(store, max_bytes)
            elif max_bytes is None:
                done = _checked(store, _collect(store))
                found, lines = _as_json(store, done), [_words(done)]
            else:
                found, lines = _limited(store, max_bytes)
    if as_json:
        print_json({"dry_run": dry_run, **found})
    else:
        for line in lines:
            kv_screen.say(line)
    return 0


def _planned(store: Store, max_bytes: int | None) -> Told:
    """Tell what `gc` would drop if no process used any of it."""
    from ced_kvstore import Collected

    rows = {row.kind: row for row in store.du() if row.kind in ("nobody", "dead")}
    blocks = sum(row.blocks for row in rows.values())
    done = Collected(blocks, 0, sum(row.own_bytes for row in rows.values()))
    found = _as_json(store, done)
    lines = [
        f"there are {count(blocks, 'block')} that no label needs; with dead records up to "
        f"{size(done.bytes)} could be given back; what running programs looked up last stays"
    ]
    if max_bytes is not None:
        on_disk = store.stats().bytes_on_disk
        over = max(0, on_disk - max_bytes)
        lost = f"at least {size(over)}" if over else "none"
        lines.insert(
            0,
            f"the store has {size(on_disk)}; for {size(max_bytes)} {lost} of it would have to go",
        )
        found |= {"max_bytes": max_bytes, "bytes_on_disk": on_disk, "over": over}
    return found, lines


def _limited(store: Store, max_bytes: int) -> Told:
    """Give the store a budget, collect, and tell what went in all."""
    before, files, labels = store.stats(), _files(store), _labels(store)
    # First: of a label that goes for the budget the beginning may stay, which nothing names then.
    collected = _collect(store)
    with working("making room"):
        store.limit(max_bytes)
    if store.read_only:
        raise EngineError(f"the store keeps its budget: {store.notice}")
    after, gone = store.stats(), sorted(labels - _labels(store))
    done = replace(
        collected,
        blocks=after.blocks_evicted - before.blocks_evicted,
        segments=len(files - _files(store)),
        bytes=max(0, before.bytes_on_disk - after.bytes_on_disk),
    )
    line = f"the store may take {size(max_bytes)}"
    words = _words(_checked(store, done, f"{line}, but "))
    if gone:
        words += f"; {count(len(gone), 'label')} went with them"
    if after.bytes_on_disk > max_bytes and done.reason is None and not done.waiting:
        why = "they are pinned or in use" if after.blocks else "so much an empty store takes"
        words += f"; {size(after.bytes_on_disk)} stay: {why}"
    return _as_json(store, done) | {"labels": gone}, [f"{line}; {words}"]


def _collect(store: Store) -> Collected:
    with working("collecting what nobody needs"):
        return store.gc()


def _checked(store: Store, done: Collected, said: str = "") -> Collected:
    """Return what was done; raises EngineError when it is nothing because something hindered it."""
    if done.reason is not None and not (done.blocks or done.bytes):
        raise EngineError(f"{said}nothing was collected: {store.notice or done.reason}")
    return done


def _words(done: Collected) -> str:
    said = (
        f"dropped {count(done.blocks, 'block')}; {size(max(0, done.bytes))} left the disk "
        f"({count(done.segments, 'file')})"
    )
    if done.reason:
        said += f"; {done.reason}"
    if done.waiting:
        said += f"; {waits(done.waiting)}"
    return said


def _as_json(store: Store, done: Collected) -> dict[str, object]:
    return {"max_bytes": store.stats().max_bytes, "collected": done}


def _files(store: Store) -> set[str]:
    return {path.name for path in (store.directory / "seg").glob("*.kvs")}


def _labels(store: Store) -> set[str]:
    return {anchor.label for anchor in store.anchors()}
