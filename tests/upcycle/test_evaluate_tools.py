"""The tool suite on scripted engines: right counts as right, and what is wrong counts once."""

from spoken_cases import CHAT, LOOK, STEPS, STEPS_SCRIPT, SUM, SUM_SCRIPT, TOOLS, does, says

from cedagent.testing import ScriptedModel, call
from cedagent.upcycle.data.conversation import Case, Step
from cedagent.upcycle.evaluation.conversation import Speaker
from cedagent.upcycle.evaluation.figures import GOALS, figures_of
from cedagent.upcycle.evaluation.tools import run_kind


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
    assert [kind.recovery for kind in kinds] == [None] * 5
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
    found = measure("chat", [CHAT], "Hi.", call("look", {"name": "x"}))
    assert (share(found.tool), share(found.whole)) == ((1, 2), (0, 1))
    (figure,) = figures_of(None, [found])
    assert (figure.key, figure.value, figure.n) == ("no_call", 0.5, 2)


def test_a_case_that_does_not_fit_is_unfinished_not_an_error():
    found = measure("known", [SUM], *SUM_SCRIPT, context_limit=300)
    assert (found.cases, found.unfinished, found.tool) == (1, 1, None)
    assert share(found.whole) == (0, 1)


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


def test_what_is_done_after_a_failed_call_is_a_figure_of_its_own():
    slip = Step((("add", {"a": 3, "b": 5}),), ("Error: not that",), (), True, given=True)
    fails = does(("add", {"a": 3, "b": 4}), results=["Error: not allowed"])
    cases = [
        Case("recovery", "", TOOLS, ("3 + 4?",), ((slip, *SUM.steps[0]),)),
        Case("recovery", "", TOOLS, ("3 + 4?",), ((fails, says()),)),
    ]
    wrong = call("add", {"a": 3, "b": 5})
    found = measure("recovery", cases[:1], wrong, *SUM_SCRIPT)
    assert (share(found.recovery), share(found.answer), found.unfinished) == ((1, 1), (1, 1), 0)
    found = measure("recovery", cases[:1], wrong, call("look", {"name": "3"}), "7")
    assert (share(found.recovery), share(found.answer)) == ((0, 1), (1, 1))
    found = measure("recovery", cases[1:], SUM_SCRIPT[0], "That is not allowed.")
    assert (share(found.recovery), share(found.tool), found.misses) == ((1, 1), (2, 2), ())
    found = measure("recovery", cases[1:], SUM_SCRIPT[0], SUM_SCRIPT[0])
    assert (share(found.recovery), share(found.whole)) == ((0, 1), (0, 1))
    figures = {figure.key: figure for figure in figures_of(None, [found])}
    assert figures == {}
