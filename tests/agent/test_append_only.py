"""Random conversations: whatever happens, ids are only appended, and the log gives them back."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cedagent as ca
from cedagent.testing import ScriptedModel, call

WORDS = st.text(st.sampled_from("ab é東🎉\n<"), min_size=0, max_size=12)


@ca.tool
def good(word: str = "x") -> str:
    """Give a word back."""
    return word * 3


@ca.tool
def long(n: int) -> str:
    """Give much back."""
    return "0123456789" * n


@ca.tool
def bad() -> str:
    """Fail."""
    raise ValueError("no")


@ca.tool(timeout=0.001)
def slow() -> str:
    """Take too long."""
    time.sleep(0.01)
    return "late"


@ca.tool
def leave() -> str:
    """End the run."""
    raise ca.Abort("enough")


CALLS = st.one_of(
    st.builds(lambda word: call("good", word=word), WORDS),
    st.builds(lambda n: call("long", n=n), st.sampled_from([1, 60])),
    st.sampled_from([call("bad"), call("slow"), call("leave"), call("good")]),
)
OUTPUTS = st.one_of(
    WORDS.filter(lambda text: "<t" not in text),
    st.lists(CALLS, min_size=1, max_size=3).map("\n".join),
    st.tuples(st.sampled_from(["a ", "東 "]), CALLS).map("".join),
)
ACTIONS = st.one_of(
    st.tuples(st.just("say"), WORDS),
    st.tuples(st.just("cancel"), st.integers(0, 40)),
    st.tuples(st.just("limit"), st.integers(1, 40)),
    st.tuples(st.just("outputs"), st.integers(1, 2)),
    st.tuples(st.just("go on"), st.none()),
    st.tuples(st.just("fork"), st.integers(-2, 2)),
    st.tuples(st.just("reopen"), st.none()),
)


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(outputs=st.lists(OUTPUTS, max_size=12), actions=st.lists(ACTIONS, min_size=1, max_size=8))
def test_ids_are_only_ever_appended(
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    outputs: list[str],
    actions: list[tuple[str, object]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("CEDAGENT_HOME", folder)
        # An output per answer header, however many there come to be.
        model = ScriptedModel([*outputs, *["."] * 200], model_dir=tiny, context_limit=4_000)
        agent = ca.Agent(
            model, tools=[good, long, bad, slow, leave], limits=ca.Limits(result_tokens=150)
        )
        name = "s0"
        session = agent.session(name)
        before = session.ids
        for number, (action, value) in enumerate(actions):
            if action == "fork":
                wanted = min(max(int(str(value)), -session.n_turns), session.n_turns)
                name = f"s{number + 1}"
                fork = session.fork(name, turns=wanted)
                assert before[: fork.n_tokens] == fork.ids
                session.close()
                session, before = fork, fork.ids
            elif action == "reopen":
                session.close()
                session = agent.session(name)
                assert session.ids == before
            else:
                before = _act(session, before, action, value)
        seed, unfinished = session.seed, session.unfinished
        session.close()
        with agent.session(name) as again:
            assert again.ids == before
            if again.n_turns:
                assert (again.seed, again.unfinished) == (seed, unfinished)


def _act(
    session: ca.Session, before: tuple[int, ...], action: str, value: object
) -> tuple[int, ...]:
    if action == "go on" and session.unfinished is None:
        return before
    original = session.agent
    limits = {
        "limit": {"tokens": value},
        "outputs": {"outputs": value},
    }.get(action, {})
    session.agent = original.replace(limits=ca.Limits(result_tokens=150, **limits))
    events = []
    for event in session.stream(None if action == "go on" else str(value)):
        events.append(event)
        if action == "cancel" and len(events) > int(str(value)):
            session.cancel()
    session.agent = original
    done = events[-1]
    assert isinstance(done, ca.Done)
    after = session.ids
    assert after[: len(before)] == before
    model = original.engine
    assert isinstance(model, ScriptedModel)
    if done.stop_reason in ("end", "cancelled", "error"):
        assert session.unfinished is None
        # Every turn that was opened is closed, and the stop token is nowhere else.
        control = [token for token in after if token in model.tokenizer.control_ids]
        start = model.tokenizer.control_id("<|im_start|>")
        assert control == [start, min(model.format.stop_ids)] * (len(control) // 2)
    sequence = session._sequence
    if sequence is not None:
        assert tuple(sequence.ids) == after[: len(sequence.ids)]
    return after
