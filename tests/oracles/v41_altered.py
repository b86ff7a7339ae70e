"""A model directory with a few changes: fields of its text_config, or tensors of its one file."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file


def altered(src: Path, dst: Path, *, text=None, change=None) -> Path:
    """Copy `src` to `dst`; `text` replaces config fields, `change(tensors)` edits the weights."""
    dst.mkdir()
    for path in src.iterdir():
        if path.name not in ("config.json", "model.safetensors", "expected.safetensors"):
            shutil.copy(path, dst / path.name)
    config = json.loads((src / "config.json").read_text())
    config["text_config"] |= text or {}
    (dst / "config.json").write_text(json.dumps(config))
    if change is None:
        (dst / "model.safetensors").symlink_to(src / "model.safetensors")
    else:
        tensors = load_file(src / "model.safetensors")
        change(tensors)
        save_file(tensors, dst / "model.safetensors")
    return dst
