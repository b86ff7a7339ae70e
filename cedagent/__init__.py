"""cedagent: a tool-calling agent on CED models whose KV survives a restart.

The public names are loaded when they are first used, so that `import cedagent` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cedagent.agent.agent import Agent
    from cedagent.agent.limits import Limits
    from cedagent.agent.outcome import RunResult, ToolCall, WarmReport
    from cedagent.agent.session import Session
    from cedagent.agent.tools import Abort, Context, Tool, ToolError, tool
    from cedagent.engine.engine import Engine
    from cedagent.errors import CedError
    from cedagent.events import (
        Done,
        Notice,
        Prefill,
        Text,
        Thinking,
        ToolArgs,
        ToolEnd,
        ToolStart,
        Usage,
        as_json,
    )

__version__ = "0.1.0"

__all__ = [
    "Abort",
    "Agent",
    "CedError",
    "Context",
    "Done",
    "Engine",
    "Limits",
    "Notice",
    "Prefill",
    "RunResult",
    "Session",
    "Text",
    "Thinking",
    "Tool",
    "ToolArgs",
    "ToolCall",
    "ToolEnd",
    "ToolError",
    "ToolStart",
    "Usage",
    "WarmReport",
    "as_json",
    "tool",
]

_MODULES = {
    "cedagent.agent.agent": ("Agent",),
    "cedagent.agent.limits": ("Limits",),
    "cedagent.agent.outcome": ("RunResult", "ToolCall", "WarmReport"),
    "cedagent.agent.session": ("Session",),
    "cedagent.agent.tools": ("Abort", "Context", "Tool", "ToolError", "tool"),
    "cedagent.engine": ("Engine",),
    "cedagent.errors": ("CedError",),
    "cedagent.events": (
        "Done",
        "Notice",
        "Prefill",
        "Text",
        "Thinking",
        "ToolArgs",
        "ToolEnd",
        "ToolStart",
        "Usage",
        "as_json",
    ),
}
_HOME_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'cedagent' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
