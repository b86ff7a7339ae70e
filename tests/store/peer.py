"""A second process for the store's tests: runs one line of Python after the other, for answers.

Usage: peer.py DIRECTORY. A line is an expression, answered with its repr, or a statement, answered
with None. `kit` opens stores in the directory; nothing here waits for a disk.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import pytest
from conftest import Kit, spare_syncs

from ced_kvstore import Anchor, Files


def wait_at_sync(go: str) -> None:
    """Stop at the next sync, once, until there is a file `go`; one named waiting says so."""
    plain = Files.sync_data

    def waiting(files: Files, fd: int) -> None:
        plain(files, fd)
        Files.sync_data = plain
        Path(go).with_name("waiting").touch()
        while not Path(go).exists():
            time.sleep(0.005)

    Files.sync_data = waiting


def main() -> None:
    spare_syncs(pytest.MonkeyPatch())
    names = {
        "kit": Kit(Path(sys.argv[1])),
        "Anchor": Anchor,
        "astuple": dataclasses.astuple,
        "wait_at_sync": wait_at_sync,
    }
    for line in sys.stdin:
        try:
            code = compile(line.strip(), "line", "eval")
        except SyntaxError:
            exec(line, names)
            print(None, flush=True)
        else:
            print(repr(eval(code, names)), flush=True)


if __name__ == "__main__":
    main()
