"""The tool suite on scripted engines: right counts as right, and what is wrong counts once."""

import pytest

from cedagent import Agent, Limits, tool
from cedagent.chat.template import ToolSpec
from cedagent.engine import Engine
from cedagent.engine.sequence import CedSequence
from cedagent.model.tiny import write_tiny
from cedagent.testing import ScriptedModel, call
from cedagent.upcycle.data.conversation import Case, Step
from cedagent.upcycle.evaluation.conversation import Speaker
from cedagent.upcycle.evaluation.figures import GOALS, figures_of
from cedagent.upcycle.evaluation.tools import run_kind

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


def needle(depth):
    return Case(
        "needle_1000",
        "Look things up.",
        (LOOK,),
        ("What is Zed's code?",),
        ((does(("look", {"name": "Zed"}), results=["Q" * 300 + " 4711"]), says("4711")),),
        depth,
    )


def silent(what, done, total):
    pass


def measure(kind, cases, *outputs, **settings):
    """Every case begins anew, so all of them see the same script."""
    model = ScriptedModel(outputs, **settings)
    return run_kind(Speaker(model), kind, cases, progress=silent)


def share(rate):
    return None if rate is None else (rate.right, rate.n)


def test_a_perfect_model_reaches_every_aim():
    kinds = [
        measure("known", [SUM, SUM], *SUM_SCRIPT),
        measure("unseen", [SUM], *SUM_SCRIPT),
        measure("multi_step", [STEPS], *STEPS_SCRIPT),
        measure("chat", [CHAT], "Hi.", "Fine."),
        measure("needle_1000", [needle(0.5)], call("look", {"name": "Zed"}), "It is 4711."),
    ]
    figures = {figure.key: figure for figure in figures_of(None, kinds)}
    assert set(figures) == {goal.key for goal in GOALS} - {"kl_after_prefill"}
    assert {figure.value for figure in figures.values()} == {1.0}
    assert {figure.standing for figure in figures.values()} == {"aim met"}
    assert all(kind.unfinished == 0 and kind.misses == () for kind in kinds)
    assert [kind.whole.value for kind in kinds] == [1.0] * 5
    assert figures["answer"].n == 2 + 1 + 2
    assert figures["later_calls"].n == 1


def test_a_broken_model_reaches_nothing():
    wrong = call("look", {"name": "x"})
    kinds = [
        measure("known", [SUM, SUM], wrong, "I do not know."),
        measure("unseen", [SUM], "No idea.", "None."),
        measure("multi_step", [STEPS], *["I cannot."] * 5),
        measure("chat", [CHAT], wrong, wrong),
        measure("needle_1000", [needle(0.5)], call("look", {"name": "Zed"}), "It is 471."),
    ]
    figures = {figure.key: figure for figure in figures_of(None, kinds)}
    assert {figure.value for figure in figures.values()} == {0.0}
    assert {figure.standing for figure in figures.values()} == {"bound missed"}
    # Without a right tool there are no arguments to judge.
    assert set(figures) == {
        "tool_known", "tool_unseen", "answer", "later_calls", "needle", "no_call",
    }  # fmt: skip
    assert [kind.whole.value for kind in kinds] == [0.0] * 5


def test_right_tool_with_wrong_arguments():
    found = measure("known", [SUM], call("add", {"a": 3, "b": 5}), "That is 7.")
    assert (share(found.tool), share(found.arguments)) == ((1, 1), (0, 1))
    (miss,) = found.misses
    assert miss.expected == [["add", {"a": 3, "b": 4}]]
    assert miss.calls == [["add", {"a": 3, "b": 5}]]
    assert (miss.case, miss.message, miss.number) == (0, "What is 3 + 4?", 0)


def test_one_mistake_counts_once_because_the_right_call_takes_its_place():
    # The second output is written after the results of the right calls, not of what was called.
    script = ("Nothing to look up.", *STEPS_SCRIPT[1:])
    found = measure("multi_step", [STEPS], *script)
    assert (share(found.tool), share(found.arguments)) == ((2, 3), (2, 2))
    assert (share(found.later_calls), share(found.answer)) == ((1, 1), (2, 2))
    assert (share(found.whole), found.unfinished, len(found.misses)) == ((0, 1), 0, 1)


