"""Stretches of a conversation in which a call fails: made again, corrected, or reported.

Knows skills. Invariant: a wrong call is never trained, and no answer claims what no tool returned.
"""

from __future__ import annotations

from typing import Any, Final

from cedagent.upcycle.data.builtin import LIST_FILES, NOW, READ_FILE
from cedagent.upcycle.data.builtin_skills import ZONES, moment
from cedagent.upcycle.data.conversation import Said, Split, Turn
from cedagent.upcycle.data.documents import few_rows
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.files import WHERE, where
from cedagent.upcycle.data.moods import ask
from cedagent.upcycle.data.phrasing import lines, say, sentence
from cedagent.upcycle.data.scenes import Scene
from cedagent.upcycle.data.skill import Skill, make_task
from cedagent.upcycle.data.skills import named

PASSING: Final[dict[Split, tuple[str, ...]]] = {
    "train": lines("""
        Error: {tool} timed out after {n} s
        Error: ConnectionError: the connection was reset
        Error: busy, try again
        Error: TimeoutError: no answer from the server
        Error: ServiceUnavailable: try again in a moment
    """),
    "heldout": lines("""
        Error: GatewayTimeout: no reply within {n} s
        Error: {tool} was interrupted; please call it once more
        Error: too many requests just now, try again
    """),
}


LASTING: Final[dict[Split, tuple[str, ...]]] = {
    "train": lines("""
        Error: PermissionError: not allowed
        Error: not run: the user refused this call of {tool}
        Error: not run: {tool} is switched off
        Error: RuntimeError: the service is down for maintenance
        Error: OSError: disk full
        Error: ValueError: the account is locked
    """),
    "heldout": lines("""
        Error: AccessDenied: this is for administrators only
        Error: not run: {tool} is blocked by a rule
        Error: RuntimeError: the licence has run out
    """),
}


_FAILED = lines("""
    that did not work: {why}.
    I could not do it: {why}.
    sorry, {tool} failed: {why}.
    it failed with this message: {why}.
    {tool} says: {why}.
""")


_NO_FILE: Final = "Error: there is no {path}; list_files shows what there is"


def tried_again(draw: Draw, skill: Skill) -> Scene:
    """Return a call that fails in passing and is made once more; a second failure is reported.

    The held-out side has no second failure: whether to try a third time is a matter of taste.
    """
    task = make_task(skill, draw)
    passing = PASSING[draw.split]
    error = say(draw.pick(passing), _facts(draw, skill), rng=draw.rng)
    first = Said(calls=(task.call,), results=(error,))
    if draw.split == "heldout" or draw.chance(0.75):
        outputs = (first, *task.outputs())
    else:
        again = say(draw.pick(passing), _facts(draw, skill), rng=draw.rng)
        outputs = (first, Said(calls=(task.call,), results=(again,)), _report(draw, skill, again))
    return Scene((Turn(task.message, outputs),), (skill.spec,))


def reported(draw: Draw, skill: Skill) -> Scene:
    """Return a call that fails for good, and the answer that says so."""
    task = make_task(skill, draw)
    error = say(draw.pick(LASTING[draw.split]), _facts(draw, skill), rng=draw.rng)
    outputs = (Said(calls=(task.call,), results=(error,)), _report(draw, skill, error))
    return Scene((Turn(task.message, outputs),), (skill.spec,))


def _facts(draw: Draw, skill: Skill) -> dict[str, Any]:
    return {"tool": skill.spec.name, "n": draw.pick((5, 10, 30, 60))}


def _report(draw: Draw, skill: Skill, error: str) -> Said:
    why = error.removeprefix("Error: ")
    return Said(
        text=sentence(draw.pick(_FAILED), {"tool": skill.spec.name, "why": why}, rng=draw.rng)
    )


