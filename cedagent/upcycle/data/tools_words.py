"""Known tools for words: lists, notes, a dictionary, translations.

Each is a schema with what people ask of it and what it returns; nothing runs. Invariant: training
and held-out templates are different texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import joined, lines
from cedagent.upcycle.data.schemas import flag, list_of, one_of, text, tool, whole
from cedagent.upcycle.data.skill import Skill

_LANGUAGES = ("german", "french", "spanish", "italian", "dutch", "polish", "turkish", "swedish")


_MEANINGS = (
    "a small container", "a bright colour", "an old tool", "a kind of bird", "a quiet place",
    "a sudden noise", "a narrow road", "a light meal", "a sharp pain", "a long journey",
    "a piece of cloth", "a tall plant", "a short answer", "a heavy stone", "a warm wind",
)  # fmt: skip


def _lists() -> list[Skill]:
    def adds(draw: Draw) -> dict[str, Any]:
        things = {draw.thing(): None for _ in range(draw.whole(1, 4))}
        return {"list": draw.pick(("shopping", "packing", "wish", "party")), "items": list(things)}

    def shows(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        things = list({draw.thing(): None for _ in range(draw.whole(1, 5))})
        return {"items": things, "_said": joined(things)}

    name = text("Name of the list, such as shopping.")
    return [
        Skill(
            spec=tool(
                "add_to_list",
                "Add things to a list.",
                {"list": name, "items": list_of(text(), minItems=1)},
            ),
            area="lists",
            draw=adds,
            asks=lines("""
                !add {items} to my {list} list
                !put {items} on the {list} list
                we need {items}. Write that on the {list} list.
                {list} list: add {items}
            """),
            heldout_asks=lines("""
                my {list} list still lacks {items}. Fill that in
                !note down {items} on the {list} list
            """),
            result=lambda d, a: {"added": len(a["items"])},
            answers=lines("""
                I added {items} to your {list} list.
                {items}: now on the {list} list.
                done, {items} [is|are] on the {list} list.
            """),
            needed=("items",),
            wish="change lists",
        ),
        Skill(
            spec=tool("show_list", "Show what is on a list.", {"list": name}),
            area="lists",
            draw=lambda d: {"list": f"{d.noun()} {d.pick(('list', 'trip', 'project', 'box'))}"},
            asks=lines("""
                ?what is on the list "{list}"
                [show me|read me|open] the list "{list}"
                =everything on the list "{list}"
            """),
            heldout_asks=lines("""
                ?which things have I put on the list "{list}"
            """),
            result=shows,
            answers=lines("""
                on the list [is|are] {_said}.
                the list "{list}" has {_said}.
                it says {_said}.
            """),
            needed=("items",),
            wish="show lists",
        ),
    ]


def _translate() -> Skill:
    def translated(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        # What it says does not matter, only that the answer repeats it.
        syllables = ("ka", "lo", "mi", "ter", "an", "us", "vel", "dor", "shi", "ra", "nu", "pe")
        n_words = min(6, len(arguments["text"].split()))
        return {
            "shown": " ".join(
                "".join(draw.pick(syllables) for _ in range(draw.whole(1, 3)))
                for _ in range(n_words)
            )
        }

    return Skill(
        spec=tool(
            "translate",
            "Translate a text.",
            {"text": text(), "to": one_of(*_LANGUAGES, about="Target language.")},
        ),
        area="translation",
        draw=lambda d: {
            "text": d.pick((d.message, d.task, d.noun))(),
            "to": d.pick(_LANGUAGES),
            "_to": None,
        },
        asks=lines("""
            !translate "{text}" into {to}
            ?what is "{text}" in {to}
            ?how do you say "{text}" in {to}
            !put "{text}" into {to}
        """),
        heldout_asks=lines("""
            =the {to} for "{text}"
            ?what would "{text}" be in {to}
        """),
        result=translated,
        shows="{shown}",
        answers=lines("""
            in {to} it is "{shown}".
            "{text}" is "{shown}" in {to}.
            the translation is "{shown}".
        """),
        needed=("shown",),
    )


def _define() -> Skill:
    return Skill(
        spec=tool(
            "define_word",
            "Look a word up in the dictionary.",
            {"word": text(), "max_meanings": whole(least=1, most=5, default=1)},
        ),
        area="words",
        draw=lambda d: {"word": d.noun(), "max_meanings": d.whole(2, 5)},
        asks=lines("""
            !look up the word "{word}" in the dictionary
            !define "{word}"<, with up to {max_meanings} meanings>
            =the dictionary entry for {word}
            ?what does the dictionary say about "{word}"
        """),
        heldout_asks=lines("""
            !consult the dictionary on "{word}"
            ?how is {word} explained in the dictionary< ({max_meanings} meanings)>
        """),
        result=lambda d, a: {
            "meanings": d.rng.sample(_MEANINGS, a.get("max_meanings", 1)),
        },
        answers=lines("""
            "{word}" means {meanings}.
            the dictionary says: {meanings}.
            {word}: {meanings}.
        """),
        needed=("meanings",),
        vary="word",
        joins=True,
    )


def _note() -> Skill:
    return Skill(
        spec=tool(
            "save_note",
            "Save a note under a title.",
            {
                "title": text(),
                "text": text(),
                "tags": list_of(text(), default=[], maxItems=5),
                "pinned": flag(default=False),
            },
        ),
        area="notes",
        draw=lambda d: {
            "title": d.topic().removeprefix("the "),
            "text": d.message(),
            "tags": list({d.noun(): None for _ in range(d.whole(1, 3))}),
            "pinned": True,
        },
        asks=lines("""
            !save a note "{title}": {text}<. Tags: {tags}>
            !note under "{title}" that {text}
            !write down that {text}, title "{title}"<, tagged {tags}>
            !save and pin{pinned=true?} the note "{title}" with the text "{text}"
        """),
        heldout_asks=lines("""
            !keep this for later as "{title}": {text}<; tags {tags}>
            !make a pinned{pinned=true?} note called "{title}" that reads "{text}"
        """),
        result=lambda d, a: {"note": d.whole(1, 999), "saved": True},
        answers=lines("""
            your note "{title}" is saved.
            I saved "{title}" as note {note}.
            note {note}, "{title}", is saved.
        """),
        needed=("title",),
        wish="save notes",
    )


def word_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        *_lists(),
        _translate(),
        _define(),
        _note(),
    )
