"""The prefix store of a loaded model: opened with its fingerprint and streams, or not at all.

A store that cannot be opened is one line for the user and never an error: answers go on without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ced_kvstore import Store, StoreError
from cedagent.engine.family import Family
from cedagent.engine.fingerprint import fingerprint
from cedagent.engine.settings import Settings


def open_store(
    family: Family[Any], model_dir: Path, settings: Settings
) -> tuple[Store | None, str | None]:
    """Return (the store in the settings' folder, None without one; notice for the user or None)."""
    if settings.kv is None:
        return None, None
    try:
        store = Store.open(
            Path(settings.kv).expanduser(),
            fingerprint=fingerprint(family, model_dir),
            streams=family.streams(),
            max_bytes=settings.max_kv_bytes,
        )
    except StoreError as error:
        return None, f"the prefix store is not used: {error}"
    return store, None
