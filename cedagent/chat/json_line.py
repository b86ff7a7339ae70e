"""JSON as formats show it and as the grammar enforces it: one line, fixed separators.

Knows nothing of tools. Invariant: what `dumps` writes is what a schema with `LAYOUT` allows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""What `x-guidance` in a schema says about white space."""


def dumps(value: Any) -> str:
    """Return JSON on one line, key order as given; raises ValueError for what JSON has not."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(f"expected JSON values, got: {error}") from None
    except ValueError:
        # NaN and infinities, or a value that holds itself; the library names neither.
        raise ValueError("expected JSON values, got NaN, an infinity or a circle") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(type(value).__name__)
