"""Known tasks of several steps around stored values and measures.

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
from cedagent.upcycle.data.tools_numbers import UNITS, converted
from cedagent.upcycle.data.tools_store import key


def _two_values() -> Chain:
    def draw(d: Draw) -> Values:
        a, b = d.whole(2, 900), d.whole(2, 900)
        sign, words_of = d.pick((("+", "sum"), ("*", "product"), ("-", "difference")))
        if d.split == "heldout" and sign == "-":
            # What people call the difference is the larger one less the smaller one.
            a, b = max(a, b), min(a, b)
        value = {"+": a + b, "*": a * b, "-": a - b}[sign]
        return {"key": key(d), "key2": key(d), "a": a, "b": b, "sign": sign, "what": words_of,
                "result": str(value)}  # fmt: skip

    return Chain(
        specs=specs("get_value calculator"),
        draw=draw,
        steps=lambda v: [
            [
                ("get_value", {"key": v["key"]}, str(v["a"])),
                ("get_value", {"key": v["key2"]}, str(v["b"])),
            ],
            [("calculator", {"expression": f"{v['a']} {v['sign']} {v['b']}"}, v["result"])],
        ],
        asks=lines("""
            =the {what} of the stored values {key} and {key2}
            !read {key} and {key2} from the store and give me their {what}
            ?what is the {what} of {key} and {key2}
        """),
        heldout_asks=lines("""
            two numbers are stored as {key} and {key2}. What is their {what}?
        """),
        answers=lines("""
            the {what} is {result}.
            {a} {sign} {b} is {result}.
            the {what} of {a} and {b} is {result}.
        """),
        needed=("result",),
    )


def _pointer(n: int) -> Chain:
    def draw(d: Draw) -> Values:
        value = d.pick((d.noun(), str(d.whole(10, 9999)), d.code("@%%%-##")))
        return {"keys": [key(d) for _ in range(n)], "value": value}

    def steps(v: Values) -> list[list[Done]]:
        results = [*v["keys"][1:], v["value"]]
        pairs = zip(v["keys"], results, strict=True)
        return [[("get_value", {"key": name}, result)] for name, result in pairs]

    place = "there" if n == 2 else "at the end"
    times = "another key" if n == 2 else "another key, and that one holds a third key"
    return Chain(
        specs=specs("get_value"),
        draw=draw,
        steps=steps,
        asks=lines(f"""
            {{keys.0}} holds the name of {times}. What is the value {place}?
            !follow the keys from {{keys.0}}: it names {times}. Tell me the last value
        """),
        heldout_asks=lines(f"""
            under {{keys.0}} you find {times}. Which value do you get in the end?
        """),
        answers=lines("""
            the value is {value}.
            {keys.0} leads to {value}.
            in the end there is {value}.
        """),
        needed=("value",),
    )  # fmt: skip


def _times_unit() -> Chain:
    def draw(d: Draw) -> Values:
        here = d.pick(("km", "miles", "kg", "pounds", "feet", "gallons", "hours"))
        same = [unit for unit in UNITS if UNITS[unit][0] == UNITS[here][0] and unit != here]
        value, n, there = d.whole(2, 200), d.whole(2, 20), d.pick(same)
        result = converted(value, here, there)
        return {"value": value, "here": here, "there": there, "n": n, "middle": result,
                "result": shown(exact(result) * n)}  # fmt: skip

    return Chain(
        specs=specs("convert_units calculator"),
        draw=draw,
        steps=lambda v: [
            [(
                "convert_units",
                {"value": v["value"], "from_unit": v["here"], "to_unit": v["there"]},
                str(v["middle"]),
            )],
            [("calculator", {"expression": f"{v['middle']} * {v['n']}"}, v["result"])],
        ],
        asks=lines("""
            !convert {value} {here} to {there} and multiply that by {n}
            ?how many {there} are {value} {here}, times {n}
        """),
        heldout_asks=lines("""
            one lap is {value} {here}. I want it in {there} first, and then for {n} laps
        """),
        answers=lines("""
            that is {result} {there}.
            {middle} {there} times {n} is {result}.
        """),
        needed=("result",),
    )  # fmt: skip


def _keep_money() -> Chain:
    def draw(d: Draw) -> Values:
        amount, rate = d.whole(5, 900), d.real(0.5, 2, places=3)
        return {"amount": amount, "rate": rate, "key": key(d),
                "result": plain(amount * exact(rate))}  # fmt: skip

    return Chain(
        specs=specs("convert_currency save_note"),
        draw=draw,
        steps=lambda v: [
            [(
                "convert_currency",
                {"amount": v["amount"], "from": "USD", "to": "EUR"},
                compact({"rate": v["rate"], "result": v["result"]}),
            )],
            [(
                "save_note",
                {"title": v["key"], "text": str(v["result"])},
                compact({"saved": True}),
            )],
        ],
        heldout_asks=lines("""
            !convert {amount} USD to EUR and save just the result as a note titled "{key}"
        """),
        answers=("{result} is saved.",),
        needed=("result",),
    )  # fmt: skip


def value_chains() -> tuple[Chain, ...]:
    """Return the chains of this module."""
    return (
        _two_values(),
        _pointer(2),
        _pointer(3),
        _times_unit(),
        _keep_money(),
    )