def corrected(draw: Draw, skill: Skill) -> Scene:
    """Return a call with a slip in one argument, the error that names it, and the right call.

    Of a skill without texts among its arguments it is an ordinary request.
    """
    task = make_task(skill, draw)
    texts = [name for name, value in task.arguments.items() if _can_slip(name, value, skill)]
    if not texts:
        return Scene((Turn(task.message, task.outputs()),), (skill.spec,))
    name = draw.pick(texts)
    right = task.arguments[name]
    i = draw.whole(0, len(right) - 2)
    wrong = right[:i] + right[i + 1] + right[i] + right[i + 2 :]
    if wrong == right:
        wrong = right + right[-1]
    hint = draw.pick((f"; did you mean {right!r}?", "", "; copy it as the user wrote it"))
    error = f"Error: {name}: there is no {wrong!r}{hint}"
    slip = Said(
        calls=((skill.spec.name, {**task.arguments, name: wrong}),),
        results=(error,),
        trained=False,
    )
    return Scene((Turn(task.message, (slip, *task.outputs())),), (skill.spec,))


def _can_slip(name: str, value: Any, skill: Skill) -> bool:
    schema = skill.spec.parameters["properties"][name]
    return (
        isinstance(value, str)
        and len(value) > 2
        and schema.get("type") == "string"
        and "pattern" not in schema
    )


def wrong_zone(draw: Draw) -> Scene:
    """Return a clock that is asked for a city, complains, and is asked for the zone."""
    zones = [zone for zone in ZONES if draw.allows("now", {"timezone": zone.split()[0]})]
    zone = draw.pick(zones)
    name = zone.split()[0]
    city = name.split("/")[1].replace("_", " ")
    found = moment(draw, zone)
    templates = named("now").asks
    if draw.split == "heldout":
        # Whoever names the zone has given the right call away.
        templates = tuple(ask for ask in named("now").heldout_asks if "{city}" in ask)
    template = draw.pick(templates)
    values = {"city": city, "timezone": name, **found}
    wording = ask(template, values, draw=draw)
    assert wording is not None
    error = f"Error: unknown time zone {city!r}; expected a name such as Europe/Rome"
    answer = sentence("it is {_time} in {city}.", values, rng=draw.rng)
    outputs = (
        Said(calls=(("now", {"timezone": city}),), results=(error,), trained=False),
        Said(calls=(("now", {"timezone": name}),), results=(found["shown"],)),
        Said(text=answer, contains=(found["_time"],)),
    )
    return Scene((Turn(wording.text(), outputs),), (NOW,))


def missing_file(draw: Draw) -> Scene:
    """Return a file that is not there under its name: list the folder, read the one that is."""
    while True:
        document = few_rows(draw, draw.whole(1, 8))
        folder, extension = draw.folder(), document.kind.extension
        stem = draw.file_name(extension).removesuffix(f".{extension}")
        said = f"{folder}/{stem}.{extension}"
        real = f"{stem}{draw.pick(('-old', '_2', '-final', '_new'))}.{extension}"
        path = f"{folder}/{real}"
        calls: list[tuple[str, dict[str, Any]]] = [
            ("read_file", {"path": said}),
            ("list_files", {"folder": folder}),
            ("read_file", {"path": path}),
        ]
        if all(draw.allows(name, arguments) for name, arguments in calls):
            break
    others = [f"{draw.stem()}.{e}" for e in ("py", "ini", "xml") if draw.chance(0.4)]
    templates = document.asks(heldout=draw.split == "heldout")
    template = where(draw.pick(templates), draw.pick(WHERE[draw.split]))
    wording = ask(template, {**document.target, "path": said}, draw=draw)
    assert wording is not None
    results = (
        _NO_FILE.replace("{path}", said),
        "\n".join(sorted([real, *others])),
        document.text,
    )
    steps = [Said(calls=(call,), results=(r,)) for call, r in zip(calls, results, strict=True)]
    answer = Said(text=document.answer(draw), contains=(document.target["value"],))
    return Scene((Turn(wording.text(), (*steps, answer)),), (READ_FILE, LIST_FILES))
