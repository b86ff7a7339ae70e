"""`cedagent kv du`: what takes the disk, by label, and what could go.

Knows the rows that the store adds up and how they are shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.cli import kv_screen
from cedagent.cli.kv_folder import NOTHING, check_readable, folder_option, open_store
from cedagent.cli.options import json_option
from cedagent.cli.report import age, print_json, size

if TYPE_CHECKING:
    from ced_kvstore.usage import Usage

_NAMES = {
    "shared": "shared by several",
    "nobody": "nobody's",
    "store": "fingerprints, removals",
    "dead": "dead",
    "index": "index and locks",
}


@click.command()
@folder_option
@json_option
def du(folder: Path | None, as_json: bool) -> int:
    """Say by label what takes the disk, and what could go.

    What a label alone needs goes with `kv rm`; what is nobody's or dead goes with `kv gc`.
    """
    store = open_store(folder)
    rows: tuple[Usage, ...] = ()
    if store is not None:
        with store:
            rows = store.du()
            check_readable(store, found=rows)
    total = sum(row.own_bytes for row in rows)
    if as_json:
        print_json({"rows": rows, "bytes_on_disk": total})
    elif store is None:
        click.echo(NOTHING)
    else:
        _print(rows, total)
    return 0


def _print(rows: tuple[Usage, ...], total: int) -> None:
    with_snapshots = any(row.snapshot_bytes for row in rows)
    header = ["label", "blocks", "needs", "alone", "snapshots", "made"]
    table = []
    for row in rows:
        is_label = row.kind == "label"
        table.append(
            [
                (row.label + " (pinned)" * row.pinned) if is_label else _NAMES[row.kind],
                f"{row.blocks:,}" if is_label or row.blocks else "",
                size(row.bytes) if is_label else "",
                size(row.own_bytes),
                size(row.snapshot_bytes) if row.snapshot_bytes else "",
                age(row.created) if is_label else "",
            ]
        )
    table.append(["on disk", "", "", size(total), "", ""])
    if not with_snapshots:
        header.remove("snapshots")
        table = [[*cells[:4], cells[5]] for cells in table]
    numbers = ("blocks", "needs", "alone", "snapshots")
    kv_screen.show_table(header, table, numbers=numbers)
