"""Classes that describe and check their values themselves, as pydantic's models do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import cedagent as ca
from cedagent.errors import ToolDefinitionError
from cedagent.testing import ScriptedModel, call

Make = Callable[..., ScriptedModel]


class Model:
    """The two methods by which such a class is known, and the one that writes values out."""

    schema: dict[str, Any]

    def __init__(self, **values: Any) -> None:
        self.values = values

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return cls.schema

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if value.get("total", 0) < 0:
            raise ValueError("1 validation error\n  total: is to be 0 or more")
        return cls(**value)

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return self.values


class Invoice(Model):
    schema = {  # noqa: RUF012 (a stand-in's constant)
        "title": "Invoice",
        "type": "object",
        "properties": {
            "total": {"title": "Total", "type": "integer"},
            "title": {"title": "Title", "type": "string", "default": "none"},
            "due": {"format": "date", "type": "string"},
            "lines": {
                "items": {"$ref": "#/$defs/Line"},
                "type": "array",
                "uniqueItems": True,
            },
            "by": {
                "discriminator": {"mapping": {"a": "#/$defs/Line"}, "propertyName": "k"},
                "oneOf": [{"$ref": "#/$defs/Line"}, {"type": "null"}],
            },
        },
        "required": ["total"],
        "$defs": {
            "Line": {
                "title": "Line",
                "type": "object",
                "properties": {"what": {"title": "What", "type": "string"}},
                "required": ["what"],
            }
        },
    }


@dataclass
class Line:
    n: int


@dataclass
class Order:
    invoice: Invoice
    line: Line


def test_its_schema_is_offered_closed_and_without_titles() -> None:
    @ca.tool
    def pay(invoice: Invoice, line: Line) -> None:
        """Pay it."""

    schema = pay.spec.parameters
    assert schema["properties"]["invoice"] == {"$ref": "#/$defs/Invoice"}
    parts = schema["$defs"]
    assert set(parts) == {"Invoice", "Invoice.Line", "Line"}
    assert parts["Line"]["properties"] == {"n": {"type": "integer"}}
    invoice = parts["Invoice"]
    assert invoice["additionalProperties"] is False
    assert parts["Invoice.Line"]["additionalProperties"] is False
    assert invoice["properties"]["title"] == {"type": "string", "default": "none"}
    assert "02-29" in invoice["properties"]["due"]["pattern"]
    assert invoice["properties"]["lines"]["items"] == {"$ref": "#/$defs/Invoice.Line"}
    assert invoice["properties"]["by"]["anyOf"] == [
        {"$ref": "#/$defs/Invoice.Line"},
        {"type": "null"},
    ]


def test_a_run_gives_the_tool_a_value_and_takes_one_back(scripted: Make) -> None:
    seen: list[Any] = []

    @ca.tool(paged=False)
    def pay(invoice: Invoice, also: Invoice | None = None) -> Invoice:
        """Pay it."""
        seen.extend([invoice, also])
        return invoice

    model = scripted(call("pay", invoice={"total": 3}), "Paid.")
    result = ca.Agent(model, tools=[pay]).run("Go.")
    assert type(seen[0]) is Invoice
    assert seen[0].values == {"total": 3}
    assert seen[1] is None
    assert result.tool_calls[0].result == '{"total":3}'


def test_it_may_stand_inside_other_types() -> None:
    @ca.tool
    def pay(orders: list[Order]) -> None:
        """Pay them."""

    given = {"orders": [{"invoice": {"total": 3}, "line": {"n": 1}}]}
    (order,) = pay.signature.convert(given)["orders"]
    assert isinstance(order, Order)
    assert order.invoice.values == {"total": 3}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"total": -1}, "1 validation error total: is to be 0 or more"),
        ({"total": 1, "extra": 2}, "extra"),
        ({"total": 1, "lines": [{"what": "a", "odd": 1}]}, "odd"),
        ({"total": 1, "by": {"what": "a", "odd": 1}}, "odd"),
    ],
)
def test_what_it_refuses_is_one_line_and_no_key_is_dropped(value: Any, said: str) -> None:
    @ca.tool
    def pay(invoice: Invoice) -> None:
        """Pay it."""

    with pytest.raises(ValueError, match=said) as caught:
        pay.signature.convert({"invoice": value})
    assert "\n" not in str(caught.value)


def test_a_schema_that_cannot_be_enforced_is_refused_at_decoration() -> None:
    class Odd(Model):
        schema = {"type": "object", "not": {"type": "null"}}  # noqa: RUF012

    def use(value: Any) -> None:
        """Use it."""

    use.__annotations__ = {"value": Odd}
    with pytest.raises(ToolDefinitionError, match=r"test_model_schemas\.py:\d+.*not") as caught:
        ca.tool(use)
    assert "\n" not in str(caught.value)
