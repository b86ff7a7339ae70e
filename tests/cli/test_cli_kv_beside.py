"""Every `kv` command beside a process that writes to the same store all the time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Anchor, Store, Stream

ROOT = Path(__file__).resolve().parents[2]
Cli = Callable[..., Any]

WRITER = """
import sys
from ced_kvstore import Anchor, Store, Stream
store = Store.open(sys.argv[1], fingerprint={"model": "a"}, streams=[Stream("k", 700)])
trunk = list(range(128))
for n in range(1_000_000):
    ids = trunk + [1000 * n + i for i in range(256)]
    anchor = Anchor(store.hashes(ids)[-1], f"s:{n % 50}")
    done = store.commit(ids, first_block=0, rows={"k": bytes(2100)}, anchors=[anchor])
    match = store.match(ids)
    buffers = {"k": bytearray(match.blocks * 700)}
    print(done.reason, match.blocks, store.read(match, buffers), store.notice, flush=True)
    if sys.stdin.readline() == "":
        break
store.close()
"""


class Writer:
    """A process that commits one session whenever it is asked to, and says how it went."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WRITER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "kvstore")},
        )
        assert self.line() == "None 3 3 None"

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def commit(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go on\n")
        self._process.stdin.flush()
        assert self.line() == "None 3 3 None"

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(30) == 0
        self._process.stdout.close()


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a label of its own and a block of nobody's."""
    monkeypatch.chdir(tmp_path)
    path = home / "cache" / "kv"
    with Store.open(path, fingerprint={"model": "a"}, streams=[Stream("k", 700)]) as store:
        ids = [7_000_000 + i for i in range(256)]
        anchor = Anchor(store.hashes(ids)[-1], "mine")
        store.commit(ids, first_block=0, rows={"k": bytes(1400)}, anchors=[anchor])
        store.commit(ids[128:], first_block=0, rows={"k": bytes(700)})
    return path


@pytest.fixture
def writer(folder: Path) -> Iterator[Writer]:
    started = Writer(folder)
    yield started
    started.end()


@pytest.mark.slow
def test_every_command_works_beside_a_writer(cli: Cli, folder: Path, writer: Writer) -> None:
    argvs = [
        ["ls"], ["tree"], ["du"], ["show", "mine"], ["verify"], ["gc", "--dry-run"], ["gc"],
        ["export", "all.tar"], ["import", "all.tar"], ["rm", "mine", "--purge"],
        ["verify", "--fix"],
    ]  # fmt: skip
    for argv in argvs:
        writer.commit()
        ran = cli("kv", *argv, "--json")
        # A purge waits for the writer where that appends to the same file.
        waits = "--purge" in argv and json.loads(ran.out)["dropped"]["waiting"]
        assert (ran.code, ran.err) == (5 if waits else 0, ""), (argv, ran)
        json.loads(ran.out)
        writer.commit()
    labels = {anchor["label"] for anchor in json.loads(cli("kv", "ls", "--json").out)["anchors"]}
    assert labels == {f"s:{n}" for n in range(2 * len(argvs) + 1)}
    assert json.loads(cli("kv", "verify", "--json").out)["problems"] == []


@pytest.mark.slow
def test_gc_beside_a_writer_leaves_what_it_uses(cli: Cli, folder: Path, writer: Writer) -> None:
    """The writer's newest path is pinned, its label or not: what it goes on from must not go."""
    for _ in range(3):
        writer.commit()
    for n in range(3):
        ran = cli("kv", "rm", f"s:{n}", "--purge")
        assert (ran.code, ran.err) == (5, "")
        # It is the writer's own file, so it is the writer that rewrites it.
        assert "when another process is done with their segment" in ran.out
    ran = cli("kv", "rm", "s:3")
    assert (ran.code, ran.err) == (0, "")
    assert "blocks stay: another process is using them" in ran.out
    ran = cli("kv", "gc", "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["collected"]["blocks"] >= 1
    writer.commit()
    assert json.loads(cli("kv", "verify", "--json").out)["problems"] == []


@pytest.mark.stress
def test_seconds_of_commands_and_commits(cli: Cli, folder: Path, writer: Writer) -> None:
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for argv in (["du"], ["tree"], ["gc"], ["rm", "s:3", "--purge"], ["verify"]):
            writer.commit()
            ran = cli("kv", *argv, "--json")
            assert ran.code in ((0, 2, 5) if argv[0] == "rm" else (0,)), (argv, ran)
