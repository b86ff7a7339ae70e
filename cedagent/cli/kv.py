"""`cedagent kv`: what the prefix store holds, why ids miss, whether its bytes are good.

The group, its list, and the names of its other commands, which have modules of their own. Only
`why` and `selftest` need the model; the others see the store's folder as bytes and names.
"""

from __future__ import annotations

from pathlib import Path

import click

from cedagent.cli import (
    kv_archive,
    kv_check,
    kv_drop,
    kv_gc,
    kv_screen,
    kv_show,
    kv_tree,
    kv_usage,
    kv_why,
)
from cedagent.cli.kv_folder import NOTHING, check_readable, folder_option, open_store
from cedagent.cli.options import json_option, model_option
from cedagent.cli.report import age, count, print_json, size


@click.group()
def kv() -> None:
    """Look into the prefix store: what it holds, why something missed, what can go."""


for _command in (
    kv_archive.export,
    kv_archive.import_,
    kv_check.verify,
    kv_gc.gc,
    kv_drop.rm,
    kv_show.show,
    kv_tree.tree,
    kv_usage.du,
    kv_why.why,
):
    kv.add_command(_command)


@kv.command()
@folder_option
@json_option
def ls(folder: Path | None, as_json: bool) -> int:
    """List the anchors, newest first, and the sizes."""
    store = open_store(folder)
    if store is None:
        if as_json:
            print_json({"anchors": [], "stats": None})
        else:
            click.echo(NOTHING)
        return 0
    with store:
        anchors, stats = store.anchors()[::-1], store.stats()
        check_readable(store, found=anchors or stats.blocks)
    if as_json:
        print_json({"anchors": anchors, "stats": stats})
        return 0
    rows = [
        [a.label, a.kind, f"{a.n_tokens:,}", "pinned" if a.pinned else "", age(a.created),
         a.block_hash.hex()[:12]]
        for a in anchors
    ]  # fmt: skip
    if rows:
        header = ["label", "kind", "tokens", "", "made", "block"]
        kv_screen.show_table(header, rows, numbers=["tokens"])
    kv_screen.say(
        f"{count(stats.blocks, 'block')}, {size(stats.bytes_on_disk)} on disk of at most "
        f"{size(stats.max_bytes)}"
    )
    return 0


@kv.command()
@model_option
@folder_option
@json_option
def selftest(model: str, folder: Path | None, as_json: bool) -> int:
    """Prove on this machine that a hit gives the bits of a cold run.

    It makes stores of its own and removes them; with --kv on the disk where DIR is.
    """
    from cedagent.cli.loading import ensure_model
    from cedagent.cli.selftest import run_selftest

    return run_selftest(ensure_model(model), folder=folder, as_json=as_json)
