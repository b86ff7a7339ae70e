"""Rows of documents: settings, services, people, stock, jobs, trains, tasks, decisions.

Knows values, no templates. Invariant: a row holds texts and numbers as they are written.
"""

from __future__ import annotations

from typing import Any

from cedagent.upcycle.data.draw import Draw

_SETTINGS = (
    "port", "timeout", "retries", "workers", "max_size", "cache_ttl", "batch", "limit", "interval",
    "pool", "threads", "burst", "backlog", "quota", "grace", "depth",
)  # fmt: skip


def setting(draw: Draw) -> dict[str, Any]:
    """Return a row of this kind."""
    name = f"{draw.stem()}_{draw.pick(_SETTINGS)}"
    value = draw.pick((str(draw.whole(2, 9999)), draw.noun(), draw.code("%%%%%%")))
    return {"name": name, "setting": value}


def service(draw: Draw) -> dict[str, Any]:
    """Return a row of this kind."""
    return {
        "name": f"{draw.noun()}-{draw.stem()}",
        "host": f"10.{draw.whole(0, 255)}.{draw.whole(0, 255)}.{draw.whole(1, 254)}",
        "port": draw.whole(1024, 9999),
        "owner": draw.first_name(),
        "state": draw.pick(("up", "up", "up", "down", "starting", "paused")),
    }


def person(draw: Draw) -> dict[str, Any]:
    """Return a row of this kind."""
    name = draw.person()
    return {
        "name": name,
        "phone": draw.phone(),
        "email": draw.email(name),
        "city": draw.city(),
        "room": draw.code("@##"),
    }


def stock(draw: Draw) -> dict[str, Any]:
    """Return a row of this kind."""
    return {
        "name": f"{draw.noun()} {draw.thing()}",
        "sku": draw.code("@@-####"),
        "price": f"{draw.real(1, 300, places=2):.2f}",
        "quantity": draw.whole(1, 480),
        "shelf": draw.code("@#"),
    }


def job(draw: Draw) -> dict[str, Any]:
    """Return a row of this kind."""
    return {
        "date": draw.date(),
        "time": f"{draw.time()}:{draw.whole(10, 59)}",
        "level": draw.pick(("INFO", "INFO", "INFO", "DEBUG", "WARN")),
        "worker": f"{draw.noun()}-{draw.whole(1, 9)}",
        "name": f"job {draw.code('####')}",
        "duration": f"{draw.whole(3, 9000)} ms",
        "verb": draw.pick(("finished", "stored", "sent", "indexed", "checked", "closed")),
    }


def departure(draw: Draw) -> dict[str, Any]:
    """Return a row of this kind."""
    start, end = draw.cities(2)
    return {
        "name": f"{draw.pick(('IC', 'RE', 'EC', 'NJ'))} {draw.whole(10, 999)}",
        "start": start,
        "end": end,
        "time": draw.time(),
        "platform": str(draw.whole(1, 24)) + draw.pick(("", "", "a", "b")),
    }


def todo(draw: Draw) -> dict[str, Any]:
    """Return a row of this kind."""
    return {"name": draw.task(), "owner": draw.person(), "due": draw.date()}


def clause(draw: Draw) -> dict[str, Any]:
    """Return a row of this kind."""
    return {
        "name": f"{draw.topic()} in {draw.city()}",
        "person": draw.person(),
        "room": draw.code("@##"),
        "budget": str(draw.whole(2, 99) * 100),
        "time": draw.time(),
        "why": draw.message(),
    }
