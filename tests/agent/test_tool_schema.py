from __future__ import annotations

import datetime
import enum
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict

import jsonschema
import pytest

from cedagent import CedError, Context, tool
from cedagent.errors import ToolDefinitionError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Node:
    value: int
    next: Optional[Node] = None  # noqa: UP045 (the old spelling is to work too)


@dataclass
class Point:
    x: int
    y: int = 0


class Query(TypedDict):
    text: str
    limit: NotRequired[int]


CASES = [
    (int, [3, -1, 10**30], ["3", 1.5, None, True]),
    (float, [1.5, 2], ["1.5", None]),
    (bool, [True], [1, "true"]),
    (str, ["a", ""], [1, None]),
    (int | None, [3, None], ["3"]),
    (Optional[str], ["a", None], [3]),  # noqa: UP045
    (Literal["C", "F"], ["C"], ["c", 1]),
    (Literal[1, 2], [1], [3, "1"]),
    (Literal[1, "auto"], [1, "auto"], ["1", 2]),
    (Colour, ["red"], ["RED", "green"]),
    (Point, [{"x": 1}, {"x": 1, "y": 2}], [{}, {"x": 1, "z": 2}, {"x": "1"}]),
    (Query, [{"text": "a"}, {"text": "a", "limit": 3}], [{"limit": 3}, {"text": "a", "z": 1}]),
    (list[int], [[], [1, 2]], [["1"], 1]),
    (list[Point], [[{"x": 1}]], [[{"x": 1, "w": 1}]]),
    (dict[str, int], [{"a": 1}], [{"a": "1"}]),
    (tuple[int, str], [[1, "a"]], [[1], [1, 2], [1, "a", 3]]),
    (set[str], [["a", "b"]], [[1]]),
    (Node, [{"value": 1}, {"value": 1, "next": {"value": 2}}], [{"next": None}]),
    (datetime.datetime, ["2024-02-03T04:05:06Z"], [5]),
    (Path, ["a/b"], [5]),
    (int | list[str], [1, ["a"]], ["a"]),
]


@pytest.mark.parametrize(("hint", "good", "bad"), CASES, ids=[str(case[0]) for case in CASES])
def test_schema_and_conversion_agree(hint: Any, good: list[Any], bad: list[Any]) -> None:
    def use(value) -> str:
        """Use it."""
        return str(value)

    use.__annotations__ = {"value": hint, "return": str}
    made = tool(use)
    schema = made.spec.parameters
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["value"]
    for value in good:
        assert validator.is_valid({"value": value})
        made.signature.convert({"value": value})
    for value in bad:
        assert not validator.is_valid({"value": value})
        with pytest.raises(ValueError, match=r"\S") as caught:
            made.signature.convert({"value": value})
        assert "\n" not in str(caught.value)


def test_converted_arguments_have_the_annotated_types() -> None:
    @tool
    def use(
        colour: Colour, point: Point, path: Path, when: datetime.datetime, tags: set[str]
    ) -> None:
        """Use."""

    given = {
        "colour": "blue",
        "point": {"x": 1},
        "path": "a",
        "when": "2024-01-02T03:04:05",
        "tags": ["a", "a"],
    }
    assert use.signature.convert(given) == {
        "colour": Colour.BLUE,
        "point": Point(1, 0),
        "path": Path("a"),
        "when": datetime.datetime(2024, 1, 2, 3, 4, 5),
        "tags": {"a"},
    }


def test_every_object_is_closed_and_no_titles_are_left() -> None:
    @tool
    def use(node: Node, query: Query, title: str = "t") -> None:
        """Use."""

    def objects(part: Any) -> list[dict[str, Any]]:
        if isinstance(part, list):
            return [found for item in part for found in objects(item)]
        if not isinstance(part, dict):
            return []
        inner = [found for item in part.values() for found in objects(item)]
        return [part, *inner] if "properties" in part else inner

    found = objects(use.spec.parameters)
    assert len(found) == 3
    assert all(item["additionalProperties"] is False for item in found)
    assert all("title" not in item for item in found)
    assert list(use.spec.parameters["properties"]) == ["node", "query", "title"]
    assert use.spec.parameters["$defs"]["Node"]["properties"]["next"]["anyOf"][0] == {
        "$ref": "#/$defs/Node"
    }


def test_defaults_are_kept_and_optional() -> None:
    shared: list[str] = []

    @tool
    def use(
        city: str,
        days: int = 3,
        unit: Literal["C", "F"] = "C",
        tags: list[str] = shared,
        colour: Colour = Colour.RED,
        where: Path = Path("."),
        note: str | None = None,
    ) -> str:
        """Use."""
        return f"{city} {days} {unit} {tags is shared} {colour} {where} {note}"

    schema = use.spec.parameters
    assert schema["required"] == ["city"]
    defaults = {key: item.get("default") for key, item in schema["properties"].items()}
    assert defaults == {
        "city": None,
        "days": 3,
        "unit": "C",
        "tags": [],
        "colour": "red",
        "where": ".",
        "note": None,
    }
    assert "default" in schema["properties"]["note"]
    given = use.signature.convert({"city": "Oslo"})
    assert given == {"city": "Oslo"}
    assert use(**given) == "Oslo 3 C True Colour.RED . None"


