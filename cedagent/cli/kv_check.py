"""`cedagent kv verify`: whether every record on disk is what was written.

Knows what the store found and how fast it read.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from cedagent.cli import kv_screen
from cedagent.cli.kv_folder import NOTHING, check_readable, folder_option, open_store
from cedagent.cli.options import json_option
from cedagent.cli.report import count, print_json, size
from cedagent.errors import EngineError


@click.command()
@click.option("--fix", is_flag=True, help="Drop what is damaged and what comes after it.")
@folder_option
@json_option
def verify(fix: bool, folder: Path | None, as_json: bool) -> int:
    """Check every record.

    Exit code 5 when something is damaged and was not mended.
    """
    store = open_store(folder)
    if store is None:
        if as_json:
            print_json({"good": True, "problems": [], "records": 0, "bytes": 0, "seconds": 0.0})
        else:
            click.echo(NOTHING)
        return 0
    with store:
        rows = [row for row in store.du() if row.kind not in ("dead", "index")]
        n_records, n_bytes = (
            sum(getattr(row, name) for row in rows) for name in ("own_records", "own_bytes")
        )
        started = time.perf_counter()
        with kv_screen.busy(f"checking {count(n_records, 'record')}, {size(n_bytes)}"):
            problems = store.verify(fix=fix)
        seconds = time.perf_counter() - started
        unread = [problem.detail for problem in problems if problem.kind == "disabled"]
        if unread:
            raise EngineError(store.notice or f"the prefix store cannot be read: {unread[0]}")
        check_readable(store, found=True)
    if all(problem.kind in ("read_only", "busy") for problem in problems):
        # It could not have been mended, but there is nothing to mend.
        problems = []
    good = all(problem.fixed for problem in problems)
    if as_json:
        print_json(
            {
                "good": good,
                "problems": problems,
                "records": n_records,
                "bytes": n_bytes,
                "seconds": seconds,
            }
        )
        return 0 if good else EngineError.exit_code
    for problem in problems:
        state = "mended" if problem.fixed else "found"
        click.echo(
            f"{problem.kind} ({state}): {kv_screen.one_line(problem.where)}: {problem.detail}"
        )
    if not problems:
        click.echo("The store is good.")
    click.echo(
        f"read {count(n_records, 'record')}, {size(n_bytes)} in {seconds:.2f} s "
        f"({size(n_bytes / max(seconds, 1e-9))}/s)"
    )
    return 0 if good else EngineError.exit_code
