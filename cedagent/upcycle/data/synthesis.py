"""Makes up tools: a verb, a thing and a few parameters, as many as one likes.

Breadth is what carries over to tools that were never seen, so training meets new ones all the time.
Knows fields and skills. Invariant: a made-up tool has what every skill has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.fields import FIELDS, Field
from cedagent.upcycle.data.phrasing import joined, lines
from cedagent.upcycle.data.schemas import Schema, text, tool, whole
from cedagent.upcycle.data.skill import Skill
from cedagent.upcycle.data.verbs import MORE_ABOUT, THINGS, VERBS, Verb


def made_up_skills(draw: Draw, n: int) -> list[Skill]:
    """Return `n` tools with different names, some of them about the same thing."""
    things = draw.some(draw.side(THINGS), 1, max(1, n // 2 + 1))
    style = draw.pick((_snake, _snake, _snake_back, _camel, _kebab))
    made: dict[str, Skill] = {}
    while len(made) < n:
        skill = _make(draw, draw.pick(things), draw.pick(VERBS), style)
        made.setdefault(skill.area, skill)
    return list({skill.spec.name: skill for skill in made.values()}.values())


def named_thing_skill(draw: Draw, called: str) -> tuple[Skill, str, str]:
    """Return a skill about a thing that messages name and calls number, the thing, the number.

    `called` is the name.
    """
    thing = draw.word(THINGS)
    verb = draw.pick([verb for verb in VERBS if verb.by_number])
    skill = _make(draw, thing, verb, _snake, called=called)
    return skill, thing, next(iter(skill.spec.parameters["properties"]))


def _make(
    draw: Draw,
    thing: str,
    verb: Verb,
    style: Callable[[str, str], str],
    *,
    called: str = "",
) -> Skill:
    name = style(draw.pick(verb.names.split()), thing + "s" * (verb.result in ("rows", "count")))
    properties: dict[str, Schema] = {}
    values: dict[str, Callable[[Draw], Any]] = {}
    phrases = []
    number = f"{thing}_id"
    if verb.by_number:
        number = draw.pick((number, "id", "number", f"{thing}_number", thing))
        properties[number], values[number] = _number_field(draw, thing)
    for field in draw.some(FIELDS, *verb.n_fields):
        free = [name for name in field.names.split() if name not in properties]
        if not free:
            continue
        parameter = draw.pick(free)
        # What may be null cannot always be said, so it is optional.
        is_required = "anyOf" not in field.schema() and draw.chance(verb.required)
        properties[parameter] = _schema(draw, field, is_required=is_required)
        values[parameter] = field.value
        phrases.append((parameter, field, is_required))
    for field in draw.some(FIELDS, 0, 2):
        # What nobody mentions is to be left out.
        parameter = draw.pick(field.names.split())
        if parameter not in properties:
            properties[parameter] = _schema(draw, field, is_required=False)
    draw.rng.shuffle(phrases)
    tail = " ".join(_phrase(draw, *phrase) for phrase in phrases)
    asks = lines(verb.asks)
    if called:
        values["_called"] = lambda d: called
        quoted = draw.pick(("{_called}", '"{_called}"', 'called "{_called}"', "{_called}"))
        asks = tuple(ask.replace("[number |]{id}", "{id}").replace("{id}", quoted) for ask in asks)
    asks = tuple(
        ask.replace("@", thing)
        .replace("{id}", f"{{{number}}}")
        .replace(" #", f" {tail}" if tail else "")
        for ask in asks
    )
    about = draw.pick(verb.about.split("|")).replace("@", thing)
    about += draw.pick(MORE_ABOUT).replace("@", thing)
    shape = tool(name, _article(about), _shuffled(draw, properties, keep=number))
    result, answers, needed = _outcome(draw, thing, verb, number)
    return Skill(
        spec=shape,
        area=f"{verb.names} {thing}",
        draw=lambda d: {name: make(d) for name, make in values.items()},
        asks=tuple(_article(ask) for ask in asks),
        result=result,
        answers=answers,
        needed=needed,
        made_up=True,
        vary=number if verb.result == "facts" and not called else "",
        wish=f"{verb.names.split()[0]} {thing}s",
    )


def _number_field(draw: Draw, thing: str) -> tuple[Schema, Callable[[Draw], Any]]:
    about = draw.pick(("", f"Which {thing}.", f"Number of the {thing}."))
    if draw.chance(0.5):
        return whole(about), lambda d: d.whole(1, 9999)
    pattern = draw.pick((f"{thing[0].upper()}-####", "@@###", "%%%%%%", "####-##"))
    return text(about), lambda d: d.code(pattern)


def _schema(draw: Draw, field: Field, *, is_required: bool) -> Schema:
    schema = field.schema()
    schema.pop("default", None)
    about = draw.pick(field.about.split("|"))
    if about:
        schema["description"] = about
    if not is_required:
        if schema.get("type") == "boolean":
            schema["default"] = not field.value(draw)
            return schema
        if "anyOf" not in schema:
            schema.pop("description", None)
            schema = {"anyOf": [schema, {"type": "null"}]}
            if about:
                schema["description"] = about
        schema["default"] = None
    return schema


def _phrase(draw: Draw, parameter: str, field: Field, is_required: bool) -> str:
    says = field.says.split("|")
    phrase = draw.pick(says).replace("{x", f"{{{parameter}")
    comma = draw.pick(("", "", "", ", "))
    return comma + phrase if is_required else f"<{comma}{phrase}>"


def _shuffled(draw: Draw, properties: Mapping[str, Schema], *, keep: str) -> dict[str, Schema]:
    """Put what is required first, most of the time, as functions do."""
    names = [name for name in properties if name != keep]
    if draw.chance(0.8):
        names.sort(key=lambda name: "default" in properties[name])
    first = [keep] if keep in properties else []
    return {name: properties[name] for name in [*first, *names]}


Result = Callable[[Draw, dict[str, Any]], Mapping[str, Any]]


def _outcome(
    draw: Draw, thing: str, verb: Verb, number: str
) -> tuple[Result, tuple[str, ...], tuple[str, ...]]:
    """Return what the tool returns, and the answers."""
    key = draw.pick((f"{thing}_id", "id", "number"))
    if verb.result == "number":
        return (
            lambda d, a: {key: d.whole(1, 9999), "status": "created"},
            lines(f"""
                the {thing} is created: number {{{key}}}.
                done, the new {thing} has the number {{{key}}}.
                I created {thing} {{{key}}}.
            """),
            (key,),
        )
    if verb.result == "count":
        return (
            lambda d, a: {"count": d.whole(0, 900)},
            lines(f"""
                there are {{count}} {thing}s.
                I count {{count}}.
                the number of {thing}s is {{count}}.
            """),
            ("count",),
        )
    if verb.result == "rows":
        return _rows, lines(f"""
            the {thing}s are {{_said}}.
            I found {{_said}}.
            there [is|are] {{_said}}.
        """), ("_all",)  # fmt: skip
    if verb.result == "facts":
        attribute = draw.pick(("owner", "city", "price", "created", "color"))
        return (
            lambda d, a: _facts(d, attribute),
            lines(f"""
                {thing} {{{number}}} is {{status}}; its {attribute} is {{{attribute}}}.
                the {thing} is {{status}}, {attribute} {{{attribute}}}.
                {attribute}: {{{attribute}}}, status: {{status}}.
            """),
            ("status", attribute),
        )
    word = {"delete": "deleted", "update": "changed", "send": "sent"}.get(
        verb.names.split()[0], "scheduled"
    )
    return (
        lambda d, a: {"ok": True, key: a[number]},
        lines(f"""
            {thing} {{{number}}} is {word}.
            done: {thing} {{{number}}} has been {word}.
            the {thing} {{{number}}} was {word}.
        """),
        (number,),
    )


def _rows(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
    rows = [f"{draw.noun()}-{draw.whole(1, 99)}" for _ in range(draw.whole(1, 4))]
    return {"results": rows, "_said": joined(rows), "_all": rows}


def _facts(draw: Draw, attribute: str) -> dict[str, Any]:
    values = {
        "owner": draw.person(),
        "city": draw.city(),
        "price": draw.price(),
        "created": draw.date(),
        "color": draw.noun(),
    }
    return {"status": draw.pick(("open", "active", "paused")), attribute: values[attribute]}


def _article(sentence: str) -> str:
    for vowel in "aeiou":
        sentence = sentence.replace(f" a {vowel}", f" an {vowel}")
    return sentence


def _snake(verb: str, thing: str) -> str:
    return f"{verb}_{thing}"


def _snake_back(verb: str, thing: str) -> str:
    return f"{thing}_{verb}"


def _camel(verb: str, thing: str) -> str:
    first, *rest = f"{verb}_{thing}".split("_")
    return first + "".join(part.title() for part in rest)


def _kebab(verb: str, thing: str) -> str:
    return f"{verb}_{thing}".replace("_", "-")
