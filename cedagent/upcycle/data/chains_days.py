"""Known tasks of several steps around calendars and clocks.

Each says what the tools return and which argument comes from it. Invariant: training and held-out
templates are different texts; what has none for training is a combination that is held out whole.
"""

from __future__ import annotations

import datetime

from cedagent.upcycle.data.builtin_skills import moment
from cedagent.upcycle.data.chain import Chain, Values
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.skill import compact
from cedagent.upcycle.data.skills import specs


def _cancel() -> Chain:
    def draw(d: Draw) -> Values:
        titles = list({d.topic().removeprefix("the "): None for _ in range(d.whole(2, 4))})
        rows = [{"id": d.whole(100, 9999), "start": d.time(), "title": t} for t in titles]
        row = d.pick(rows)
        return {"date": d.date(), "rows": rows, "title": row["title"], "event_id": row["id"]}

    return Chain(
        specs=specs("list_events delete_event"),
        draw=draw,
        steps=lambda v: [
            [("list_events", {"date": v["date"]}, compact({"events": v["rows"]}))],
            [("delete_event", {"event_id": v["event_id"]}, compact({"deleted": v["event_id"]}))],
        ],
        asks=lines("""
            !cancel the {title} on {date}
            !delete "{title}" from my calendar of {date}
            !look at {date} and remove the event "{title}"
        """),
        heldout_asks=lines("""
            the {title} on {date} is off. Take it out of my calendar
            !find the {title} among the events of {date} and drop it
        """),
        answers=lines("""
            I deleted the {title} (event {event_id}).
            event {event_id}, {title}, is deleted.
            done: {title} on {date} is gone, event {event_id}.
        """),
        needed=("title",),
    )


def _today(d: Draw) -> Values:
    now = moment(d, "UTC +00")
    return {"now": now["shown"], "today": now["_date"], "weekday": now["_weekday"]}


def _until() -> Chain:
    def draw(d: Draw) -> Values:
        values = _today(d)
        end = datetime.date.fromisoformat(values["today"]) + datetime.timedelta(d.whole(2, 900))
        days = (end - datetime.date.fromisoformat(values["today"])).days
        return {**values, "end": end.isoformat(), "days": days}

    return Chain(
        specs=specs("now days_between"),
        draw=draw,
        steps=lambda v: [
            [("now", {}, v["now"])],
            [("days_between", {"start": v["today"], "end": v["end"]}, str(v["days"]))],
        ],
        asks=lines("""
            ?how many days are left until {end}
            ?how many days from today to {end}
            =the number of days until {end}
        """),
        heldout_asks=lines("""
            ?how long do I have to wait for {end}, in days, from now
            !count the days from now to {end}
        """),
        answers=lines("""
            there are {days} days left until {end}.
            from today, {today}, it is {days} days.
            {days} days.
        """),
        needed=("days",),
    )


def _later() -> Chain:
    def draw(d: Draw) -> Values:
        values, n = _today(d), d.whole(2, 300)
        end = datetime.date.fromisoformat(values["today"]) + datetime.timedelta(n)
        return {**values, "n": n, "end": end.isoformat(), "endday": f"{end:%A}"}

    return Chain(
        specs=specs("now add_days"),
        draw=draw,
        steps=lambda v: [
            [("now", {}, v["now"])],
            [(
                "add_days",
                {"date": v["today"], "days": v["n"]},
                compact({"date": v["end"], "weekday": v["endday"]}),
            )],
        ],
        asks=lines("""
            ?which date is it in {n} days
            ?what day is {n} days from now
            =the date {n} days from today
        """),
        heldout_asks=lines("""
            ?counting from today, which date do we have in {n} days
        """),
        answers=lines("""
            in {n} days it is {end}.
            that is {end}, a {endday}.
            {n} days from today is {end}.
        """),
        needed=("end",),
    )  # fmt: skip


def _agenda() -> Chain:
    def draw(d: Draw) -> Values:
        rows = [{"id": d.whole(100, 9999), "start": d.time(),
                 "title": d.topic().removeprefix("the ")}]  # fmt: skip
        return {**_today(d), "rows": rows, "title": rows[0]["title"], "start": rows[0]["start"]}

    return Chain(
        specs=specs("now list_events"),
        draw=draw,
        steps=lambda v: [
            [("now", {}, v["now"])],
            [("list_events", {"date": v["today"]}, compact({"events": v["rows"]}))],
        ],
        asks=lines("""
            ?what is on my calendar today
            ?do I have anything planned for today
            !list today's events
            =my schedule for today
        """),
        heldout_asks=lines("""
            ?is there anything in the calendar for this very day
            !read today's appointments to me
        """),
        answers=lines("""
            today you have {title} at {start}.
            there is {title} at {start}.
            on {today}: {title}, {start}.
        """),
        needed=("title",),
    )


def _later_events() -> Chain:
    def draw(d: Draw) -> Values:
        date, n = d.date(), d.whole(2, 90)
        end = datetime.date.fromisoformat(date) + datetime.timedelta(n)
        return {"date": date, "n": n, "end": end.isoformat(), "weekday": f"{end:%A}",
                "title": d.topic().removeprefix("the "), "start": d.time()}  # fmt: skip

    return Chain(
        specs=specs("add_days list_events"),
        draw=draw,
        steps=lambda v: [
            [(
                "add_days",
                {"date": v["date"], "days": v["n"]},
                compact({"date": v["end"], "weekday": v["weekday"]}),
            )],
            [(
                "list_events",
                {"date": v["end"]},
                compact({"events": [{"id": 512, "start": v["start"], "title": v["title"]}]}),
            )],
        ],
        heldout_asks=lines("""
            ?which events do I have {n} days after {date}
            !list my events of the day that is {n} days after {date}
        """),
        answers=("you have {title}.",),
        needed=("title",),
    )  # fmt: skip


def day_chains() -> tuple[Chain, ...]:
    """Return the chains of this module."""
    return (
        _cancel(),
        _until(),
        _later(),
        _agenda(),
        _later_events(),
    )
