"""Where things live: sessions in the user's data folder, models and KV in the cache folder.

Follows the XDG variables; `CEDAGENT_HOME` overrides both. Only names paths: nothing is created.
"""

from __future__ import annotations

import os
from pathlib import Path


def data_home() -> Path:
    """Return the folder for what must not be lost: `CEDAGENT_HOME`, or the XDG data folder."""
    home = os.environ.get("CEDAGENT_HOME")
    return Path(home).expanduser() if home else _xdg("XDG_DATA_HOME", ".local/share")


def cache_home() -> Path:
    """Return the folder for what can be made again, `CEDAGENT_HOME`/cache or by XDG."""
    home = os.environ.get("CEDAGENT_HOME")
    return Path(home).expanduser() / "cache" if home else _xdg("XDG_CACHE_HOME", ".cache")


def models_dir() -> Path:
    """Return the folder that holds one folder per model."""
    return cache_home() / "models"


def kv_dir() -> Path:
    """Return the folder of the prefix store."""
    return cache_home() / "kv"


def sessions_dir() -> Path:
    """Return the folder of the session logs."""
    return data_home() / "sessions"


def _xdg(variable: str, fallback: str) -> Path:
    # The XDG specification says that a relative path is to be ignored.
    value = os.environ.get(variable, "")
    base = Path(value) if value and Path(value).is_absolute() else Path.home() / fallback
    return base / "cedagent"
