"""Which fields a `deepseek_v41` config.json gives, by the names that are read here.

The release's config.json has them in `text_config`; our own, and copies of some, stand at the top.
Knows spellings, not values. Invariant: a field that is null is not given, since some write null for
a default; where there are Engram layers, every field that decides their hashes is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cedagent.errors import ConfigError
from cedagent.model.engram_map import PAD_SPELLINGS, pad_of
from cedagent.model.v41_limits import ENGRAM_INTEGERS


def given_fields(
    values: Mapping[str, Any], text: Mapping[str, Any], *, where: str
) -> dict[str, Any]:
    """Return name -> value of every field that is given; raises ConfigError."""
    given = {
        name: value
        for place in (values, text)
        for name, value in place.items()
        if value is not None
    }
    try:
        pad = pad_of(given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if pad is not None:
        given[PAD_SPELLINGS[0]] = pad
    eos = given.get("eos_token_id")
    if isinstance(eos, list) and len(eos) == 1:
        given["eos_token_id"] = eos[0]
    missing = [name for name in ENGRAM_INTEGERS if name not in given]
    if given.get("engram_layer_ids") and missing:
        # A default would be another hash and other logits.
        raise ConfigError(
            f"{where}: missing {', '.join(missing)}: expected beside engram_layer_ids"
        )
    return given
