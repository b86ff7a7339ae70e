from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cedagent as ca
from cedagent.errors import SessionError
from cedagent.model.tokenizer_build import build_tiny
from cedagent.testing import ScriptedModel, call

Make = Callable[..., ScriptedModel]


@ca.tool(paged=False)
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@ca.tool(paged=False)
def shout(text: str) -> str:
    """Shout."""
    return text.upper()


def one_line(error: pytest.ExceptionInfo[SessionError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_session_is_resumed_by_its_name(scripted: Make) -> None:
    model = scripted(call("add", a=1), "Three.", "Again.")
    agent = ca.Agent(model, system="Be brief.", tools=[add])
    with agent.session("trip") as session:
        session.run("1 + 2?")
        ids, seed = session.ids, session.seed
    with agent.session("trip") as session:
        assert (session.ids, session.seed, session.n_turns) == (ids, seed, 1)
        assert session.run("Again?").text == "Again."
        assert session.ids[: len(ids)] == ids


def test_the_seed_is_drawn_once_and_kept(scripted: Make) -> None:
    model = scripted("a", "b")
    seeds = set()
    for _ in range(2):
        with ca.Agent(model).session("s") as session:
            session.run("x") if session.n_turns == 0 else None
            seeds.add(session.seed)
    assert len(seeds) == 1
    with ca.Agent(model, seed=7).session() as session:
        assert session.seed == 7
    with ca.Agent(model).session() as one, ca.Agent(model).session() as two:
        assert one.seed != two.seed


def test_another_system_prompt_is_refused(scripted: Make) -> None:
    model = scripted("a", "b")
    with ca.Agent(model, system="Be brief.").session("s") as session:
        session.run("x")
    with pytest.raises(SessionError, match="system prompt") as caught:
        ca.Agent(model, system="Be long.").session("s")
    one_line(caught)
    with ca.Agent(model).session("s") as session:
        assert session.run("y").text == "b"


def test_other_tools_are_refused_and_fewer_answer_with_an_error(scripted: Make) -> None:
    model = scripted("a", call("add", a=1) + "\n" + call("shout", text="x"), "Sorry.")
    with ca.Agent(model, tools=[add, shout]).session("s") as session:
        session.run("x")
    with pytest.raises(SessionError, match="does not list the tool other") as caught:
        ca.Agent(model, tools=[add, ca.tool(name="other", paged=False)(add.function)]).session("s")
    one_line(caught)
    with ca.Agent(model, tools=[shout]).session("s") as session:
        assert "add not registered" in session.notices[0]
        result = session.run("y")
        assert [made.error for made in result.tool_calls] == [True, False]
        assert "add is not available now" in result.tool_calls[0].result
        assert result.tool_calls[1].result == "X"
        assert result.text == "Sorry."


def test_tools_that_are_never_there_end_the_run(scripted: Make) -> None:
    model = scripted("a", *[call("add", a=n) for n in range(9)])
    with ca.Agent(model, tools=[add]).session("s") as session:
        session.run("x")
    with ca.Agent(model).session("s") as session:
        assert session.notices == (
            "session s: add not registered now; calls will be answered with an error",
        )
        result = session.run("y")
        assert result.stop_reason == "limit"
        assert len(result.tool_calls) == 3
        assert "bad calls" in result.message


def test_a_changed_tool_keeps_its_old_description_and_says_so(scripted: Make) -> None:
    model = scripted("a", call("add", a=1), "b")
    with ca.Agent(model, tools=[add]).session("s") as session:
        session.run("x")
        head = session.ids[:200]

    @ca.tool(name="add", paged=False)
    def changed(a: int, b: int = 5) -> int:
        """Add better."""
        return a + b

    with ca.Agent(model, tools=[changed]).session("s") as session:
        assert "add changed" in session.notices[0]
        assert session.ids[:200] == head
        assert session.run("y").tool_calls[0].result == "6"


def test_another_model_with_the_same_tokenizer_says_so_once(scripted: Make) -> None:
    with ca.Agent(scripted("a", "b", "c")).session("s") as session:
        session.run("x")
    other = scripted("a", "b", "c", model_digest="other")
    with ca.Agent(other).session("s") as session:
        assert "another model" in session.notices[0]
        assert "what the store does not have of it is encoded again" in session.notices[0]
        events = list(session.stream("y"))
        assert isinstance(events[0], ca.Notice)
        assert events[-1].text == "b"
    with ca.Agent(other).session("s") as session:
        assert session.notices == ()
        assert session.run("z").text == "c"


def test_another_tokenizer_is_refused(scripted: Make, tmp_path: Path) -> None:
    with ca.Agent(scripted("a")).session("s") as session:
        session.run("x")
    build_tiny(400).save(str(tmp_path / "tokenizer.json"))
    other = ScriptedModel(["a", "b"], model_dir=tmp_path)
    with pytest.raises(SessionError, match="tokenizer") as caught:
        ca.Agent(other).session("s")
    one_line(caught)


def test_a_crash_after_an_append_is_gone_on_with(scripted: Make) -> None:
    model = scripted(call("add", a=1), "Three.")
    agent = ca.Agent(model, tools=[add])
    with agent.session("s") as session:
        session.run("x")
        ids, path = session.ids, session.path
    assert path is not None
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 5
    kinds = {2: "append", 3: "calls", 4: "append"}
    for n_lines, expected in kinds.items():
        path.write_bytes(b"".join(lines[:n_lines]))
        n_before = len(model.prefills)
        with agent.session("s") as session:
            assert session.unfinished == expected
            assert session.run().text == "Three."
            assert session.ids == ids
        # Each prefill begins and ends where the live one did.
        live = model.prefills[0 if n_lines == 2 else 1 : 2]
        assert model.prefills[n_before:] == live


def test_a_message_instead_of_going_on_closes_what_is_open(scripted: Make) -> None:
    model = scripted("a", "b")
    agent = ca.Agent(model)
    with agent.session("s") as session:
        session.run("x")
        path = session.path
    assert path is not None
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    with agent.session("s") as session:
        assert session.run("y").text == "b"
        text = "".join(model.tokenizer.token_name(token) for token in session.ids)
        assert "<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\ny<|im_end|>" in text


def test_nothing_to_go_on_with_is_said(scripted: Make) -> None:
    with (
        ca.Agent(scripted()).session("s") as session,
        pytest.raises(SessionError, match="nothing to go on with"),
    ):
        session.run()


def test_a_fork_shares_the_past_and_nothing_else(scripted: Make) -> None:
    answer = "".join(map(str, range(100)))
    model = scripted(answer, "b", "c")
    with ca.Agent(model).session("s") as session:
        session.run("x")
        first = session.ids
        session.run("y")
        whole = session.ids
        with session.fork("t") as fork:
            assert fork.ids == whole
            assert fork.seed == session.seed
            fork.run("z")
            assert session.ids == whole
        with session.fork("u", turns=-1) as fork:
            assert fork.ids == first
            used = fork.run("other").usage
            assert used.reused_ram >= 128
        with session.fork(turns=0, seed=5) as fork:
            assert fork.n_turns == 0
            assert fork.seed == 5
            assert fork.run("x").text == answer
        with pytest.raises(SessionError, match="t exists"):
            session.fork("t")
        with pytest.raises(SessionError, match="turns=3"):
            session.fork(turns=3)
    with ca.Agent(model).session("u") as session:
        assert session.ids[: len(first)] == first
        assert session.n_turns == 2


def test_a_fork_reads_the_results_of_its_parent(scripted: Make) -> None:
    @ca.tool
    def big() -> str:
        """Return much."""
        return "0123456789" * 500

    model = scripted(call("big"), "a", call("more", result_id="r1", offset=4_990), "b")
    agent = ca.Agent(model, tools=[big], limits=ca.Limits(result_tokens=200))
    for name in (None, "t"):
        with agent.session("s") as session:
            session.run("x") if session.n_turns == 0 else None
            fork = session.fork(name)
        with fork:
            assert fork.run("y").tool_calls[0].result == "0123456789"
