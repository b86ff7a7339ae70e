"""`kv rm` and `gc` cut short, or with something in their way: what stays is said."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_store import commit, ids, opened

from ced_kvstore import Collected, Store
from ced_kvstore.pins import Pins
from cedagent.cli.kv_drop import Dropped

Cli = Callable[..., Any]
BLOCK = 1 << 16


@pytest.fixture
def folder(home: Path) -> Path:
    """A store with a block of a label's and two of nobody's."""
    path = home / "cache" / "kv"
    with opened(path, BLOCK) as store:
        commit(store, ids(0), "s:a")
        commit(store, ids(1, 2))
    return path


def in_use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another process used the two blocks of nobody's."""
    with opened(folder, BLOCK) as store:
        used = {store.hashes(ids(1, 2))[-1]}
    monkeypatch.setattr(Pins, "others", lambda pins: set(used))


def test_rm_of_all_says_what_another_process_keeps(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_use(folder, monkeypatch)
    ran = cli("kv", "rm", "--all", "--purge")
    assert (ran.code, ran.err) == (5, "")
    assert ran.out.startswith("removed all that no process uses, 1 anchor, 1 block, ")
    assert ran.out.endswith(
        "; what another process is using stays (2 blocks); close that program and run "
        "`cedagent kv gc`\n"
    )
    # With no anchor left, and nothing that could go.
    ran = cli("kv", "rm", "--all", "--purge")
    assert (ran.code, ran.out) == (5, "")
    assert "what another process is using stays (2 blocks)" in ran.err
    assert json.loads(cli("kv", "ls", "--json").out)["stats"]["blocks"] == 2


def test_rm_of_all_takes_what_has_no_anchor_off_the_disk(cli: Cli, folder: Path) -> None:
    assert cli("kv", "rm", "s:a", "--purge").code == 0
    dropped = json.loads(cli("kv", "rm", "--all", "--purge", "--json").out)["dropped"]
    assert (dropped["anchors"], dropped["blocks"], dropped["reason"]) == (0, 2, None)
    assert dropped["left_disk"] > 2 * BLOCK
    assert dropped["bytes"] > 2 * BLOCK


@contextlib.contextmanager
def appended_to(folder: Path) -> Iterator[None]:
    """As if another process appended to the segment."""
    with (folder / "seg" / "000001.kvs").open("r+b") as segment:
        fcntl.flock(segment, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("argv", [["s:a"], ["--all"]], ids=" ".join)
def test_a_purge_that_has_to_wait_says_how_much_for_what_and_ends_with_code_5(
    cli: Cli, folder: Path, argv: list[str]
) -> None:
    with appended_to(folder):
        ran = cli("kv", "rm", *argv, "--purge", "--json")
        dropped = json.loads(ran.out)["dropped"]
        assert (ran.code, dropped["left_disk"]) == (5, 0)
        assert dropped["waiting"] >= dropped["bytes"] > BLOCK
        with opened(folder, BLOCK) as store:
            commit(store, ids(0), "s:a")
        ran = cli("kv", "rm", *argv, "--purge")
    assert (ran.code, ran.err) == (5, "")
    assert re.search(r"; [^;]+ another process [^;]+; \d+\.\d kB wait: close that", ran.out)
    assert ran.out.endswith(" and run `cedagent kv gc`, or they go with its next commit\n")
    assert cli("kv", "gc").code == 0
    assert not (folder / "seg" / "000001.kvs").exists()
    # Where everything left, nothing is wrong.
    with opened(folder, BLOCK) as store:
        commit(store, ids(0), "s:a")
    ran = cli("kv", "rm", *argv, "--purge", "--json")
    assert (ran.code, json.loads(ran.out)["dropped"]["waiting"]) == (0, 0)


def test_sessions_rm_says_what_of_a_purge_has_to_wait(
    cli: Cli, folder: Path, scripted: Callable[..., Any]
) -> None:
    scripted("one", "two")
    for name in ("a", "b"):
        assert cli("chat", "-p", "x", "--session", name).code == 0
    with opened(folder, BLOCK) as store:
        commit(store, ids(3), "session:a")
        commit(store, ids(4), "session:b")
    with appended_to(folder):
        ran = cli("sessions", "rm", "a", "--purge")
        assert (ran.code, ran.err) == (5, "")
        assert "kB wait: close that program and run `cedagent kv gc`" in ran.out
        assert cli("sessions", "rm", "b").code == 0


@pytest.mark.parametrize("argv", [["rm", "s:a", "--purge"], ["rm", "--all"], ["gc"]])
@pytest.mark.usefixtures("folder")
def test_ctrl_c_says_what_finishes_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "remove", interrupted)
    monkeypatch.setattr(Store, "gc", interrupted)
    ran = cli("kv", *argv)
    assert (ran.code, ran.out, ran.err.strip().count("\n")) == (130, "", 0)
    assert "`cedagent kv gc` takes the rest of its bytes off the disk" in ran.err


@pytest.mark.usefixtures("folder")
def test_gc_says_which_dead_bytes_wait(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "gc", lambda store: Collected(1, 0, 0, waiting=2))
    ran = cli("kv", "gc")
    assert (ran.code, ran.err) == (0, "")
    assert "dead bytes in 2 files wait for another process to be done with" in ran.out


def test_advice_is_never_what_was_just_done() -> None:
    assert "(`kv gc`: at once)" in Dropped(1, 2, 900, 0).words
    assert "at once" not in Dropped(1, 2, 900, 0, at_once=True).words
