"""A prefix store: rows of token blocks on disk, keyed by the hash of everything before them.

It knows bytes, token ids (opaque u32) and named streams; it knows neither tensors nor a model. What
only a look at the whole folder returns is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ced_kvstore.errors import StoreError, VersionError
from ced_kvstore.files import Files
from ced_kvstore.hashing import BLOCK_TOKENS, FORMAT_VERSION
from ced_kvstore.results import (
    Anchor,
    Collected,
    Commit,
    Explanation,
    Match,
    Problem,
    Removal,
    StoreStats,
    Stream,
)
from ced_kvstore.store import Store

if TYPE_CHECKING:
    from ced_kvstore.archive import Archived
    from ced_kvstore.forest import TreeNode
    from ced_kvstore.shown import Shown
    from ced_kvstore.unpack import Imported
    from ced_kvstore.usage import Usage

__all__ = [
    "BLOCK_TOKENS",
    "FORMAT_VERSION",
    "Anchor",
    "Archived",
    "Collected",
    "Commit",
    "Explanation",
    "Files",
    "Imported",
    "Match",
    "Problem",
    "Removal",
    "Shown",
    "Store",
    "StoreError",
    "StoreStats",
    "Stream",
    "TreeNode",
    "Usage",
    "VersionError",
]

_MODULES = {
    "Archived": "archive",
    "Imported": "unpack",
    "Shown": "shown",
    "TreeNode": "forest",
    "Usage": "usage",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