def test_texts_come_from_docstring_and_annotated() -> None:
    @tool
    def use(city: str, days: Annotated[int, "How many days."] = 1, unit: str = "C") -> str:
        """Weather in a city.

        A second paragraph.

        Args:
            city (str): The city,
                in any language.
            days: Overruled by the annotation.
        """
        return ""

    assert use.spec.description == "Weather in a city.\n\nA second paragraph."
    properties = use.spec.parameters["properties"]
    assert properties["city"]["description"] == "The city, in any language."
    assert properties["days"]["description"] == "How many days."
    assert "description" not in properties["unit"]


@pytest.mark.parametrize(
    "text",
    [
        "Do.\n\nParameters\n----------\ncity : str\n    The city.\n",
        "Do.\n\n:param city: The city.\n",
        "Do.\n\nArgs:\n    city: The city.\n",
    ],
    ids=["numpy", "sphinx", "google"],
)
def test_docstring_styles(text: str) -> None:
    def use(city: str) -> None: ...

    use.__doc__ = text
    spec = tool(use).spec
    assert spec.description == "Do."
    assert spec.parameters["properties"]["city"]["description"] == "The city."


def test_context_is_hidden_and_injected_by_annotation() -> None:
    @tool
    def use(city: str, ctx: Context, days: int = 1) -> None:
        """Use."""

    assert list(use.spec.parameters["properties"]) == ["city", "days"]
    assert use.signature.context_names == ("ctx",)


def test_methods_and_partials() -> None:
    class Box:
        def get(self, key: str, ctx: Context, default: str = "x") -> str:
            """Get it."""
            return key + default

    made = tool(Box().get)
    assert made.name == "get"
    assert list(made.spec.parameters["properties"]) == ["key", "default"]

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    part = tool(functools.partial(add, b=5))
    assert list(part.spec.parameters["properties"]) == ["a"]
    assert part(a=1) == 6
    assert part.spec.description == "Add."


def _variadic(*values: int) -> None:
    """Do."""


def _keywords(**values: int) -> None:
    """Do."""


def _positional(value: int, /) -> None:
    """Do."""


def _untyped(value) -> None:
    """Do."""


@pytest.mark.parametrize("function", [_variadic, _keywords, _positional, _untyped])
def test_what_cannot_be_described_is_refused_at_decoration(function: Any) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        tool(function)
    message = str(caught.value)
    line = function.__code__.co_firstlineno
    assert f"{__file__}:{line}" in message
    assert "\n" not in message
    assert isinstance(caught.value, CedError)
    assert caught.value.exit_code == 2


def test_hints_are_resolved_at_first_use() -> None:
    @tool
    def use(value: Later) -> None:  # noqa: F821 (defined below, which is the point)
        """Use."""

    with pytest.raises(ToolDefinitionError, match=r"test_tool_schema\.py:\d+.*Later"):
        _ = use.spec
    globals()["Later"] = int
    try:
        assert use.spec.parameters["properties"]["value"] == {"type": "integer"}
    finally:
        del globals()["Later"]


def test_unsupported_hint_is_one_line() -> None:
    class Strange: ...

    def use(value) -> None:
        """Use."""

    use.__annotations__ = {"value": Strange}
    with pytest.raises(ToolDefinitionError, match=r"test_tool_schema\.py:.*Strange") as caught:
        tool(use)
    assert "\n" not in str(caught.value)


def test_examples_must_fit_the_parameters() -> None:
    @tool(examples=[("One?", {"value": 1})])
    def good(value: int) -> None:
        """Do."""

    assert good.spec.examples == (("One?", {"value": 1}),)

    def bad(value: int) -> None:
        """Do."""

    with pytest.raises(ToolDefinitionError, match=r"'One\?'.*Expected `int`"):
        tool(examples=[("One?", {"value": "1"})])(bad)


def test_a_missing_description_warns() -> None:
    def use(value: int) -> None: ...

    with pytest.warns(UserWarning, match="no description"):
        tool(use)


def test_unknown_argument_is_refused() -> None:
    @tool
    def use(value: int) -> None:
        """Do."""

    with pytest.raises(ValueError, match="other"):
        use.signature.convert({"value": 1, "other": 2})


def test_a_call_of_a_tool_is_a_call_of_its_function() -> None:
    @tool(name="plus-one", timeout=3, max_chars=10, approve="ask")
    def use(value: int) -> int:
        """Do."""
        return value + 1

    assert use(1) == 2
    assert (use.name, use.timeout, use.max_chars, use.approve) == ("plus-one", 3, 10, "ask")
