"""Shards: the safetensors files of one model directory, mapped into memory.

Knows files, headers and bytes; knows no model. Opening reads headers alone. A tensor is a view of
the mapped file (safetensors 0.8 maps files privately on a CPU): its pages are read when they are
touched, take no memory that the system cannot have back, and must not be written to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cedagent.errors import WeightsError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Header(NamedTuple):
    """What a file says of one tensor before its bytes are read."""

    dtype: str
    """As safetensors writes it: BF16, F32, F8_E4M3, F8_E8M0, I8."""
    shape: tuple[int, ...]
    path: Path
    """The file that holds it."""


class FileIdentity(NamedTuple):
    """Tells a file from one that took its place."""

    size: int
    mtime_ns: int
    inode: int


class Shards:
    """The tensors of all files of one model directory."""

    def __init__(self, model_dir: Path) -> None:
        """Open model.safetensors, or every file that model.safetensors.index.json names.

        Raises WeightsError that names the file, or the tensor, that is missing or unreadable.
        """
        index = model_dir / INDEX_FILE
        self.where = index if index.is_file() else model_dir / SINGLE_FILE
        places = _places(index) if index.is_file() else None
        paths = {self.where} if places is None else {model_dir / file for file in places.values()}
        self._check_present(paths, places)
        self.identities: dict[Path, FileIdentity] = {}
        self._files: dict[Path, Any] = {}
        for path in sorted(paths):
            self.identities[path], self._files[path] = _open(path)
        self.headers: Mapping[str, Header] = self._read_headers(places)

    def tensor(self, name: str) -> Tensor:
        """Return a view of a tensor's mapped bytes; raises WeightsError."""
        path = self.headers[name].path
        try:
            tensor: Tensor = self._files[path].get_tensor(name)
        except SafetensorError as error:
            raise WeightsError(f"{path}: tensor {name} cannot be read: {error}") from None
        return tensor

    def stored_bytes(self, name: str) -> Tensor:
        """Return a view of a tensor's mapped bytes, [n] uint8."""
        return self.tensor(name).reshape(-1).view(torch.uint8)

    def _check_present(self, paths: set[Path], places: Mapping[str, str] | None) -> None:
        missing = sorted(path for path in paths if not path.is_file())
        if not missing:
            return
        if places is None:
            raise WeightsError(
                f"{missing[0]}: no such file; expected {SINGLE_FILE} or {INDEX_FILE} with its "
                "shards"
            )
        example = next(name for name, file in places.items() if file == missing[0].name)
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise WeightsError(
            f"{missing[0]}: no such file{more}; {INDEX_FILE} names it for {example}: fetch the "
            "missing shards"
        )

    def _read_headers(self, places: Mapping[str, str] | None) -> dict[str, Header]:
        headers: dict[str, Header] = {}
        for path, file in self._files.items():
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if places is None or places.get(name) == path.name:
                    piece = file.get_slice(name)
                    headers[name] = Header(piece.get_dtype(), tuple(piece.get_shape()), path)
        for name, place in (places or {}).items():
            if name not in headers:
                raise WeightsError(
                    f"{self.where}: tensor {name} is not in {place}, where the index says it is; "
                    "fetch both again"
                )
        return headers


def _places(index: Path) -> dict[str, str]:
    """Return tensor -> file name of an index; raises WeightsError."""
    try:
        values = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{index}: cannot be read as JSON: {error}") from None
    except RecursionError:
        raise WeightsError(f"{index}: cannot be read as JSON: nested too deeply") from None
    places = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(places, dict) or not places:
        raise WeightsError(f"{index}: expected an object weight_map, got {places!r}")
    for name, file in places.items():
        if not isinstance(file, str) or not _is_file_name(file):
            raise WeightsError(f"{index}: expected a file name for {name}, got {file!r}")
    return cast("dict[str, str]", places)


def _is_file_name(text: str) -> bool:
    # A path could lead out of the model directory.
    return text not in ("", "..") and text.isprintable() and Path(text).name == text


def _open(path: Path) -> tuple[FileIdentity, Any]:
    if not os.access(path, os.R_OK):
        raise WeightsError(f"{path}: this user may not read it; change its permissions")
    try:
        found = path.stat()
        file: Any = safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: not a whole safetensors file: {error}") from None
    return FileIdentity(found.st_size, found.st_mtime_ns, found.st_ino), file
