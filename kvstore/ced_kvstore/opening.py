"""Which directories this process has open. One Core each, shared by all handles.

LMDB forbids opening an environment twice in one process; `_OPEN` is that fact, and the only module
state of the store. Invariant: a directory in `_OPEN` has a running Core with at least one handle.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ced_kvstore.core import Core
from ced_kvstore.errors import StoreError
from ced_kvstore.files import Files

_OPEN: dict[tuple[int, int], Core] = {}
_GATE = threading.RLock()


def open_core(directory: Path, files: Files, max_bytes: int | None, map_bytes: int) -> Core:
    """Open a directory, or join the Core that this process has for it.

    Raises StoreError when it can never be a store; disk trouble leaves a Core that always misses.
    """
    with _GATE:
        identity, error = None, None
        try:
            files.make_directory(directory)
            identity = files.identity(directory)
        except (FileExistsError, NotADirectoryError):
            raise StoreError(
                f"{directory} is not a folder; give the prefix store a folder of its own"
            ) from None
        except OSError as trouble:
            error = trouble
        core = _OPEN.get(identity) if identity else None
        if core is not None and core.pid == os.getpid():
            core.users += 1
            if max_bytes is not None:
                core.set_budget(max_bytes)
            return core
        core = Core(directory, files, max_bytes, map_bytes)
        if error is not None:
            core.fail(error)
            core.disabled = f"cannot be opened: {error.strerror}"
            return core
        core.start()
        if identity:
            _OPEN[identity] = core
        return core


def close_core(core: Core) -> None:
    """Let one handle go; the last one stops the Core. Never raises."""
    with _GATE:
        core.users -= 1
        if core.users > 0 or core.pid != os.getpid():
            return
        for key in [key for key, other in _OPEN.items() if other is core]:
            del _OPEN[key]
        core.stop()
