"""rope_scaling: how a config.json writes that rotary frequencies are stretched.

Field rope_scaling of `text_config` in the release's config.json. Knows the field's spelling, not
the frequencies. Its mscale is ignored, as the release does: queries and keys are not scaled.
"""

from __future__ import annotations

from typing import Any

from ced_kernels.rope import Yarn
from cedagent.errors import ConfigError
from cedagent.model.config_fields import shown, typed

_YARN = {
    "factor": ("factor", "float"),
    "beta_fast": ("beta_fast", "float"),
    "beta_slow": ("beta_slow", "float"),
    "original_positions": ("original_max_position_embeddings", "int"),
}


def yarn_from_json(values: object, *, where: str) -> Yarn | None:
    """Return a parsed rope_scaling; raises ConfigError for what is no plain YaRN."""
    if values is None:
        return None
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: rope_scaling must be an object or null, got {shown(values)}")
    old, new = values.get("type"), values.get("rope_type")
    if old is not None and new is not None and old != new:
        raise ConfigError(
            f"{where}: rope_scaling.type = {shown(old)} contradicts its rope_type {shown(new)}"
        )
    served = {"rope_type": "yarn", "attention_factor": 1, "truncate": True}
    given = {**values, "rope_type": old if new is None else new}
    for name, value in served.items():
        if given.get(name, value) != value:
            got = shown(given[name])
            raise ConfigError(f"{where}: rope_scaling.{name} must be {value!r}, got {got}")
    return Yarn(
        **{
            ours: typed(f"rope_scaling.{theirs}", kind, values.get(theirs), where=where)
            for ours, (theirs, kind) in _YARN.items()
        }
    )


def yarn_as_json(yarn: Yarn | None) -> dict[str, Any] | None:
    """Return the rope_scaling that reads as `yarn`."""
    if yarn is None:
        return None
    numbers = {theirs: getattr(yarn, ours) for ours, (theirs, _) in _YARN.items()}
    return {"rope_type": "yarn"} | numbers
