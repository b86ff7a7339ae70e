"""Known tools of a calendar: events, reminders, alarms.

Each is a schema with what people ask of it and what it returns; nothing runs. Invariant: training
and held-out templates are different texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import joined, lines
from cedagent.upcycle.data.schemas import (
    day,
    flag,
    list_of,
    maybe,
    one_of,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill


def _reminder() -> Skill:
    return Skill(
        spec=tool(
            "set_reminder",
            "Remind the user of something.",
            {
                "text": text("What to be reminded of."),
                "time": text("Time of day, such as 07:30."),
                "date": maybe(day(), "Today if left out."),
                "repeat": maybe(one_of("daily", "weekly", "monthly")),
            },
        ),
        area="reminders",
        draw=lambda d: {
            "text": d.task(),
            "time": d.time(),
            "date": d.date(),
            "repeat": d.pick(("daily", "weekly", "monthly")),
        },
        asks=lines("""
            [remind me|please remind me|can you remind me] to {text} at {time}< on {date}>
            !set a reminder for {time}< on {date}>: {text}
            !set a< {repeat}> reminder at {time} to {text}
            I must {text}< on {date}>. Remind me at {time}.
        """),
        heldout_asks=lines("""
            don't let me forget to {text}: ping me at {time}< on {date}>
            nudge me at {time}< on {date}> so that I {text}
        """),
        result=lambda d, a: {"id": d.whole(1, 900), "status": "set"},
        answers=lines("""
            I will remind you at {time} to {text}.
            done: reminder {id} is set for {time}.
            your reminder for {time} is set.
        """),
        needed=("time",),
        wish="set reminders",
    )


def _event() -> Skill:
    def event(draw: Draw) -> dict[str, Any]:
        return {
            "title": draw.topic().removeprefix("the "),
            "date": draw.date(),
            "start": draw.time(),
            "minutes": draw.pick((15, 20, 30, 45, 60, 90, 120)),
            "attendees": list({draw.first_name(): None for _ in range(draw.whole(1, 3))}),
        }

    return Skill(
        spec=tool(
            "create_event",
            "Put an event into the calendar.",
            {
                "title": text(),
                "date": day(),
                "start": text("Time of day, such as 14:00."),
                "minutes": whole("How long it takes.", least=5, default=60),
                "attendees": list_of(text(), "Who takes part.", default=[]),
            },
        ),
        area="calendar",
        draw=event,
        asks=lines("""
            !schedule "{title}" on {date} at {start}<, {minutes} minutes>< with {attendees}>
            !put "{title}" into my calendar for {date}, {start}< for {minutes} minutes>
            !create an event called "{title}" on {date} at {start}<; invite {attendees}>
            new event: {title}, {date}, {start}<, {minutes} minutes>
        """),
        heldout_asks=lines("""
            !block {start} on {date} for "{title}"< ({minutes} minutes)>
            on {date} at {start} we have "{title}"<, together with {attendees}>. Add it to the \
                calendar
        """),
        result=lambda d, a: {"event_id": d.whole(100, 9999), "status": "created"},
        answers=lines("""
            "{title}" is in your calendar for {date} at {start}.
            event {event_id} is created: {title}, {date}, {start}.
            done, event {event_id} is on {date} at {start}.
        """),
        needed=("date",),
        wish="write into the calendar",
    )


def _events() -> Skill:
    def events(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        titles = [draw.topic().removeprefix("the ") for _ in range(draw.whole(1, 3))]
        rows = [{"id": draw.whole(100, 9999), "start": draw.time(), "title": t} for t in titles]
        said = joined([f"{row['title']} at {row['start']}" for row in rows])
        return {"events": rows, "_said": said, "_titles": titles}

    return Skill(
        spec=tool("list_events", "List the calendar's events of a day.", {"date": day()}),
        area="calendar",
        draw=lambda d: {"date": d.date()},
        asks=lines("""
            =my schedule for {date}
            ?what do I have on {date}
            ?which events are there on {date}
            !list my events of {date}
            ?am I free on {date}
        """),
        heldout_asks=lines("""
            ?what is planned for {date}
            read me my appointments for {date}
        """),
        result=events,
        answers=lines("""
            on {date} you have {_said}.
            {date}: {_said}.
            your events are {_said}.
        """),
        needed=("_titles",),
        vary="date",
        wish="read the calendar",
    )


def _delete_event() -> Skill:
    return Skill(
        spec=tool(
            "delete_event", "Delete an event by its number.", {"event_id": whole(), "notify": flag(
                "Tell those who take part.", default=True)},
        ),
        area="calendar",
        draw=lambda d: {"event_id": d.whole(100, 9999), "notify": False},
        asks=lines("""
            !delete event {event_id}< without telling anybody{notify=false?}>
            !cancel the event with the number {event_id}
            !remove event number {event_id} from my calendar
        """),
        heldout_asks=lines("""
            event {event_id} will not take place. Take it out of the calendar
            !drop event {event_id}< and do not notify anyone{notify=false?}>
        """),
        result=lambda d, a: {"deleted": a["event_id"]},
        answers=lines("""
            event {event_id} is deleted.
            I deleted event {event_id}.
            done, event {event_id} is gone.
        """),
        needed=("event_id",),
        wish="delete events",
    )  # fmt: skip


def _alarm() -> Skill:
    days = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    names = dict(zip(days, ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays",
                            "Saturdays", "Sundays"), strict=True))  # fmt: skip

    def alarm(draw: Draw) -> dict[str, Any]:
        some = draw.some(days, 1, 3)
        chosen = [name for name in days if name in some]
        return {"time": draw.time(), "days": chosen, "_days": joined([names[n] for n in chosen])}

    return Skill(
        spec=tool(
            "set_alarm",
            "Set an alarm clock.",
            {"time": text(), "days": list_of(one_of(*days), "Once if left out.", default=[])},
        ),
        area="reminders",
        draw=alarm,
        asks=lines("""
            [wake me|please wake me] at {time}
            !set an alarm for {time}<{days?} on {_days}>
            [wake|can you wake] me up at {time}<{days?} on {_days}>
            alarm {time}
        """),
        heldout_asks=lines("""
            !make the clock ring at {time}<{days?} on {_days}>
            I need to get up at {time}. Set my alarm clock
        """),
        result=lambda d, a: {"alarm": a["time"], "on": True},
        answers=lines("""
            your alarm is set for {time}.
            I set an alarm for {time}.
            the alarm rings at {time}.
        """),
        needed=("time",),
        wish="set alarms",
    )


def calendar_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _reminder(),
        _event(),
        _events(),
        _delete_event(),
        _alarm(),
    )
