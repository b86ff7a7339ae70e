"""Writes a safetensors file that others may read as they may read any other file.

Knows names and tensors, nothing of what they are. Whether a file appears whole is its writer's
matter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], path: Path, *, metadata: Mapping[str, str]) -> None:
    """Write the file; raises OSError and SafetensorError as the library does."""
    save_file(dict(tensors), path, metadata=dict(metadata))
    # The library makes files private; weights are as public as the files beside them.
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
