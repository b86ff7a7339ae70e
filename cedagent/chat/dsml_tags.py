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
