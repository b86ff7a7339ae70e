"""Register tools and let the model call one. Run: python examples/tools.py [MODEL]

Without an argument it uses a tiny model with random weights: the call is well formed all the same,
because the call grammar leaves the model no other choice; its arguments are noise.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Literal

import cedagent as ca


@ca.tool(examples=[("What is 20 C in Fahrenheit?", {"degrees": 20, "unit": "C"})])
def convert(degrees: int, unit: Literal["C", "F"]) -> str:
    """Convert a temperature to the other unit.

    Args:
        degrees: The temperature.
        unit: Its unit.
    """
    if abs(degrees) > 10_000:
        raise ca.ToolError("that is hotter than anything here; use a smaller number")
    return f"{degrees * 9 / 5 + 32:g} F" if unit == "C" else f"{(degrees - 32) * 5 / 9:g} C"


def main(model: str) -> None:
    engine = ca.Engine.load(model)
    agent = ca.Agent(engine, tools=[convert], limits=ca.Limits(tokens=120), seed=1)
    result = agent.run("What is 25 C in Fahrenheit?", tool_choice="convert")
    for call in result.tool_calls:
        print(f"{call.name}({call.arguments}) = {call.result}")
    print(result.text)
    print(f"[{result.stop_reason}]")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from cedagent.model.tiny import write_tiny

        with tempfile.TemporaryDirectory() as folder:
            main(str(write_tiny(Path(folder) / "tiny")))
