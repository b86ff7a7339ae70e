from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedagent as ca
from cedagent.agent import log as log_module
from cedagent.agent.log import LogFile, decode_line, encode_line, read_entries
from cedagent.engine.protocol import PrefillUsage
from cedagent.errors import SessionError
from cedagent.paths import sessions_dir
from cedagent.testing import ScriptedModel, ScriptedSequence, call

Make = Callable[..., ScriptedModel]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("ab\"'é🎉,", max_size=4), inner)
    ),
    max_leaves=8,
)


@ca.tool(paged=False)
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(entries=st.lists(st.fixed_dictionaries({"kind": st.just("x"), "value": JSON}), min_size=1))
def test_lines_round_trip(entries: list[dict[str, object]]) -> None:
    lines = [encode_line(entry) for entry in entries]
    assert all(line.count(b"\n") == 1 for line in lines)
    assert [decode_line(line[:-1]) for line in lines] == entries
    data = b"".join(lines)
    assert read_entries(data, path=Path("x.jsonl")) == (entries, len(data))


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.text('ab",{}crc:é', max_size=20), min_size=2, max_size=5),
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_one_flipped_bit_is_never_read_as_another_entry(
    texts: list[str], where: float, bit: int
) -> None:
    entries = [{"kind": "x", "text": text} for text in texts]
    data = bytearray(b"".join(encode_line(entry) for entry in entries))
    at = int(where * len(data))
    data[at] ^= 1 << bit
    last_line = sum(len(encode_line(entry)) for entry in entries[:-1])
    if at < last_line:
        with pytest.raises(SessionError, match="is damaged") as caught:
            read_entries(bytes(data), path=Path("x.jsonl"))
        assert "\n" not in str(caught.value)
    else:
        found, _ = read_entries(bytes(data), path=Path("x.jsonl"))
        assert found == entries[:-1]


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.text(max_size=20), min_size=1, max_size=5), cut=st.integers(0, 200))
def test_a_torn_log_is_read_up_to_its_last_whole_entry(texts: list[str], cut: int) -> None:
    entries = [{"kind": "x", "n": i, "text": text} for i, text in enumerate(texts)]
    lines = [encode_line(entry) for entry in entries]
    data = b"".join(lines)[:cut]
    ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
    whole = sum(end <= len(data) for end in ends)
    found, end = read_entries(data, path=Path("x.jsonl"))
    assert found == entries[:whole]
    assert end == ([0, *ends])[whole]


def test_a_torn_last_line_is_left_out_and_cut_away_when_next_written(scripted: Make) -> None:
    model = scripted("One.", "Two.", "Three.")
    agent = ca.Agent(model)
    with agent.session("s") as session:
        session.run("First.")
        kept = session.ids
        path = session.path
        assert path is not None
        size = path.stat().st_size
        session.run("Second.")
    data = path.read_bytes()
    torn = data[size : size + 30] + b"x" * 5_000
    path.write_bytes(data[:size] + torn)
    with agent.session("s") as session:
        assert session.ids == kept
        assert "cut off" in session.notices[0]
        assert path.read_bytes() == data[:size] + torn
        assert session.run("Second.").text == "Two."
    assert path.read_bytes()[:size] == data[:size]
    with agent.session("s") as session:
        assert session.notices == ()
        assert session.n_turns == 2


def test_a_damaged_earlier_line_is_one_clear_line(scripted: Make) -> None:
    agent = ca.Agent(scripted("One.", "Two."))
    with agent.session("s") as session:
        session.run("First.")
        path = session.path
    assert path is not None
    data = bytearray(path.read_bytes())
    data[data.index(b"First")] ^= 1
    path.write_bytes(data)
    with pytest.raises(SessionError, match="line 2") as caught:
        agent.session("s")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert path.read_bytes() == data


