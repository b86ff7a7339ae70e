"""Known tasks of several steps around prices, orders and parcels.

Each says what the tools return and which argument comes from it. Invariant: training and held-out
templates are different texts; what has none for training is a combination that is held out whole.
"""

from __future__ import annotations

from cedagent.upcycle.data.chain import Chain, Done, Values
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.numbers import exact, plain, shown
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.skill import compact
from cedagent.upcycle.data.skills import specs
from cedagent.upcycle.data.tools_shop import STATES


def _total() -> Chain:
    def draw(d: Draw) -> Values:
        n, price = d.whole(2, 40), d.price()
        return {"n": n, "product": f"{d.noun()} {d.thing()}", "price": price,
                "total": shown(n * exact(price))}  # fmt: skip

    return Chain(
        specs=specs("get_price calculator"),
        draw=draw,
        steps=lambda v: [
            [(
                "get_price",
                {"product": v["product"]},
                compact({"price": v["price"], "currency": "EUR"}),
            )],
            [("calculator", {"expression": f"{v['n']} * {v['price']}"}, v["total"])],
        ],
        asks=lines("""
            ?what do {n} pieces of the {product} cost
            =the price of {n} times the {product}
            !look up the {product} and work out the price of {n}
            I want {n} of the {product}. How much is that in the shop?
        """),
        heldout_asks=lines("""
            ?how much money do I need for {n} of the {product}
            !check the shop's price for the {product} and tell the total for {n}
        """),
        answers=lines("""
            {n} of the {product} cost {total} EUR.
            one costs {price}, so {n} cost {total} EUR.
            that is {total} EUR in all.
        """),
        needed=("total",),
    )  # fmt: skip


def _order_values(d: Draw) -> Values:
    return {
        "order": d.code("@-####"), "parcel": d.code("@@########"), "state": d.pick(STATES),
        "place": d.city(), "due": d.date(), "person": d.first_name(),
    }  # fmt: skip


def _order_steps(v: Values) -> list[list[Done]]:
    order = {"order": v["order"], "state": v["state"], "parcel": v["parcel"]}
    parcel = {"place": v["place"], "state": v["state"], "due": v["due"]}
    return [
        [("order_status", {"order": v["order"]}, compact(order))],
        [("track_parcel", {"parcel": v["parcel"]}, compact(parcel))],
    ]


def _parcel() -> Chain:
    return Chain(
        specs=specs("order_status track_parcel"),
        draw=_order_values,
        steps=_order_steps,
        asks=lines("""
            ?in which city is the parcel of order {order}
            !track the parcel that belongs to order {order}
            !look up order {order} and find out where its parcel is
        """),
        heldout_asks=lines("""
            ?where has the parcel for my order {order} got to
            order {order} should have a parcel. Where is that now?
        """),
        answers=lines("""
            the parcel of order {order} is in {place}.
            it is in {place} and due on {due}.
            parcel {parcel} is in {place}.
        """),
        needed=("place",),
    )


def _parcel_news() -> Chain:
    def steps(v: Values) -> list[list[Done]]:
        message = {"person": v["person"], "text": v["place"]}
        return [*_order_steps(v), [("send_message", message, compact({"delivered": True}))]]

    return Chain(
        specs=specs("order_status track_parcel send_message"),
        draw=_order_values,
        steps=steps,
        asks=lines("""
            !find out where the parcel of order {order} is and send {person} the name of the city
            !look up order {order}, track its parcel and message just the place to {person}
        """),
        heldout_asks=lines("""
            {person} asks which city the parcel of order {order} is in. Find it out and send \
                only its name
        """),
        answers=lines("""
            the parcel is in {place}; {person} knows now.
            I told {person} that it is in {place}.
            {person} got the message: {place}.
        """),
        needed=("place",),
    )  # fmt: skip


def _buy() -> Chain:
    def draw(d: Draw) -> Values:
        return {"thing": d.thing(), "n": d.whole(1, 30), "sku": d.code("@@-####"),
                "noun": d.noun(), "price": d.price(), "order": d.code("@-####")}  # fmt: skip

    return Chain(
        specs=specs("search_products place_order"),
        draw=draw,
        steps=lambda v: [
            [(
                "search_products",
                {"query": v["thing"]},
                compact({"hits": [{
                    "sku": v["sku"], "name": f"{v['noun']} {v['thing']}", "price": v["price"]
                }]}),
            )],
            [(
                "place_order",
                {"items": [{"sku": v["sku"], "quantity": v["n"]}]},
                compact({"order": v["order"], "total": plain(v["n"] * exact(v["price"]))}),
            )],
        ],
        asks=lines("""
            !search for a {thing} and order {n} of the first hit
            I need {n} times a {thing}. Find one in the shop and order it.
            !look for a {thing} in the shop and buy {n}
        """),
        heldout_asks=lines("""
            !see what the shop has as {thing} and put {n} of it on order
        """),
        answers=lines("""
            I ordered {n} of {sku}: order {order}.
            order {order} is placed: {n} x {sku}.
            done, {n} of the {noun} {thing} are order {order}.
        """),
        needed=("order",),
    )  # fmt: skip


def _book_expense() -> Chain:
    return Chain(
        specs=specs("get_price log_expense"),
        draw=lambda d: {"product": f"{d.noun()} {d.thing()}", "price": d.price(),
                        "category": d.pick(("office", "travel", "training")),
                        "entry": d.whole(1, 999)},
        steps=lambda v: [
            [(
                "get_price",
                {"product": v["product"]},
                compact({"price": v["price"], "currency": "EUR"}),
            )],
            [(
                "log_expense",
                {"amount": v["price"], "category": v["category"]},
                compact({"entry": v["entry"]}),
            )],
        ],
        heldout_asks=lines("""
            I bought the {product} at the shop's price. Log that as an expense for {category}
            !look up what the {product} costs and log it as an expense in the category {category}
        """),
        answers=("entry {entry}: {price}.",),
        needed=("price",),
    )  # fmt: skip


def shop_chains() -> tuple[Chain, ...]:
    """Return the chains of this module."""
    return (
        _total(),
        _parcel(),
        _parcel_news(),
        _buy(),
        _book_expense(),
    )
