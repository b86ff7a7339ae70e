"""One sequence at a time through a CED model: encode, replay, decode, settle, reuse.

`protocol` is free of torch; the rest is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cedagent.threads import spin_briefly

if TYPE_CHECKING:
    from cedagent.engine.engine import Engine
    from cedagent.engine.sequence import CedSequence

__all__ = ["CedSequence", "Engine"]


def __getattr__(name: str) -> Any:
    # Lazy, so that what needs only `cedagent.engine.protocol` loads no torch.
    spin_briefly()
    if name == "Engine":
        from cedagent.engine.engine import Engine

        return Engine
    if name == "CedSequence":
        from cedagent.engine.sequence import CedSequence

        return CedSequence
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
