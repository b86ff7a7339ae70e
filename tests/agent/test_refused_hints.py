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


class Measured:
    """Describes itself with a step that doubles cannot count in."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"x": {"type": "number", "multipleOf": 0.1}}}

    @classmethod
    def model_validate(cls, value: Any) -> Measured:
        return cls()


def test_a_class_with_multiples_of_a_fraction_is_refused_at_decoration() -> None:
    def use(value: Measured) -> None:
        """Use it."""

    use.__annotations__ = {"value": Measured}
    with pytest.raises(ToolDefinitionError, match=r"a whole number .* as multipleOf, got 0\.1"):
        tool(use)


def test_an_example_that_json_cannot_say_is_refused() -> None:
    def use(value: float) -> None:
        """Use it."""

    use.__annotations__ = {"value": float}
    with pytest.raises(ToolDefinitionError, match=r"example 'How.' .* NaN"):
        tool(examples=[("How?", {"value": float("nan")})])(use)


def test_a_default_that_json_cannot_say_is_not_shown() -> None:
    def use(value: float = float("nan")) -> None:
        """Use it."""

    use.__annotations__ = {"value": float}
    assert tool(use).spec.parameters["properties"] == {"value": {"type": "number"}}
