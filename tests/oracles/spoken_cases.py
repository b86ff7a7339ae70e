"""Small cases for an evaluation, with what a model says that gets all of them right."""

from cedagent.chat.template import ToolSpec
from cedagent.testing import call
from cedagent.upcycle.data.conversation import Case, Step

NUMBER = {"type": "number"}
ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
)
LOOK = ToolSpec(
    "look",
    "Look up a name.",
    {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
)
TOOLS = (ADD, LOOK)


def does(*calls, results):
    return Step(tuple(calls), tuple(results), (), True)


def says(*texts):
    return Step((), (), texts, False)


SUM = Case(
    "known",
    "Be brief.",
    TOOLS,
    ("What is 3 + 4?",),
    ((does(("add", {"a": 3, "b": 4}), results=["7"]), says("7")),),
)
SUM_SCRIPT = (call("add", {"a": 3, "b": 4}), "That is 7.")
CHAT = Case("chat", "", TOOLS, ("Hello!", "And how are you?"), ((says(),), (says(),)))
STEPS = Case(
    "multi_step",
    None,
    TOOLS,
    ("Look up Ada and Bo, then add what you find.", "And plus 1?"),
    (
        (
            does(("look", {"name": "Ada"}), ("look", {"name": "Bo"}), results=["5", "6"]),
            does(("add", {"a": 5, "b": 6}), results=["11"]),
            says("11"),
        ),
        (does(("add", {"a": 11, "b": 1}), results=["12"]), says("12")),
    ),
)
STEPS_SCRIPT = (
    call("look", {"name": "Bo"}) + "\n" + call("look", {"name": "Ada"}),
    call("add", {"a": 5, "b": 6}),
    "Together 11.",
    call("add", {"a": 11, "b": 1}),
    "Now it is 12.",
)
