"""Known tools over texts; their results are computed, never made up.

Each is a schema with what people ask of it and what it returns. Invariant: training and held-out
templates are different texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.schemas import flag, list_of, one_of, text, tool
from cedagent.upcycle.data.skill import Skill


def _sort() -> Skill:
    def ordered(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        found = sorted(arguments["items"], reverse=arguments.get("descending", False))
        return {"sorted": found, "_said": ", ".join(found)}

    return Skill(
        spec=tool(
            "sort_words",
            "Sort words by the alphabet.",
            {"items": list_of(text()), "descending": flag(default=False)},
        ),
        area="texts",
        draw=lambda d: {
            "items": list({d.noun(): None for _ in range(d.whole(3, 6))}),
            "descending": True,
        },
        asks=lines("""
            !sort {items}
            !sort these words<, descending{descending=true?}>: {items}
            !put {items} in alphabetical order
            !order {items}< from z to a{descending=true?}>
        """),
        heldout_asks=lines("""
            !arrange the words {items} by the alphabet
            !line up {items}< in descending{descending=true?} order>
        """),
        result=ordered,
        answers=lines("""
            {_said}.
            sorted: {_said}.
            the order is {_said}.
        """),
        needed=("_said",),
    )


def _letters() -> Skill:
    return Skill(
        spec=tool("count_letters", "Count the letters of a word.", {"word": text()}),
        area="texts",
        draw=lambda d: {"word": d.noun()},
        asks=lines("""
            ?how many letters does the word {word} have
            ?how long is the word {word}
            !count the letters of "{word}"
            =the number of letters in {word}
        """),
        heldout_asks=lines("""
            ?of how many letters does "{word}" consist
            =the length of the word {word}
        """),
        result=lambda d, a: {"shown": len(a["word"])},
        shows="{shown}",
        answers=lines("""
            {word} has {shown} letters.
            the word {word} has {shown} letters.
            "{word}" is {shown} letters long.
        """),
        needed=("shown",),
        vary="word",
        joins=True,
    )


def _transform() -> Skill:
    changes: dict[str, Callable[[str], str]] = {
        "upper": str.upper,
        "title": str.title,
        "reverse": lambda text: text[::-1],
    }

    def change(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"shown": changes[arguments["mode"]](arguments["text"])}

    return Skill(
        spec=tool(
            "change_text",
            "Change the letters of a text.",
            {"text": text(), "mode": one_of("upper", "title", "reverse")},
        ),
        area="texts",
        draw=lambda d: {
            "text": d.pick((d.noun(), d.message(), d.thing())),
            "mode": d.pick(("upper", "title", "reverse")),
        },
        asks=lines("""
            !write "{text}" {mode:upper=in capitals/in upper case,title=in title \
                case,reverse=backwards}
            !{mode:upper=uppercase,title=title-case,reverse=reverse} the text "{text}"
            ?what is "{text}" {mode:upper=in capital letters,title=in title case,reverse=in reverse}
        """),
        heldout_asks=lines("""
            !turn "{text}" {mode:upper=into capitals,title=into title case,reverse=round so that \
                it reads backwards}
        """),
        result=change,
        shows="{shown}",
        answers=lines("""
            {shown}
            here it is: {shown}
            the text is now "{shown}".
        """),
        needed=("shown",),
    )


def text_skills() -> tuple[Skill, ...]:
    """Return the skills of this module."""
    return (
        _sort(),
        _letters(),
        _transform(),
    )
