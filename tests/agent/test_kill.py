"""kill -9 at any point of a turn: the log stays valid, and the turn goes on as if uninterrupted."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cedagent as ca
from cedagent.agent.log import read_entries
from cedagent.testing import ScriptedModel, call

OUTPUTS = [
    "Let me look. " + call("look", n=1) + "\n" + call("look", n=2),
    call("look", n=3),
    "It is 東京 and 🎉.",
]

CHILD = """
import sys, time
from pathlib import Path
import cedagent as ca
from cedagent.testing import ScriptedModel
sys.path.insert(0, sys.argv[3])
from killed_turn import OUTPUTS, look
model = ScriptedModel(OUTPUTS, model_dir=Path(sys.argv[1]), token_s=0.004, tile_s=0.01)
with ca.Agent(model, system="Be brief.", tools=[look]).session("s") as session:
    print("open", flush=True)
    session.run("Go. " * 60) if session.unfinished is None else session.run()
    print("done", flush=True)
"""

TURN = f"""
import time
import cedagent as ca

OUTPUTS = {OUTPUTS!r}

@ca.tool
def look(n: int) -> str:
    '''Look.'''
    time.sleep(0.05)
    return f"result {{n}} " * 20
"""


def spawn(tiny: Path, folder: Path) -> subprocess.Popen[str]:
    (folder / "killed_turn.py").write_text(TURN)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tiny), "-", str(folder)],
        env=os.environ | {"PYTHONPATH": path, "CEDAGENT_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.stress
def test_a_killed_turn_loses_at_most_its_unfinished_output(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    child = spawn(tiny, whole)
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    started = time.monotonic()
    assert child.stdout.readline() == "done\n"
    took = time.monotonic() - started
    child.wait()
    child.stdout.close()
    log = whole / "home" / "sessions" / "s.jsonl"
    expected, _ = read_entries(log.read_bytes(), path=log)

    rng = random.Random(7)
    points = set()
    for number in range(12):
        folder = tmp_path / str(number)
        folder.mkdir()
        child = spawn(tiny, folder)
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        time.sleep(took * (number + rng.random()) / 12)
        child.kill()
        child.wait()
        child.stdout.close()
        path = folder / "home" / "sessions" / "s.jsonl"
        found = path.read_bytes() if path.exists() else b""
        before, _ = read_entries(found, path=path)
        points.add(len(before))
        monkeypatch.setenv("CEDAGENT_HOME", str(folder / "home"))
        model = ScriptedModel(OUTPUTS, model_dir=tiny)
        namespace: dict[str, ca.Tool] = {}
        exec(compile(TURN, str(folder / "killed_turn.py"), "exec"), namespace)
        agent = ca.Agent(model, system="Be brief.", tools=[namespace["look"]])
        with agent.session("s") as session:
            if session.unfinished is not None:
                session.run()
            elif not session.n_turns:
                session.run("Go. " * 60)
        after, _ = read_entries(path.read_bytes(), path=path)
        # What was written stays, and what follows is what would have followed.
        assert [entry["ids"] for entry in after[: len(before)]] == [e["ids"] for e in before]
        assert [entry["ids"] for entry in after] == [entry["ids"] for entry in expected]
        ends = [entry.get("prefill_end") for entry in after]
        assert ends == [entry.get("prefill_end") for entry in expected]
    assert len(points) >= 4
