"""What stored rows depend on, as flat plain fields: change one, and old rows are a miss.

Decoder weights, replay settings, thread count and chat template are not in it: rows do not depend
on them. Implementations that tests prove bit-equal share one name.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path

import torch

from cedagent.model.ced import CedModel
from cedagent.model.weights import weight_groups

_ENCODED_FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "n_encoder_layers",
    "encoder_global_layers",
)  # fmt: skip
"""Config fields that the encoder reads."""


def fingerprint(model: CedModel, model_dir: Path) -> dict[str, str | int | None]:
    """Return the fields that decide what an encoded row is."""
    config = model.config
    int8 = model.precision == "int8"
    fields: dict[str, str | int | None] = {"format": 1, "family": config.model_type}
    for name in _ENCODED_FIELDS:
        value = getattr(config, name)
        fields[f"config.{name}"] = value.hex() if isinstance(value, float) else str(value)
    for group, names in weight_groups(config).items():
        if group == "embedding" or _is_encoder_layer(group, config.n_encoder_layers):
            fields[f"weights.{group}"] = model.checkpoint.digest(names)
    fields["streams.kv"] = "int8 codes, float16 scale per row and head" if int8 else "float32"
    fields["streams.e_out"] = str(model.e_out_dtype).removeprefix("torch.")
    fields["weights.dtype"] = model.precision
    fields["ops.product"] = "int8_exact" if int8 else "float32"
    fields["ops.kernels"] = model.kernels.name
    fields["torch"] = torch.__version__
    fields["device"] = "cpu"
    fields["cpu.capability"] = torch.backends.cpu.get_cpu_capability()
    fields["cpu.family"] = cpu_family()
    fields["tokenizer"] = tokenizer_digest(model_dir)
    return fields


def model_digest(model: CedModel) -> str:
    """Return a hex digest of the config and all weights in use."""
    config = model.config.as_json()
    total = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for names in weight_groups(model.config).values():
        total.update(model.checkpoint.digest(names).encode())
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


def _is_encoder_layer(group: str, n_encoder_layers: int) -> bool:
    return group.startswith("layers.") and int(group.removeprefix("layers.")) < n_encoder_layers
