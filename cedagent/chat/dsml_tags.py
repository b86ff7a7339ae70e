"""The tags of DSML calls, as text between marks, and which tag may follow which.

Knows spelling and order alone. A tag is `<` or `</`, the DSML mark, and one of these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

CALLS: Final = " calls"
INVOKE: Final = " invoke"
PARAMETER: Final = " parameter"
"""Tag names; the space belongs to them, because each of them is one token that way."""

INVOKE_HEAD: Final = f'{INVOKE} name="'
PARAMETER_HEAD: Final = f'{PARAMETER} name="'
NAME_END: Final = '">\n'
TEXT_END: Final = '" string="true">'
JSON_END: Final = '" string="false">'
"""What ends a name in a tag; none of them may be part of one."""

LONGEST_NAME: Final = 1_000
"""Characters of a tag's text up to the end of its name."""

Tag = Literal["calls", "invoke", "parameter", "/parameter", "/invoke", "/calls", "lost"]
"""What is being read; `lost` is what no tag may look like."""

FIXED: Final[Mapping[Tag, str]] = {
    "calls": f"{CALLS}>\n",
    "/parameter": f"{PARAMETER}>\n",
    "/invoke": f"{INVOKE}>\n",
    "/calls": f"{CALLS}>",
}
"""Tags without a name, up to where the next tag's `<` or `</` may stand."""

NEXT: Final[Mapping[tuple[Tag, str], Tag]] = {
    ("calls", "<"): "invoke",
    ("invoke", "<"): "parameter",
    ("invoke", "</"): "/invoke",
    # A call without parameters has an empty line where they would be, or not even that.
    ("invoke", "\n</"): "/invoke",
    ("parameter", "</"): "/parameter",
    ("/parameter", "<"): "parameter",
    ("/parameter", "</"): "/invoke",
    ("/invoke", "<"): "invoke",
    ("/invoke", "</"): "/calls",
}
"""(a tag, what leads the next mark) -> the next tag."""


def name_problem(name: str) -> str | None:
    """Return what keeps a tool's or a parameter's name from being read back, or None."""
    if any(end in name for end in (NAME_END, TEXT_END, JSON_END)):
        return "names without the marks that end one"
    if len(PARAMETER_HEAD) + len(name) + len(JSON_END) > LONGEST_NAME:
        return f"names of at most {LONGEST_NAME - len(PARAMETER_HEAD) - len(JSON_END)} characters"
    return None
