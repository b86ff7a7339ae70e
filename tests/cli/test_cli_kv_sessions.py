"""`sessions rm`: the log, its results, and the blocks that nothing else uses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_store import commit, ids, opened

from ced_kvstore import Removal, Store
from cedagent.agent.log import LogFile
from cedagent.cli import explain
from cedagent.errors import SessionError

Cli = Callable[..., Any]
ROWS = 100_000
"""Bytes of a block's rows."""


def keep(home: Path, path: list[int], label: str, **options: Any) -> None:
    with opened(home / "cache" / "kv", ROWS) as store:
        commit(store, path, label, **options)


@pytest.fixture
def two(cli: Cli, scripted: Callable[..., Any], home: Path) -> None:
    """Two sessions, a and b, that share a block."""
    scripted("one", "two")
    for name, path in (("a", ids(0, 1, 2)), ("b", ids(0, 3))):
        assert cli("chat", "-p", "x", "--session", name).code == 0
        keep(home, path, f"session:{name}")


def in_segments(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "cache" / "kv" / "seg").iterdir())


def blocks(cli: Cli) -> int:
    return int(json.loads(cli("kv", "ls", "--json").out)["stats"]["blocks"])


@pytest.mark.usefixtures("two")
def test_sessions_rm_drops_log_results_and_blocks(cli: Cli, home: Path) -> None:
    results = home / "sessions" / "a.results"
    results.mkdir(exist_ok=True)
    (results / "1.txt").write_text("much")
    ran = cli("sessions", "rm", "a", "b", "--purge")
    assert ran.code == 0
    assert [line.split(",")[0] for line in ran.out.splitlines()] == ["removed a", "removed b"]
    assert not [path for path in (home / "sessions").iterdir() if path.stem in ("a", "b")]
    assert blocks(cli) == 0


@pytest.mark.usefixtures("two")
def test_however_many_go_the_store_is_opened_once(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, count = Store.open, []

    def counted(*args: Any, **options: Any) -> Store:
        count.append(args)
        return plain(*args, **options)

    monkeypatch.setattr(Store, "open", counted)
    found = json.loads(cli("sessions", "rm", "a", "b", "--json").out)
    assert [removed["dropped"]["anchors"] for removed in found] == [1, 1]
    assert len(count) == 1


@pytest.mark.usefixtures("two")
def test_what_another_session_or_a_warmed_prompt_uses_stays(cli: Cli, home: Path) -> None:
    keep(home, ids(0, 3)[:128], "warm:x", pinned=True)
    size = in_segments(home)
    (removed,) = json.loads(cli("sessions", "rm", "a", "--purge", "--json").out)
    assert (removed["session"], removed["kept"]) == ("a", None)
    assert removed["log_bytes"] > 1000
    dropped = removed["dropped"]
    assert (dropped["anchors"], dropped["blocks"]) == (1, 2)
    assert dropped["left_disk"] == size - in_segments(home) >= 2 * ROWS
    with opened(home / "cache" / "kv", ROWS) as store:
        assert [store.match(path).blocks for path in (ids(0, 1), ids(0, 3))] == [1, 2]
    assert json.loads(cli("sessions", "rm", "b", "--json").out)[0]["dropped"]["blocks"] == 1
    assert blocks(cli) == 1
    assert cli("kv", "verify").code == 0


@pytest.mark.usefixtures("two")
def test_it_says_what_left_the_disk_and_what_will(cli: Cli) -> None:
    out = cli("sessions", "rm", "a").out
    assert out.startswith("removed a, its log of ")
    assert "0 B left the disk, the rest goes when its file is rewritten (`kv gc`: at once)" in out
    out = cli("sessions", "rm", "b", "--purge").out
    assert out.rstrip().endswith(" left the disk")


@pytest.mark.usefixtures("two")
def test_an_open_session_is_not_pulled_away_and_then_no_other_is(cli: Cli, home: Path) -> None:
    before = blocks(cli)
    held = LogFile(home / "sessions" / "b.jsonl")
    ran = cli("sessions", "rm", "a", "b", "--json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    held.close()
    assert sorted(path.name for path in (home / "sessions").glob("*.jsonl")) == [
        "a.jsonl",
        "b.jsonl",
    ]
    assert blocks(cli) == before
    # A name given twice is one session.
    assert len(json.loads(cli("sessions", "rm", "a", "a", "--json").out)) == 1


@pytest.mark.usefixtures("two")
def test_a_store_that_cannot_be_written_keeps_its_blocks_and_says_so(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Store, "read_only", property(lambda self: True))
        broken.setattr(Store, "notice", property(lambda self: "the disk is full"))
        broken.setattr(Store, "remove", lambda *_, **__: Removal(0, 0, 0, "read_only"))
        ran = cli("sessions", "rm", "a", "--purge")
        assert (ran.code, ran.out.count("\n"), ran.err.count("\n")) == (5, 1, 1)
        assert ran.out.startswith("removed a, its log of ")
        assert "the store keeps the blocks of session:a: the disk is full; " in ran.err
        again = ran.err.rstrip().partition("repeat it with: cedagent ")[2]
        assert again == "kv rm session:a --purge"
        ran = cli("sessions", "rm", "b", "--json")
        assert (ran.code, ran.err.count("\n")) == (5, 1)
        (removed,) = json.loads(ran.out)
        assert (removed["dropped"], "disk is full" in removed["kept"]) == (None, True)
        assert not list((home / "sessions").glob("*.jsonl"))
    assert cli(*again.split()).out.startswith("removed session:a, 1 anchor, 2 blocks")


@pytest.mark.usefixtures("two")
def test_a_damaged_log_can_be_removed_but_not_while_it_is_open(cli: Cli, home: Path) -> None:
    log = home / "sessions" / "a.jsonl"
    log.write_text("not a log\nat all\n")
    held = LogFile(log, to_remove=True)
    assert cli("sessions", "rm", "a").code == 2
    held.close()
    ran = cli("sessions", "rm", "a")
    assert (ran.code, ran.err, log.exists()) == (0, "", False)
    assert ran.out.startswith("removed a, its log of 17 B, 2 blocks")


@pytest.mark.parametrize("text", ["", "no line is whole"])
def test_a_log_without_an_entry_explains_nothing(home: Path, text: str) -> None:
    (home / "sessions").mkdir(parents=True)
    (home / "sessions" / "a.jsonl").write_text(text)
    with pytest.raises(SessionError, match="holds no whole entry"):
        explain.session_ids("a")


def test_a_session_without_blocks_or_without_a_store_is_its_log(
    cli: Cli, scripted: Callable[..., Any], home: Path
) -> None:
    scripted("one", "two")
    cli("chat", "-p", "x", "--session", "s")
    ran = cli("sessions", "rm", "s")
    assert (ran.code, ran.out.startswith("removed s, its log of ")) == (0, True)
    assert ran.out.count(",") == 1
    assert not (home / "cache" / "kv").exists()
    cli("chat", "-p", "x", "--session", "t")
    opened(home / "other").close()
    (removed,) = json.loads(cli("sessions", "rm", "t", "--kv", home / "other", "--json").out)
    assert (removed["dropped"], removed["kept"]) == (None, None)