def test_an_append_is_durable_before_its_prefill_starts(
    scripted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    found: list[tuple[int, bytes]] = []
    real, prefill = os.fsync, ScriptedSequence.prefill
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), real(fd))[1])
    agent = ca.Agent(scripted("One."))
    with agent.session("s") as session:
        path = session.path
        assert path is not None

        def seen(sequence: ScriptedSequence, *args: Any, **options: Any) -> PrefillUsage:
            found.append((len(synced), path.read_bytes()))
            return prefill(sequence, *args, **options)

        monkeypatch.setattr(ScriptedSequence, "prefill", seen)
        session.run("First.")
        n_synced, data = found[0]
        # The file, and the folder that names it.
        assert n_synced == 2
        entries, _ = read_entries(data, path=path)
        assert entries[1]["kind"] == "append"
        assert entries[1]["text"] == "First."
        assert entries[1]["prefill_end"] == len(entries[0]["ids"]) + len(entries[1]["ids"])


def test_log_and_folder_are_private(scripted: Make) -> None:
    with ca.Agent(scripted("One.")).session("s") as session:
        session.run("First.")
        assert session.path is not None
        assert stat.S_IMODE(session.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(session.path.parent.stat().st_mode) == 0o700


def test_a_session_without_a_message_leaves_no_file(scripted: Make) -> None:
    with ca.Agent(scripted("One.")).session("s"):
        pass
    assert list(sessions_dir().glob("*")) == []


@pytest.mark.slow
def test_one_process_per_session(scripted: Make, tiny: Path) -> None:
    agent = ca.Agent(scripted("One.", "Two."))
    script = (
        "import sys, cedagent as ca\n"
        "from pathlib import Path\n"
        "from cedagent.testing import ScriptedModel\n"
        "agent = ca.Agent(ScriptedModel(['One.', 'Two.'], model_dir=Path(sys.argv[1])))\n"
        "try:\n"
        "    agent.session('s')\n"
        "except ca.CedError as error:\n"
        "    print(error)\n"
        "else:\n"
        "    print('opened')\n"
    )

    def other() -> str:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        done = subprocess.run(
            [sys.executable, "-c", script, str(tiny)],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    with agent.session("s") as session:
        session.run("First.")
        assert "open in another place" in other()
        assert other().count("\n") == 1
        with pytest.raises(SessionError, match="open in another place"):
            agent.session("s")
    assert other() == "opened\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_log_that_cannot_be_written_warns_once_and_the_run_goes_on(
    scripted: Make, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    agent = ca.Agent(scripted(call("add", a=1), "Three.", "Four."), tools=[add])
    with agent.session("s") as session:
        real = log_module.write_all
        n_writes = 0

        def fail_later(fd: int, data: bytes, *, offset: int) -> None:
            nonlocal n_writes
            n_writes += 1
            if n_writes > 2:
                # Half of it arrives, as on a full disk.
                real(fd, data[: len(data) // 2], offset=offset)
                raise OSError(code, os.strerror(code))
            real(fd, data, offset=offset)

        with monkeypatch.context() as patch:
            patch.setattr(log_module, "write_all", fail_later)
            events = list(session.stream("First."))
            notices = [event for event in events if isinstance(event, ca.Notice)]
            assert len(notices) == 1
            assert "goes on unsaved" in notices[0].message
            assert events[-1].text == "Three."
            assert session.run("Second.").text == "Four."
    with agent.session("s") as session:
        # What was durable is still there, and can be gone on with.
        assert session.unfinished == "calls"
        assert session.notices == ()
        assert session.run().text == "Three."


def test_a_data_folder_that_cannot_be_made_warns_once(
    scripted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with ca.Agent(scripted("One.")).session("s") as session:
        assert len(session.notices) == 1
        events = list(session.stream("First."))
        assert sum(isinstance(event, ca.Notice) for event in events) == 1
        assert events[-1].text == "One."


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x" * 101, "a\0b"])
def test_a_name_that_is_no_name_is_refused(scripted: Make, name: str) -> None:
    with pytest.raises(SessionError, match="session name"):
        ca.Agent(scripted()).session(name)


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "s.jsonl")
    log.append([{"kind": "x"}])
    log.close()
    log.close()
    again = LogFile(tmp_path / "s.jsonl")
    assert again.entries == [{"kind": "x"}]
    again.close()
