"""What stored rows depend on, as flat plain fields: change one, and old rows are a miss.

Here are the fields that every family has; a family adds its own. Decoder weights, replay settings,
thread count and chat template are in neither: rows do not depend on them. Implementations that
tests prove bit-equal share one name.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch

from cedagent.engine.family import Family


def fingerprint(family: Family[Any], model_dir: Path) -> dict[str, str | int | None]:
    """Return the fields that decide what a stored row is."""
    return {
        "format": 1,
        "family": family.config.model_type,
        **family.fingerprint(),
        "torch": torch.__version__,
        "device": "cpu",
        "cpu.capability": torch.backends.cpu.get_cpu_capability(),
        "cpu.family": cpu_family(),
        "tokenizer": tokenizer_digest(model_dir),
    }


def model_digest(family: Family[Any]) -> str:
    """Return a hex digest of the config and all weights in use."""
    config = family.config.as_json()
    total = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    total.update(family.weights_digest().encode())
    return total.hexdigest()


def tokenizer_digest(model_dir: Path) -> str | None:
    """Return the SHA-256 (hex) of tokenizer.json, None without one."""
    path = model_dir / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def cpu_family() -> str:
    """Return vendor, family and model of the CPU: libraries choose float routines by these."""
    wanted = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
    found: dict[str, str] = {}
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in wanted:
                    found.setdefault(name.strip(), value.strip())
                if not line.strip():
                    break
    except OSError:
        pass
    return " ".join([platform.machine(), *found.values()])