def texts_seen(model):
    """What stood before each output, as text; the model notes every id that it is asked after."""
    return [model.tokenizer.decode(ids) for ids in model.asked]


class Noting(ScriptedModel):
    """A scripted model that notes what stood before each first token of an output."""

    def __init__(self, outputs, **more):
        super().__init__(outputs, **more)
        self.asked = []

    def next_id(self, ids):
        token = super().next_id(ids)
        if self.prefills and len(ids) == self.prefills[-1][1]:
            self.asked.append(list(ids))
        return token


def test_history_is_what_a_session_would_hold():
    model = Noting(STEPS_SCRIPT)
    speaker = Speaker(model)
    list(speaker.converse(STEPS))
    fmt, encode = speaker.format, speaker.tokenizer.encode
    stop = min(fmt.stop_ids)
    ids = fmt.begin(None, TOOLS) + fmt.user(STEPS.user[0])
    appended = [
        # The model called in the other order, so the results are in that order.
        fmt.results(["6", "5"]), fmt.results(["11"]), fmt.user(STEPS.user[1]), fmt.results(["12"]),
    ]  # fmt: skip
    expected = [list(ids)]
    for text, after in zip(STEPS_SCRIPT, appended, strict=False):
        written = [*encode(text), stop]
        ids += [*written, *fmt.closing(written), *after]
        expected.append(list(ids))
    # Forced ids may be split otherwise; the bytes between control tokens are the same.
    spelled = [[speaker.tokenizer.token_name(i) for i in one] for one in model.asked]
    assert ["".join(one) for one in spelled] == [
        "".join(map(speaker.tokenizer.token_name, one)) for one in expected
    ]


def test_a_wrong_output_is_replaced_by_the_expected_calls():
    model = Noting(("Nothing to look up.", *STEPS_SCRIPT[1:]))
    list(Speaker(model).converse(STEPS))
    before = texts_seen(model)[1]
    assert "Nothing to look up." not in before
    assert call("look", {"name": "Ada"}) + "\n" + call("look", {"name": "Bo"}) in before
    assert before.index("\n5\n") < before.index("\n6\n")
    # It is closed as an output of the model's own is.
    fmt, calls = Speaker(model).format, STEPS.steps[0][0].calls
    spelled = model.tokenizer.encode("\n".join(call(*each) for each in calls))
    written = [*spelled, min(fmt.stop_ids)]
    expected = [*written, *fmt.closing(written), *fmt.results(["5", "6"])]
    assert model.asked[1][-len(expected) :] == expected


def test_after_a_call_in_place_of_an_answer_nothing_more_is_judged():
    found = measure("chat", [CHAT], call("look", {"name": "x"}), "never asked")
    assert (share(found.tool), found.unfinished, share(found.whole)) == ((0, 1), 1, (0, 1))
    late = (SUM_SCRIPT[0], call("add", {"a": 7, "b": 0}))
    found = measure("known", [SUM], *late)
    # The choice at the turn's start was right; the second call is a missing answer.
    assert (share(found.tool), share(found.answer)) == ((1, 1), (0, 1))
    assert found.unfinished == 0


def test_only_the_choice_at_a_turns_start_counts_as_rightly_none():
    found = measure("known", [SUM], *SUM_SCRIPT)
    assert share(found.tool) == (1, 1)
    assert share(measure("chat", [CHAT], "Hi.", "Fine.").tool) == (2, 2)


def test_a_case_that_does_not_fit_is_unfinished_not_an_error():
    found = measure("known", [SUM], *SUM_SCRIPT, context_limit=300)
    assert (found.cases, found.unfinished, found.tool) == (1, 1, None)
    assert share(found.whole) == (0, 1)


def test_an_output_without_an_end_is_cut_and_judged_as_it_stands():
    model = ScriptedModel([SUM_SCRIPT[0], "7 " * 500])
    speaker = Speaker(model, max_tokens=60)
    last = list(speaker.converse(SUM))[-1]
    assert last.n_tokens == 60
    assert not last.output.complete
    assert last.verdict.answer is True


