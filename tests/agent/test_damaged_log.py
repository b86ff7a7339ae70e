"""Whatever a session's file holds, opening it goes on from what is right or says one line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cedagent as ca
from cedagent.agent.log import decode_line, encode_line
from cedagent.errors import SessionError
from cedagent.paths import sessions_dir
from cedagent.testing import ScriptedModel, call
from tests.agent.mutations import MUTATIONS, mutate

Make = Callable[..., ScriptedModel]


@ca.tool(paged=False)
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def agent_on(folder: Path) -> ca.Agent:
    outputs = [call("add", a=1), "Three.", "Four.", *["x"] * 90]
    return ca.Agent(ScriptedModel(outputs, model_dir=folder), tools=[add])


def put(data: bytes) -> Path:
    path = sessions_dir() / "s.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def lines(tiny: Path) -> list[bytes]:
    """The lines of a log with a call, its result, two turns and a change of models."""
    with agent_on(tiny).session("s") as session:
        session.run("First.")
        session.run("Second.")
        assert session.path is not None
        data = session.path.read_bytes()
        at = session.n_tokens
    model = {"kind": "model", "at": at, "ids": [], "digest": agent_on(tiny).engine.model_digest}
    return [*data.splitlines(keepends=True), encode_line(model)]


def changed(line: bytes, **values: Any) -> bytes:
    entry = decode_line(line[:-1])
    assert entry is not None
    return encode_line(entry | values)


def opened(agent: ca.Agent) -> tuple[ca.Session | None, str]:
    """The session, or why it cannot be opened."""
    try:
        return agent.session("s"), ""
    except SessionError as error:
        return None, str(error)


def refusal(agent: ca.Agent, data: bytes) -> str:
    path = put(data)
    with pytest.raises(SessionError) as caught:
        agent.session("s")
    assert path.read_bytes() == data
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


HEAD, APPEND, OUTPUT, MODEL = 0, 1, 2, -1
SHAPES: list[tuple[int, dict[str, Any], str]] = [
    (HEAD, {"seed": None}, "seed"),
    (HEAD, {"seed": 1.5}, "seed"),
    (HEAD, {"tools": None}, "tools"),
    (HEAD, {"tools": [{"name": "add"}]}, "tools"),
    (HEAD, {"ids": None}, "ids"),
    (HEAD, {"ids": [-1]}, "ids"),
    (HEAD, {"system": 5}, "system"),
    (HEAD, {"model_digest": None}, "model_digest"),
    (HEAD, {"version": 2}, "version 1"),
    (APPEND, {"ids": None}, "ids"),
    (APPEND, {"prefill_end": 3}, "prefill_end"),
    (APPEND, {"choice": "nope"}, "choice"),
    (APPEND, {"at": 0}, "begins at token 0"),
    (APPEND, {"kind": "other"}, "unknown entry 'other'"),
    (OUTPUT, {"n": 10**9}, "n: "),
    (OUTPUT, {"n": True}, "n: "),
    (OUTPUT, {"n": -1}, "n: "),
    (OUTPUT, {"ending": "later"}, "ending"),
    (OUTPUT, {"ending": ["end"]}, "ending"),
    (MODEL, {"digest": 5}, "digest"),
    (MODEL, {"ids": [1]}, "ids"),
]


@pytest.mark.parametrize(("line", "values", "said"), SHAPES, ids=str)
@pytest.mark.slow
def test_a_whole_line_of_a_wrong_shape_is_one_clear_line(
    tiny: Path, lines: list[bytes], line: int, values: dict[str, Any], said: str
) -> None:
    mutated = list(lines)
    mutated[line] = changed(lines[line], **values)
    assert said in refusal(agent_on(tiny), b"".join(mutated))


@pytest.mark.parametrize("value", ["a\nb", "a\x1b[2J", "a\u2028b"], ids=ascii)
@pytest.mark.parametrize(
    "key", ["name", "chat_format", "model", "model_digest", "tokenizer_digest", "digest", "tool"]
)
def test_what_messages_name_is_of_one_line_in_every_log(
    tiny: Path, lines: list[bytes], key: str, value: str
) -> None:
    line = MODEL if key == "digest" else HEAD
    values: dict[str, Any] = {key: value}
    if key == "tool":
        entry = decode_line(lines[HEAD][:-1])
        assert entry is not None
        values = {"tools": [{**entry["tools"][0], "name": value}]}
    mutated = list(lines)
    mutated[line] = changed(lines[line], **values)
    assert value not in refusal(agent_on(tiny), b"".join(mutated))


@pytest.mark.parametrize("token", ["beyond", -1, "a", 1.5, True, None, [1]], ids=repr)
def test_ids_that_are_none_of_the_vocabulary_are_refused(
    tiny: Path, lines: list[bytes], token: Any
) -> None:
    entry = decode_line(lines[1][:-1])
    assert entry is not None
    agent = agent_on(tiny)
    ids = [*entry["ids"][:-1], agent.engine.vocab_size if token == "beyond" else token]
    data = b"".join([lines[0], changed(lines[1], ids=ids), *lines[2:]])
    assert f"0 to {agent.engine.vocab_size - 1}" in refusal(agent, data)


def test_a_second_head_is_refused(tiny: Path, lines: list[bytes]) -> None:
    assert "unknown entry 'head'" in refusal(agent_on(tiny), b"".join([lines[0], *lines]))


@pytest.mark.parametrize(
    "data",
    [
        b"dear diary",
        b"dear diary\n",
        b"\0" * 100,
        b"{}",
        b'{"kind":"head"}\n',
        b'{"kind":"head","version":1,"name":"s"}\n',
        encode_line({"kind": "append", "ids": [1]}),
    ],
    ids=repr,
)
def test_a_file_that_is_no_log_of_ours_is_never_overwritten(tiny: Path, data: bytes) -> None:
    message = refusal(agent_on(tiny), data)
    assert "is no session log" in message or "expected the head of a log" in message
    agent = agent_on(tiny)
    path = put(data)
    with agent.session() as session, pytest.raises(SessionError):
        session.fork("s")
    assert path.read_bytes() == data


@pytest.mark.parametrize("n_bytes", [1, 10, 25, 40, 300])
def test_a_log_torn_inside_its_first_line_begins_anew_and_says_so(
    tiny: Path, lines: list[bytes], n_bytes: int
) -> None:
    put(lines[0][:n_bytes])
    with agent_on(tiny).session("s") as session:
        assert session.notices == ("session s: its first entry was cut off; it begins anew",)
        assert session.run("First.").text == "Three."
    with agent_on(tiny).session("s") as session:
        assert session.notices == ()
        assert session.n_turns == 1


def test_an_empty_file_begins_anew(tiny: Path) -> None:
    put(b"")
    with agent_on(tiny).session("s") as session:
        assert session.notices == ()
        assert session.run("First.").text == "Three."


@pytest.mark.slow
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(mutations=st.lists(MUTATIONS, min_size=1, max_size=3))
def test_a_mutated_log_is_refused_in_one_line_or_gone_on_with(
    tiny: Path,
    lines: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    mutations: list[tuple[str, int, Any, Any]],
) -> None:
    originals = lines
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("CEDAGENT_HOME", folder)
        for mutation in mutations:
            lines = mutate(lines, mutation)
        data = b"".join(lines)
        path = put(data)
        agent = agent_on(tiny)
        session, said = opened(agent)
        if session is None:
            assert len(said.splitlines()) == 1
            assert path.read_bytes() == data
            return
        with session:
            before = session.ids
            if all(kind not in ("set", "lose") for kind, *_ in mutations):
                whole = [json.loads(line) for line in originals]
                assert before == tuple(i for e in whole for i in e["ids"])[: len(before)]
            # It can be gone on with, whatever it was taken for.
            session.run("More.")
            assert session.ids[: len(before)] == before
        good = 0
        for line in lines:
            if not line.endswith(b"\n") or decode_line(line[:-1]) is None:
                break
            good += len(line)
        assert path.read_bytes()[:good] == data[:good]
        with agent.session("s") as again:
            assert again.notices == ()
