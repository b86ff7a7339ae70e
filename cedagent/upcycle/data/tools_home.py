"""Known tools of a home: lights, heating, music, doors.

Each is a schema with what people ask of it and what it returns; nothing runs. Invariant: training
and held-out templates are different texts.
"""

from __future__ import annotations

from cedagent.upcycle.data.phrasing import lines
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

ROOMS = (
    "kitchen", "bedroom", "hall", "bathroom", "garage", "office", "attic", "cellar", "nursery",
    "living room", "dining room", "guest room", "porch", "laundry room", "library",
)  # fmt: skip


_COLORS = ("red", "blue", "green", "warm white", "purple", "orange", "pink")


def _light() -> Skill:
    return Skill(
        spec=tool(
            "set_light",
            "Switch the light of a room.",
            {
                "room": text(),
                "on": flag(),
                "brightness": whole("Percent.", least=1, most=100, default=100),
                "color": maybe(one_of(*_COLORS)),
            },
        ),
        area="lights",
        draw=lambda d: {
            "room": d.word(ROOMS),
            "on": d.chance(0.6),
            "brightness": d.whole(1, 99),
            "color": d.pick(_COLORS),
        },
        asks=lines("""
            !turn the light in the {room} {on:true=on,false=off}
            !switch {on:true=on,false=off} the {room} light
            {room} light {on:true=on,false=off}
            !set the {room} light to {on=true?}{brightness} percent
            !make the light in the {room} {on=true?}{color}<, at {brightness} percent>
            it is too {on:true=dark,false=bright} in the {room}. Turn the light \
                {on:true=on,false=off}.
        """),
        heldout_asks=lines("""
            the {room} light should be {on:true=on,false=off}
            !light the {room} in {on=true?}{color}
            !dim the {room} to {on=true?}{brightness} percent
        """),
        result=lambda d, a: {"ok": True, "room": a["room"]},
        answers=lines("""
            the light in the {room} is {on:true=on,false=off}<, {color}>< at {brightness} percent>.
            done: {room} light {on:true=on,false=off}.
            I switched the {room} light {on:true=on,false=off}.
        """),
        needed=("room",),
        wish="switch lights",
    )


def _heating() -> Skill:
    return Skill(
        spec=tool(
            "set_heating",
            "Set the temperature of a room.",
            {
                "room": text(),
                "degrees": real("Celsius.", least=5, most=30),
                "until": maybe(text(), "Time of day; for good if left out."),
            },
        ),
        area="heating",
        draw=lambda d: {
            "room": d.word(ROOMS),
            "degrees": d.pick((d.whole(12, 28), d.whole(12, 27) + 0.5)),
            "until": d.time(),
        },
        asks=lines("""
            !set the {room} to {degrees} degrees< until {until}>
            !heat the {room} to {degrees} degrees< until {until}>
            I want {degrees} degrees in the {room}<, but only until {until}>
            !set the heating in the {room} to {degrees}
        """),
        heldout_asks=lines("""
            the {room} should have {degrees} degrees< up to {until}>
            !bring the {room} to {degrees} degrees
        """),
        result=lambda d, a: {"room": a["room"], "target": a["degrees"], "now": d.whole(10, 24)},
        answers=lines("""
            the {room} is set to {target} degrees.
            I set the {room} to {target} degrees; it has {now} now.
            {room}: {target} degrees.
        """),
        needed=("target",),
        wish="set the heating",
    )


def _music() -> Skill:
    return Skill(
        spec=tool(
            "play_music",
            "Play music.",
            {
                "title": text("Song, album or playlist."),
                "artist": maybe(text()),
                "room": maybe(text()),
                "shuffle": flag(default=False),
            },
        ),
        area="music",
        draw=lambda d: {
            "title": f"{d.noun().title()} {d.noun().title()}",
            "artist": d.person(),
            "room": d.word(ROOMS),
            "shuffle": True,
        },
        asks=lines("""
            !play "{title}"< by {artist}>< in the {room}>
            !put on {title}< by {artist}>
            !shuffle{shuffle=true?} the album "{title}"
            I want to hear {title}< by {artist}>< in the {room}>
        """),
        heldout_asks=lines("""
            let's have some music: {title}< from {artist}>< for the {room}>
            !start "{title}"< by {artist}>< in shuffled{shuffle=true?} order>
        """),
        result=lambda d, a: {"playing": a["title"], "length": f"{d.whole(2, 9)}:{d.code('2#')}"},
        answers=lines("""
            now playing {playing}< by {artist}>.
            {playing} is playing< in the {room}>.
            I started {playing}.
        """),
        needed=("playing",),
        wish="play music",
    )


def _scene() -> Skill:
    return Skill(
        spec=tool(
            "lock_doors",
            "Lock or unlock doors of the house.",
            {
                "doors": list_of(one_of("front", "back", "garage", "cellar"), minItems=1),
                "locked": flag(),
            },
        ),
        area="doors",
        draw=lambda d: {
            "doors": d.some(("front", "back", "garage", "cellar"), 1, 3),
            "locked": d.chance(0.6),
        },
        asks=lines("""
            !{locked:true=lock,false=unlock} the {doors} door
            ?can the {doors} door be {locked:true=locked,false=unlocked}
            !{locked:true=lock,false=open the lock of} these doors: {doors}
        """),
        heldout_asks=lines("""
            the {doors} door should be {locked:true=locked,false=unlocked} now
            !see to it that the {doors} door is {locked:true=locked,false=unlocked}
        """),
        result=lambda d, a: {"ok": True},
        answers=lines("""
            the {doors} door is {locked:true=locked,false=unlocked}.
            done: {doors} {locked:true=locked,false=unlocked}.
            {locked:true=Locked,false=Unlocked}: {doors}.
        """),
        needed=("doors",),
        wish="lock doors",
    )


def home_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _light(),
        _heating(),
        _music(),
        _scene(),
    )
