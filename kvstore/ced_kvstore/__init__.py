"""A prefix store: rows of token blocks on disk, keyed by the hash of everything before them.

It knows bytes, token ids (opaque u32) and named streams; it knows neither tensors nor a model.
"""

from __future__ import annotations

from ced_kvstore.errors import StoreError, VersionError
from ced_kvstore.files import Files
from ced_kvstore.hashing import BLOCK_TOKENS, FORMAT_VERSION
from ced_kvstore.results import (
    Anchor,
    Commit,
    Explanation,
    Match,
    Problem,
    Removal,
    StoreStats,
    Stream,
)
from ced_kvstore.store import Store

__all__ = [
    "BLOCK_TOKENS",
    "FORMAT_VERSION",
    "Anchor",
    "Commit",
    "Explanation",
    "Files",
    "Match",
    "Problem",
    "Removal",
    "Store",
    "StoreError",
    "StoreStats",
    "Stream",
    "VersionError",
]
