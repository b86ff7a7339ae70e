"""Known tasks of several steps around people and places.

Each says what the tools return and which argument comes from it. Invariant: training and held-out
templates are different texts; what has none for training is a combination that is held out whole.
"""

from __future__ import annotations

from cedagent.upcycle.data.chain import Chain, Values
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.skill import compact
from cedagent.upcycle.data.skills import specs
from cedagent.upcycle.data.tools_days import SKIES
from cedagent.upcycle.data.tools_places import place


def _mail() -> Chain:
    def draw(d: Draw) -> Values:
        name = d.person()
        subject = d.topic().removeprefix("the ")
        return {"name": name, "email": d.email(name), "subject": subject, "body": d.message(),
                "phone": d.phone()}  # fmt: skip

    return Chain(
        specs=specs("find_contact send_email"),
        draw=draw,
        steps=lambda v: [
            [(
                "find_contact",
                {"name": v["name"]},
                compact({"name": v["name"], "email": v["email"], "phone": v["phone"]}),
            )],
            [(
                "send_email",
                {"to": v["email"], "subject": v["subject"], "body": v["body"]},
                compact({"sent": True}),
            )],
        ],
        asks=lines("""
            !email {name} about "{subject}" and say: {body}
            !look up {name}'s address and send an e-mail "{subject}" that says "{body}"
            !write an e-mail to {name}, subject "{subject}", text "{body}"
        """),
        heldout_asks=lines("""
            {name} is in the address book. Mail the text "{body}" there, headed "{subject}"
            !find out where to reach {name} by e-mail and send "{body}" under the subject \
                "{subject}"
        """),
        answers=lines("""
            I sent the e-mail to {name} at {email}.
            the e-mail to {email} is sent.
            done: {name} ({email}) has your e-mail.
        """),
        needed=("email",),
    )  # fmt: skip


def _place_weather() -> Chain:
    def draw(d: Draw) -> Values:
        return {"name": place(d), "lat": round(d.rng.uniform(-80, 80), 2), "sky": d.pick(SKIES),
                "lon": round(d.rng.uniform(-179, 179), 2), "temp": d.whole(-12, 38)}  # fmt: skip

    return Chain(
        specs=specs("find_place weather_at"),
        draw=draw,
        steps=lambda v: [
            [("find_place", {"name": v["name"]}, compact({"lat": v["lat"], "lon": v["lon"]}))],
            [(
                "weather_at",
                {"lat": v["lat"], "lon": v["lon"]},
                compact({"temp": v["temp"], "sky": v["sky"]}),
            )],
        ],
        asks=lines("""
            =the weather at {name}
            ?how is the weather in {name}
            !find {name} and check the weather there
            ?how warm is it at {name}
        """),
        heldout_asks=lines("""
            ?what are the skies like over {name}
            !look {name} up and see whether it is cold there
        """),
        answers=lines("""
            at {name} it is {temp} degrees and {sky}.
            it is {sky} with {temp} degrees at {name}.
            {name}: {temp} degrees, {sky}.
        """),
        needed=("temp",),
    )  # fmt: skip


def people_chains() -> tuple[Chain, ...]:
    """Return the chains of this module."""
    return (
        _mail(),
        _place_weather(),
    )
