"""Types that a call grammar cannot bound are refused with file and line, and what to use."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from cedagent import tool
from cedagent.errors import ToolDefinitionError


@pytest.mark.parametrize(
    ("hint", "instead"),
    [
        (bytes, "use str"),
        (list[bytearray], "use str"),
        (dict[datetime.date, int], "use str"),
        (dict[float, int], "use str"),
        (Annotated[float, Meta(multiple_of=0.1)], "use int"),
        (Annotated[int, Meta(ge=5)] | float, "use one of them"),
        (Literal[1, 2] | float, "use one of them"),
        (set[list[int]], "use list"),
        (Annotated[set[int], Meta(min_length=2)], "use list"),
        (Annotated[dict[str, int], Meta(min_length=2)], "check it in the tool"),
        (Annotated[str, Meta(pattern=r"^\w+$")], r"write the characters out"),
        (Annotated[str, Meta(pattern="^(?=a)")], "use a plainer type"),
        (Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)], "use a plainer type"),
        (complex, "use a dataclass"),
        (object, "use a dataclass"),
    ],
    ids=str,
)
def test_what_a_grammar_cannot_bound_is_refused_at_decoration(hint: Any, instead: str) -> None:
    def use(value) -> None:
        """Use it."""

    use.__annotations__ = {"value": hint}
    with pytest.raises(ToolDefinitionError, match=instead) as caught:
        tool(use)
    message = str(caught.value)
    assert f"{__file__}:" in message
    assert "\n" not in message
    assert len(message) < 400
