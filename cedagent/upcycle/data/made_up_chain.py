"""Tasks of two steps with made-up tools: find something by its name, then do something to it.

Knows made-up skills. Invariant: the number that the second call needs stands in the first result
and nowhere in the message.
"""

from __future__ import annotations

from cedagent.upcycle.data.conversation import Said, Turn
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.scenes import Scene
from cedagent.upcycle.data.schemas import text, tool
from cedagent.upcycle.data.skill import compact, make_task
from cedagent.upcycle.data.synthesis import named_thing_skill


def made_up_chain(draw: Draw) -> Scene:
    """Return a message that names a thing, the call that finds it, and the call that uses it."""
    called = draw.pick((f"{draw.noun()} {draw.noun()}", draw.topic().removeprefix("the "),
                        draw.person()))  # fmt: skip
    skill, thing, number = named_thing_skill(draw, called)
    find = draw.pick((f"find_{thing}", f"lookup_{thing}", f"{thing}_by_name", f"search_{thing}"))
    about = draw.pick((f"Find a {thing} by its name.", f"Number of the {thing} with this name."))
    key = draw.pick(("name", "title", "query"))
    finder = tool(find, about, {key: text()})
    task = make_task(skill, draw)
    shown = draw.pick((f"{thing}_id", "id", "number", number))
    found = {shown: task.arguments[number], draw.pick(("name", "title")): called}
    result = draw.pick((compact(found), compact([found]), str(task.arguments[number])))
    first = Said(calls=((find, {key: called}),), results=(result,))
    turn = Turn(task.message, (first, *task.outputs()))
    return Scene((turn,), (skill.spec, finder))