def test_needles_are_counted_by_depth():
    cases = [needle(depth) for depth in (0.0, 0.19, 0.2, 0.5, 0.99, 1.0)]
    script = (call("look", {"name": "Zed"}), "The code is 4711.")
    found = measure("needle_1000", cases, *script)
    assert [share(rate) for rate in found.depths] == [(2, 2), (1, 1), (1, 1), None, (2, 2)]
    assert measure("known", [SUM], *SUM_SCRIPT).depths == ()


def test_progress_comes_to_its_end():
    seen = []
    run_kind(
        Speaker(ScriptedModel(SUM_SCRIPT)), "known", [SUM] * 3, progress=lambda *s: seen.append(s)
    )
    assert [(done, total) for _, done, total in seen] == [(0, 3), (1, 3), (2, 3), (3, 3)]


def ids_spoken(engine, case, **settings):
    """The ids of a case's sequence before it is closed."""
    opened = []
    sequence_of = engine.sequence
    engine.sequence = lambda ids=(): opened.append(sequence_of(ids)) or opened[-1]
    try:
        list(Speaker(engine, **settings).converse(case))
    finally:
        engine.sequence = sequence_of
    return list(opened[0].ids)


def test_a_conversation_has_the_ids_of_an_agents_session():
    @tool
    def add(a: float, b: float) -> str:
        """Add two numbers."""
        return "7"

    agent = Agent(ScriptedModel(SUM_SCRIPT), system="Be brief.", tools=[add])
    with agent.session() as session:
        assert session.run("What is 3 + 4?").text == "That is 7."
        expected = list(session.ids)
    case = Case("known", "Be brief.", agent.specs, SUM.user, SUM.steps)
    assert ids_spoken(ScriptedModel(SUM_SCRIPT), case) == expected


def test_a_real_engine_writes_what_an_agents_session_writes(tmp_path):
    @tool
    def look(name: str) -> str:
        """Look up a name."""
        return name

    engine = Engine.load(write_tiny(tmp_path / "m", seed=5))
    agent = Agent(engine, system="Be brief.", tools=[look], limits=Limits(tokens=40))
    with agent.session() as session:
        session.run("Hello!")
        expected = list(session.ids)
    case = Case("chat", "Be brief.", agent.specs, ("Hello!",), ((says(),),))
    spoken = ids_spoken(engine, case, max_tokens=40)
    # A session leaves an output that a limit cut open; here it is closed.
    assert spoken[: len(expected)] == expected
    assert len(expected) > len(agent.format.begin("Be brief.", agent.specs)) + 40


def test_a_replaced_output_leaves_the_settled_rows_in_use(tmp_path):
    engine = Engine.load(write_tiny(tmp_path / "m", seed=5))
    used = []
    prefill = CedSequence.prefill

    def noting(sequence, *args, **more):
        used.append(prefill(sequence, *args, **more))
        return used[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CedSequence, "prefill", noting)
        points = list(Speaker(engine, max_tokens=20).converse(STEPS))
    assert len(points) == len(used) > 2
    assert not points[0].verdict.good
    # Of the second prefill only what is new and the unfinished block is encoded.
    assert used[1].reused_ram >= used[0].encoded // 128 * 128 > 0


def test_goals_tell_bounds_from_aims_in_their_direction():
    goals = {goal.key: goal for goal in GOALS}
    kl, tool_known = goals["kl_after_prefill"], goals["tool_known"]
    found = [kl.standing(value) for value in (0.0, 0.05, 0.051, 0.09, 0.091)]
    assert found == ["aim met", "aim met", "bound met", "bound met", "bound missed"]
    found = [tool_known.standing(value) for value in (1.0, 0.99, 0.989, 0.95, 0.949)]
    assert found == ["aim met", "aim met", "bound met", "bound met", "bound missed"]
    for goal in GOALS:
        assert goal.standing(goal.aim) == "aim met"
        assert goal.standing(goal.bound) == "bound met"
