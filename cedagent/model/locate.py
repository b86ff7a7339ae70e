"""Finds a model directory by name or path.

Knows where models live, not what is in them. A path to a folder with config.json wins over a name.
"""

from __future__ import annotations

from pathlib import Path

from cedagent.errors import UsageError
from cedagent.paths import models_dir

DEFAULT_MODEL = "smollm2-135m-ced"
"""The model that `cedagent model pull` makes and that is used when none is named."""


def resolve_model(name_or_path: str | Path) -> Path:
    """Return the model directory that a name or a path means.

    A name is a folder under the models folder. Raises UsageError that lists the models there are.
    """
    path = Path(name_or_path).expanduser()
    if (path / "config.json").is_file():
        return path
    if path.exists():
        raise UsageError(f"{path} is not a model directory: expected a folder with config.json")
    home = models_dir()
    # Only a bare name means a model of ours; "x/y" was meant as a path.
    if path.name == str(name_or_path) and (home / path / "config.json").is_file():
        return home / path
    known = installed_models()
    there = f"in {home} there is {', '.join(known)}" if known else f"there is none in {home} yet"
    raise UsageError(
        f"no model {str(name_or_path)!r}: expected a model directory or a name; {there}; "
        f"`cedagent model pull` makes {DEFAULT_MODEL}"
    )


def installed_models() -> list[str]:
    """Return the names of the models under the models folder, sorted."""
    found = models_dir().glob("*/config.json")
    return sorted(path.parent.name for path in found if not path.parent.name.startswith("."))
