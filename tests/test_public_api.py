from __future__ import annotations

import subprocess
import sys

import pytest

import cedagent

NAMES = [
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


def test_public_names_are_sorted_and_complete() -> None:
    assert cedagent.__all__ == sorted(cedagent.__all__)
    assert cedagent.__all__ == NAMES
    for name in NAMES:
        value = getattr(cedagent, name)
        assert value.__name__ == name
        assert value.__doc__, f"{name} has no docstring"
    assert set(NAMES) <= set(dir(cedagent))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = cedagent.nothing


def test_importing_cedagent_loads_only_itself() -> None:
    script = "import sys, cedagent; print(*sorted(sys.modules))"
    path = [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "msgspec", "tokenizers", "llguidance", "numpy", "asyncio"}
    assert {name for name in loaded if name.startswith("cedagent")} == {"cedagent"}


def test_an_agent_loads_no_torch() -> None:
    script = (
        "from cedagent import Agent, Session, tool\n"
        "from cedagent.testing import ScriptedModel\n"
        "assert Agent(ScriptedModel(['Hello.'])).run('Hi.').text == 'Hello.'\n"
        "assert 'torch' not in sys.modules\n"
    )
    path = [entry for entry in sys.path if entry]
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{script}"], check=True
    )
