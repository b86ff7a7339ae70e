"""Tensors and a JSON object in one safetensors file that appears whole or not at all.

Knows nothing of what they are. Invariant: whenever a process dies, the path holds the old file or
the new one, never a part of either.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open
from torch import Tensor

from cedagent.errors import CedError
from cedagent.model.tensor_file import save_tensors

# One key alone: several are written in no fixed order.
_KEY = "cedagent"


def write_whole(path: Path, tensors: Mapping[str, Tensor], *, values: Mapping[str, Any]) -> None:
    """Replace the file at `path`; raises CedError when it cannot be written."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        save_tensors(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
            temporary,
            metadata={_KEY: json.dumps(values, sort_keys=True)},
        )
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise CedError(f"cannot write {path}: {error}") from error


def read_whole(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the object; raises ValueError for a file that holds no such two."""
    try:
        with safe_open(path, framework="pt") as file:
            opened = cast(Any, file)
            values = json.loads((opened.metadata() or {}).get(_KEY, "null"))
            tensors = {name: opened.get_tensor(name) for name in list(opened.keys())}
    except (SafetensorError, OSError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(values, dict):
        raise ValueError("its metadata was not written by cedagent")
    return tensors, values
