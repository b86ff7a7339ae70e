"""A case is driven as an agent's session is, and no further than it can be judged."""

import pytest
from spoken_cases import STEPS, STEPS_SCRIPT, SUM, SUM_SCRIPT, TOOLS, does, says

from cedagent import Agent, Limits, tool
from cedagent.engine import Engine
from cedagent.engine.sequence import CedSequence
from cedagent.model.tiny import write_tiny
from cedagent.testing import ScriptedModel, ScriptedSequence, call
from cedagent.upcycle.data.conversation import Case, Step
from cedagent.upcycle.evaluation.conversation import Speaker


def slips(name, wrong, right):
    """A case that gives a wrong call, whose error the model is to put right."""
    slip = Step(((name, wrong),), ("Error: not that",), (), True, given=True)
    steps = (slip, does((name, right), results=["7"]), says("7"))
    return Case("recovery", "Be brief.", TOOLS, ("What is 3 + 4?",), (steps,))


SLIP = slips("add", {"a": 3, "b": 5}, {"a": 3, "b": 4})


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
    assert model.asked[1] == model.asked[0] + expected


def test_an_output_without_an_end_is_cut_and_judged_as_it_stands():
    model = ScriptedModel([SUM_SCRIPT[0], "7 " * 500])
    speaker = Speaker(model, max_tokens=60)
    last = list(speaker.converse(SUM))[-1]
    assert last.n_tokens == 60
    assert not last.output.complete
    assert last.verdict.answer is True


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


def test_what_a_case_gives_is_not_asked_for_but_stands_there():
    model = Noting(SUM_SCRIPT)
    # The script counts answers, so the given one is its first.
    model.outputs = (call("add", {"a": 3, "b": 5}), *SUM_SCRIPT)
    points = list(Speaker(model).converse(SLIP))
    assert [(point.number, point.after_failure) for point in points] == [(1, True), (2, False)]
    assert all(point.verdict.good for point in points)
    fmt, written = Speaker(model).format, model.tokenizer.encode(call("add", {"a": 3, "b": 5}))
    ended = [*written, min(fmt.stop_ids)]
    expected = [
        *fmt.begin("Be brief.", TOOLS), *fmt.user("What is 3 + 4?"),
        *ended, *fmt.closing(ended), *fmt.results(["Error: not that"]),
    ]  # fmt: skip
    assert model.asked[0] == expected


def test_after_a_failed_call_the_model_chooses_anew():
    fails = does(("add", {"a": 3, "b": 4}), results=["Error: PermissionError: not allowed"])
    case = Case("recovery", "", TOOLS, ("What is 3 + 4?",), ((fails, says()),))
    first, second = Speaker(ScriptedModel([SUM_SCRIPT[0], "It failed."])).converse(case)
    assert (first.after_failure, second.after_failure) == (False, True)
    assert (second.verdict.tool, second.verdict.good) == (True, True)
    again = ScriptedModel([SUM_SCRIPT[0], SUM_SCRIPT[0]])
    assert list(Speaker(again).converse(case))[1].verdict.tool is False
    # Without an error it is an answer that may say anything.
    works = Case("known", "", TOOLS, case.user, ((does(*fails.calls, results=["7"]), says()),))
    assert list(Speaker(again).converse(works))[1].verdict.tool is None


def test_an_output_ends_where_nothing_can_make_it_right():
    wrong = "I look. " + call("look", {"name": "a long name that nobody needs to hear"})
    (first, *_) = Speaker(ScriptedModel([wrong, SUM_SCRIPT[1]])).converse(SUM)
    assert [one.name for one in first.output.calls] == ["look"]
    assert (first.verdict.tool, first.verdict.arguments) == (False, None)
    model = ScriptedModel([wrong])
    whole = len(model.tokenizer.encode(wrong))
    assert first.n_tokens < whole - 10
    # Wrong arguments settle nothing: a second call would make the choice wrong, too.
    argument = call("add", {"a": 3, "b": 5})
    (first, *_) = Speaker(ScriptedModel([argument + "\n" + argument, "7"])).converse(SUM)
    assert len(first.output.calls) == 2
    assert first.verdict.tool is False


def test_a_result_that_the_user_named_is_not_asked_of_the_answer():
    steps = (does(("add", {"a": 3, "b": 4}), results=["7"]), says("7"))
    case = Case("known", "", TOOLS, ("Is 3 + 4 = 7?",), (steps,))
    points = list(Speaker(ScriptedModel([SUM_SCRIPT[0], "Yes."])).converse(case))
    assert points[1].verdict.answer is None
    # What was named in an earlier message is known as well, what comes in a later one is not.
    call_again, yes = SUM_SCRIPT[0], "Yes."
    twice = Case("known", "", TOOLS, ("7, I think.", "3 + 4?"), ((says(),), steps))
    points = list(Speaker(ScriptedModel([yes, call_again, yes])).converse(twice))
    assert points[2].verdict.answer is None
    before = Case("known", "", TOOLS, ("3 + 4?", "7, I think."), (steps, (says(),)))
    points = list(Speaker(ScriptedModel([call_again, yes, yes])).converse(before))
    assert points[1].verdict.answer is False


def test_a_session_and_a_case_ask_for_the_same_majority(monkeypatch):
    """Whether the first token calls is decided alike: what is measured is what is served."""
    asked = []
    real = ScriptedSequence.sample

    def noting(self, sampling, allowed=None, *, majority=None):
        asked.append(majority)
        return real(self, sampling, allowed, majority=majority)

    monkeypatch.setattr(ScriptedSequence, "sample", noting)
    model = ScriptedModel(SUM_SCRIPT)
    list(Speaker(model).converse(SUM))
    in_case, asked = asked, []
    opening = model.tokenizer.encode("<tool_call>")[0]
    assert in_case.count(opening) == len(SUM_SCRIPT)
    assert in_case[0] == opening

    @tool(paged=False)
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    Agent(ScriptedModel(SUM_SCRIPT), tools=[add]).run(SUM.user[0])
    assert asked.count(opening) == len(SUM_SCRIPT)
    assert asked[0] == opening
