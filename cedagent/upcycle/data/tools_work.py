"""Known tools of work: tickets, expenses, versions.

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
    real,
    text,
    tool,
    whole,
)
from cedagent.upcycle.data.skill import Skill


def _ticket() -> Skill:
    return Skill(
        spec=tool(
            "create_ticket",
            "Open a ticket.",
            {
                "title": text(),
                "priority": one_of("low", "normal", "high", default="normal"),
                "assignee": maybe(text(), "Nobody if null.", default=None),
                "tags": list_of(text(), default=[]),
            },
        ),
        area="tickets",
        draw=lambda d: {
            "title": d.task(),
            "priority": d.pick(("low", "high")),
            "assignee": d.first_name() if d.chance(0.7) else None,
            "tags": list({d.noun(): None for _ in range(d.whole(1, 3))}),
        },
        asks=lines("""
            !open a< {priority} priority> ticket: "{title}"<, tags {tags}>
            !create a ticket "{title}"<, {priority} priority><, assigned to {assignee}>
            !file a ticket called "{title}"< for {assignee}><, priority {priority}><, tagged {tags}>
            !open a ticket "{title}" with no{assignee=null?} assignee
        """),
        heldout_asks=lines("""
            !log this as a ticket: "{title}"<. Priority: {priority}><. Tags: {tags}>
            "{title}" needs a ticket<; give it to {assignee}>
            !raise a ticket "{title}" and set the assignee to null{assignee=null?}
        """),
        result=lambda d, a: {"ticket": d.whole(100, 9999), "state": "open"},
        answers=lines("""
            ticket {ticket} is open.
            I opened ticket {ticket}: {title}.
            "{title}" is ticket {ticket}.
        """),
        needed=("ticket",),
        wish="open tickets",
    )


def _close_ticket() -> Skill:
    return Skill(
        spec=tool(
            "close_ticket",
            "Close a ticket.",
            {"ticket": whole(), "reason": one_of("done", "duplicate", "rejected", default="done")},
        ),
        area="tickets",
        draw=lambda d: {
            "ticket": d.whole(100, 9999), "reason": d.pick(("duplicate", "rejected"))
        },
        asks=lines("""
            !close ticket {ticket}< as {reason}>
            ticket {ticket} is {reason:duplicate=a duplicate,rejected=rejected}. Close it.
            !mark ticket {ticket} as closed<, reason {reason}>
        """),
        heldout_asks=lines("""
            we are through with ticket {ticket}. Close it
            !shut ticket {ticket}< and give {reason} as the reason>
        """),
        result=lambda d, a: {"ticket": a["ticket"], "state": "closed"},
        answers=lines("""
            ticket {ticket} is closed.
            I closed ticket {ticket}.
            done, {ticket} is closed.
        """),
        needed=("ticket",),
        wish="close tickets",
    )  # fmt: skip


def _expense() -> Skill:
    kinds = ("travel", "food", "office", "training", "other")
    return Skill(
        spec=tool(
            "log_expense",
            "Write down an expense.",
            {
                "amount": real(least=0),
                "category": one_of(*kinds),
                "note": maybe(text()),
                "refund": flag("Whether it is to be paid back.", default=False),
            },
        ),
        area="expenses",
        draw=lambda d: {
            "amount": d.price(), "category": d.pick(kinds), "note": d.thing(), "refund": True
        },
        asks=lines("""
            !log {amount} for {category}< ({note})>
            I spent {amount} on {category}<: {note}>. Write that down.
            !add an expense of {amount} in the category {category}<, note "{note}">
            expense: {amount}, {category}<, to be refunded{refund=true?}>
        """),
        heldout_asks=lines("""
            {amount} went to {category} today<, namely for "{note}">. Keep track of it
            !book {amount} under {category}< and have it paid back{refund=true?}>
        """),
        result=lambda d, a: {"entry": d.whole(1, 999), "total": d.price()},
        answers=lines("""
            {amount} for {category} is logged as entry {entry}.
            I wrote down {amount} for {category} (entry {entry}).
            entry {entry} is saved.
        """),
        needed=("entry",),
        wish="log expenses",
    )  # fmt: skip


def _commits() -> Skill:
    def commits(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        n = min(arguments.get("count", 3), 5)
        rows = [f"{draw.code('%%%%%%%')} {draw.task()}" for _ in range(n)]
        return {"shown": "\n".join(rows), "_said": joined(rows), "_all": rows}

    return Skill(
        spec=tool(
            "git_log",
            "Latest commits of the repository.",
            {
                "count": whole(least=1, default=3),
                "author": maybe(text()),
                "branch": text(default="main"),
            },
        ),
        area="versions",
        draw=lambda d: {
            "count": d.whole(1, 5),
            "author": d.first_name(),
            "branch": f"{d.noun()}-{d.stem()}",
        },
        asks=lines("""
            =the last {count} commits< by {author}>< on {branch}>
            !list the latest commits< by {author}>< on the branch {branch}>
            ?what did {author} commit lately
            ?what changed lately on {branch}
        """),
        heldout_asks=lines("""
            ?which commits are the newest< on {branch}>< from {author}>
            =the {count} most recent commits< of {author}>
        """),
        result=commits,
        shows="{shown}",
        answers=lines("""
            the latest [is|are] {_said}.
            {_said}.
            I see {_said}.
        """),
        needed=("_all",),
        wish="look at commits",
    )


def work_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _ticket(),
        _close_ticket(),
        _expense(),
        _commits(),
    )
