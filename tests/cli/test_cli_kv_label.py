"""Labels as `kv ls` shows them can be given back, whatever characters they hold besides."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_store import commit, ids, opened

Cli = Callable[..., Any]
SPITEFUL = "session:\x1b[31mred\u202e\r\n"
SHOWN = "session:[31mred"


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = home / "cache" / "kv"
    with opened(path) as store:
        commit(store, ids(0), SPITEFUL)
        commit(store, ids(1), "\x07")
    return path


@pytest.mark.parametrize(
    "argv", [["rm"], ["rm", "--session"], ["show"], ["export", "x.tar"]], ids=" ".join
)
@pytest.mark.usefixtures("folder")
def test_a_label_is_taken_as_it_is_shown(cli: Cli, argv: list[str]) -> None:
    assert SHOWN in cli("kv", "ls").out
    given = SHOWN.removeprefix("session:") if "--session" in argv else SHOWN
    ran = cli("kv", *argv, given, "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    if argv[0] == "rm":
        assert found["labels"] == [SPITEFUL]
    elif argv[0] == "show":
        assert found["ids"] == ids(0)
    else:
        assert found["exported"]["blocks"] == 1


@pytest.mark.parametrize("argv", [["rm"], ["show"], ["export", "x.tar"]], ids=" ".join)
def test_labels_that_look_alike_are_told_apart_by_a_block(
    cli: Cli, folder: Path, argv: list[str]
) -> None:
    with opened(folder) as store:
        commit(store, ids(2), SHOWN + "\x1b")
    ran = cli("kv", *argv, SHOWN)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"2 labels are shown as {SHOWN!r}; " in ran.err
    assert "kv rm --block HASH" in ran.err
    # One that equals what was given is meant all the same.
    with opened(folder) as store:
        commit(store, ids(3), SHOWN)
    assert cli("kv", *argv, SHOWN).code == 0
    labels = [anchor["label"] for anchor in json.loads(cli("kv", "ls", "--json").out)["anchors"]]
    assert SPITEFUL in labels
    assert (SHOWN in labels) == (argv != ["rm"])


@pytest.mark.parametrize("argv", [["rm"], ["show"], ["export", "x.tar"]], ids=" ".join)
@pytest.mark.usefixtures("folder")
def test_what_shows_nothing_is_no_label(cli: Cli, argv: list[str]) -> None:
    for given in ("", " ", "\r", os.fsdecode(b"\xff")):
        ran = cli("kv", *argv, given)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
