"""The wording around the list of tools that a DeepSeek checkpoint brings in its `encoding/` folder.

Knows that the folder holds Python with the wording as a string constant. Invariant: nothing there
is ever executed; a constant is read as a literal, whatever else the file says.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cedagent.chat.dsml_render import SCHEMAS_FIELD

_MAX_BYTES: Final = 4 << 20


def load_tools_template(model_dir: Path) -> str | None:
    """Return the tools template of a checkpoint, or None if it brings none that can be read.

    It is a module-level string with one `{tool_schemas}`; one with TOOLS in its name comes first.
    """
    found: list[tuple[bool, str]] = []
    for path in sorted(Path(model_dir).glob("encoding/*.py")):
        found += (("TOOLS" not in name.upper(), text) for name, text in _constants(path))
    usable = [item for item in found if item[1].count(SCHEMAS_FIELD) == 1]
    return min(usable, key=lambda item: item[0])[1] if usable else None


def _constants(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the module-level string constants of a Python file, none if it cannot be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return
        module = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for statement in module.body:
        targets: list[ast.expr]
        match statement:
            case ast.Assign(targets=targets, value=expression):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as expression):
                targets = [target]
            case _:
                continue
        try:
            value = ast.literal_eval(expression)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(value, str):
            yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))
