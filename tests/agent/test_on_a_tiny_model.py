"""The loop on the real engine with random weights: what is resumed goes on as if never left."""

from __future__ import annotations

from pathlib import Path

import pytest

import cedagent as ca
from cedagent.model.tiny import write_tiny


@ca.tool(paged=False)
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@ca.tool(paged=False)
def echo(text: str, times: int = 1) -> str:
    """Say it again."""
    return text * min(max(times, 1), 3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "model", vocab_size=320)


def agent_on(model: Path, *, kv: Path | None = None, tokens: int = 150) -> ca.Agent:
    return ca.Agent(
        ca.Engine.load(model, kv=kv),
        tools=[add, echo],
        temperature=0.9,
        seed=11,
        limits=ca.Limits(tokens=tokens, result_tokens=200, outputs=2),
        tool_choice="required",
    )


def close(agent: ca.Agent) -> None:
    engine = agent.engine
    assert isinstance(engine, ca.Engine)
    engine.close()


@pytest.mark.slow
def test_a_resumed_session_writes_what_a_live_one_writes(model: Path, tmp_path: Path) -> None:
    live = agent_on(model)
    with live.session("live") as session:
        results = [session.run("Add 1 and 2.")]
        results += [session.run() for _ in range(2) if session.unfinished]
        results.append(session.run("And now?"))
        expected = session.ids
    close(live)
    assert any(result.tool_calls for result in results)
    assert any(result.stop_reason == "limit" for result in results)
    for kv in (None, tmp_path / "kv"):
        name = f"resumed-{kv is None}"
        n_disk = 0
        for number in range(len(results)):
            agent = agent_on(model, kv=kv)
            with agent.session(name) as session:
                prompt = {0: "Add 1 and 2.", len(results) - 1: "And now?"}.get(number)
                result = session.run(prompt)
                n_disk += result.usage.reused_disk
                found = session.ids
            close(agent)
            assert result.text == results[number].text
            assert found == expected[: len(found)]
        assert found == expected
        assert (n_disk > 0) == (kv is not None)


@pytest.mark.slow
def test_a_lost_output_is_written_again(model: Path) -> None:
    agent = agent_on(model)
    with agent.session("s") as session:
        session.run("Add 1 and 2.")
        expected, path = session.ids, session.path
    assert path is not None
    lines = path.read_bytes().splitlines(keepends=True)
    for n_lines in range(2, len(lines)):
        path.write_bytes(b"".join(lines[:n_lines]))
        with agent.session("s") as session:
            session.run()
            assert session.ids[: len(expected)] == expected
    close(agent)


@pytest.mark.slow
def test_every_call_of_random_weights_can_be_run(model: Path) -> None:
    agent = agent_on(model, tokens=400)
    n_calls = 0
    for seed in range(3):
        with agent.replace(seed=seed).session() as session:
            result = session.run("Go.")
            n_calls += len(result.tool_calls)
            for made in result.tool_calls:
                assert made.name in ("add", "echo")
                assert not made.error or "fit" in made.result
            prompt = result.usage.prompt
            used = result.usage
            assert used.reused_ram + used.reused_disk + used.encoded == prompt
    assert n_calls >= 3
    close(agent)


@pytest.mark.slow
def test_warm_encodes_whole_blocks_once_pins_them_and_replays_nothing(
    model: Path, tmp_path: Path
) -> None:
    kv = tmp_path / "kv"
    first = agent_on(model, kv=kv)
    report = first.warm()
    assert report.tokens == len(first.format.begin(None, first.specs))
    assert (report.hit, report.reused) == (False, 0)
    assert report.encoded == report.tokens // 128 * 128 > 0
    assert isinstance(first.engine, ca.Engine)
    store = first.engine.store
    assert store is not None
    assert [(a.label, a.pinned, a.n_tokens) for a in store.anchors()] == [
        ("warm", True, report.tokens)
    ]
    close(first)
    second = agent_on(model, kv=kv, tokens=5)
    again = second.warm()
    assert (again.hit, again.reused, again.encoded) == (True, report.encoded, 0)
    with second.session() as session:
        used = session.run("Add 1 and 2.").usage
    assert used.reused_disk == report.encoded
    assert ca.Agent(second.engine, system="").warm().tokens == 0
    close(second)
