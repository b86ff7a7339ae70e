"""Known tools of a shop: prices, searches, orders, parcels.

Each is a schema with what people ask of it and what it returns; nothing runs. Invariant: training
and held-out templates are different texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import joined, lines
from cedagent.upcycle.data.schemas import (
    flag,
    list_of,
    maybe,
    one_of,
    part,
    real,
    record,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill

STATES = ("packed", "on its way", "in customs", "at the depot", "delivered", "delayed")


def _price() -> Skill:
    return Skill(
        spec=tool(
            "get_price",
            "Price of a product in the shop.",
            {"product": text(), "currency": one_of("EUR", "USD", default="EUR")},
        ),
        area="shop",
        draw=lambda d: {"product": f"{d.noun()} {d.thing()}", "currency": "USD"},
        asks=lines("""
            =the price of the {product}< in {currency}>
            ?how much is the {product}< in {currency}>
            ?what does the {product} cost
            !check what the {product} costs< in {currency}>
        """),
        heldout_asks=lines("""
            ?how expensive is the {product}
            ?what would I pay for the {product}< in {currency}>
        """),
        result=lambda d, a: {"price": d.price(), "currency": a.get("currency", "EUR")},
        answers=lines("""
            the {product} costs {price} {currency}.
            it costs {price} {currency}.
            the price of the {product} is {price} {currency}.
        """),
        needed=("price",),
        vary="product",
        joins=True,
        wish="look up prices",
    )


def _search() -> Skill:
    def found(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        top = arguments.get("max_price", 300)
        rows = [
            {
                "sku": draw.code("@@-####"),
                "name": f"{draw.noun()} {arguments['query']}",
                "price": draw.real(0.3 * top, top, places=2),
            }
            for _ in range(draw.whole(1, 3))
        ]
        said = joined([f"{row['name']} ({row['sku']}) for {row['price']}" for row in rows])
        return {"hits": rows, "_said": said, "_skus": [row["sku"] for row in rows]}

    return Skill(
        spec=tool(
            "search_products",
            "Search the shop.",
            {
                "query": text(),
                "max_price": maybe(real(least=0)),
                "sort": one_of("price", "rating", "newest", default="rating"),
                "in_stock": flag("Only what can be sent at once.", default=False),
            },
        ),
        area="shop",
        draw=lambda d: {
            "query": d.thing(),
            "max_price": d.whole(5, 400),
            "sort": d.pick(("price", "newest")),
            "in_stock": True,
        },
        asks=lines("""
            !search the shop for a {query}< under {max_price}><, sorted by {sort}>
            [find me|please find me|can you find me] a {query}< for at most {max_price}><, in \
                stock{in_stock=true?}>
            I need a {query}<, not more than {max_price}>. What does the shop have?
            ?which {query} can I buy< for up to {max_price}>
        """),
        heldout_asks=lines("""
            ?does the shop sell a {query}< below {max_price}>
            !hunt for a {query}< that costs {max_price} at most><, order by {sort}>
        """),
        result=found,
        answers=lines("""
            there is {_said}.
            I found {_said}.
            the shop has {_said}.
        """),
        needed=("_skus",),
        wish="search the shop",
    )


def _order() -> Skill:
    def order(draw: Draw) -> dict[str, Any]:
        rows = [
            {"sku": draw.code("@@-####"), "quantity": draw.whole(1, 30)}
            for _ in range(draw.whole(1, 3))
        ]
        said = joined([f"{row['quantity']} {draw.pick(('of', 'x'))} {row['sku']}" for row in rows])
        return {
            "items": rows,
            "_items": said,
            "express": True,
            "note": draw.pick(("ring twice", "leave it at the door", "no plastic, please")),
        }

    return Skill(
        spec=tool(
            "place_order",
            "Order articles.",
            {
                "items": list_of(part("Item"), minItems=1),
                "express": flag(default=False),
                "note": maybe(text(), "For the driver."),
            },
            parts={"Item": record({"sku": text(), "quantity": whole(least=1)})},
        ),
        area="orders",
        draw=order,
        asks=lines("""
            !order {items?}{_items}< by express{express=true?}><, with the note "{note}">
            !buy {items?}{_items}
            !place an order: {items?}{_items}<, note "{note}">
            I need {items?}{_items}<, express{express=true?}>. Order it.
        """),
        heldout_asks=lines("""
            our stock is low. Get {items?}{_items}
            !put in an order for {items?}{_items}< and send it express{express=true?}>
        """),
        result=lambda d, a: {"order": d.code("@-####"), "total": d.price()},
        answers=lines("""
            order {order} is placed; the total is {total}.
            I ordered it: {order}, {total} in all.
            done, your order is {order} and costs {total}.
        """),
        needed=("order",),
        wish="order things",
    )


def _status() -> Skill:
    return Skill(
        spec=tool("order_status", "State of an order.", {"order": text("Such as B-1234.")}),
        area="orders",
        draw=lambda d: {"order": d.code("@-####")},
        asks=lines("""
            =the status of order {order}
            ?where is my order {order}
            ?what happened to order {order}
            !check order {order}
        """),
        heldout_asks=lines("""
            ?how far is order {order}
            I still wait for {order}. What's going on?
        """),
        result=lambda d, a: {
            "order": a["order"], "state": d.pick(STATES), "parcel": d.code("@@########")
        },
        answers=lines("""
            order {order} is {state}.
            your order {order} is {state}; the parcel is {parcel}.
            {order}: {state}.
        """),
        needed=("state",),
        vary="order",
        joins=True,
        wish="check orders",
    )  # fmt: skip


def _track() -> Skill:
    return Skill(
        spec=tool(
            "track_parcel",
            "Where a parcel is.",
            {"parcel": text("Its number."), "history": flag("All stations.", default=False)},
        ),
        area="parcels",
        draw=lambda d: {"parcel": d.code("@@########"), "history": True},
        asks=lines("""
            ?where is parcel {parcel}
            !track {parcel}
            !follow the parcel {parcel}< with its whole history{history=true?}>
            =the location of parcel {parcel}
        """),
        heldout_asks=lines("""
            ?which place has parcel {parcel} reached
            !trace shipment {parcel}
        """),
        result=lambda d, a: {"place": d.city(), "state": d.pick(STATES), "due": d.date()},
        answers=lines("""
            parcel {parcel} is in {place}, {state}.
            it is in {place} ({state}) and due on {due}.
            your parcel is in {place}, expected on {due}.
        """),
        needed=("place",),
        vary="parcel",
        wish="track parcels",
    )


def shop_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _price(),
        _search(),
        _order(),
        _status(),
        _track(),
    )
