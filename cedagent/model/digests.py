"""Content digests of tensors, kept on disk by their file's identity.

A tensor's digest is the SHA-256 of its bytes, always of all of them: headers and sizes would not
notice a retrained weight. Since hashing a large checkpoint takes minutes, digests of files above
64 MiB are kept under the cache folder and trusted while the file has the same path, size,
modification time and inode. Knows files and bytes, no model.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from cedagent.model.shards import Shards
from cedagent.paths import cache_home

KEPT_ABOVE = 64 << 20
"""Bytes of a file from which its tensors' digests are kept on disk."""


class Digests:
    """SHA-256 (hex) of tensors by name; each is taken once."""

    def __init__(self, shards: Shards) -> None:
        """Take digests of these files' tensors; reads nothing yet."""
        self._shards = shards
        self._known: dict[Path, dict[str, str]] = {}

    def of(self, names: list[str]) -> list[str]:
        """Return the digests of tensors."""
        found, grown = [], set()
        for name in names:
            path = self._shards.headers[name].path
            known = self._load(path)
            if name not in known:
                content: Any = self._shards.stored_bytes(name).numpy()
                known[name] = hashlib.sha256(content).hexdigest()
                grown.add(path)
            found.append(known[name])
        for path in sorted(grown):
            self._save(path)
        return found

    def _load(self, path: Path) -> dict[str, str]:
        if path not in self._known:
            self._known[path] = {}
            # What is lost or damaged here is taken again.
            with suppress(OSError, ValueError, KeyError, TypeError):
                kept = json.loads(self._file(path).read_text(encoding="utf-8"))
                if kept["identity"] == self._identity(path):
                    self._known[path] = dict(kept["digests"])
        return self._known[path]

    def _save(self, path: Path) -> None:
        if self._shards.identities[path].size < KEPT_ABOVE:
            return
        file = self._file(path)
        values = {"identity": self._identity(path), "digests": self._known[path]}
        temporary = file.with_suffix(f".{os.getpid()}.tmp")
        # A cache folder that cannot be written costs time, nothing else.
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(values), encoding="utf-8")
            os.replace(temporary, file)

    def _identity(self, path: Path) -> list[str | int]:
        return [str(path.resolve()), *self._shards.identities[path]]

    def _file(self, path: Path) -> Path:
        key = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
        return cache_home() / "digests" / f"{key}.json"
