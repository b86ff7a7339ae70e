"""Which folders are stores for the `kv` commands: looking makes none, and none is overlooked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_store import commit, ids, opened

from cedagent.cli.kv_folder import is_store

Cli = Callable[..., Any]


@pytest.fixture
def folder(home: Path) -> Path:
    return home / "cache" / "kv"


@pytest.mark.parametrize("view", ["ls", "du", "tree", "verify"])
def test_a_store_that_lost_its_version_is_not_empty(cli: Cli, folder: Path, view: str) -> None:
    with opened(folder) as store:
        commit(store, ids(0), "s:a")
    (folder / "VERSION").unlink()
    ran = cli("kv", view)
    assert "Nothing is stored" not in ran.out
    assert "s:a" in ran.out or "read 3 records" in ran.out or (ran.code, ran.out) == (5, "")


def test_a_folder_with_segments_is_a_store_and_none_with_other_things(tmp_path: Path) -> None:
    (tmp_path / "seg").mkdir()
    (tmp_path / "seg" / "notes.txt").write_text("x")
    assert not is_store(tmp_path)
    assert not is_store(tmp_path / "seg" / "notes.txt")
    (tmp_path / "seg" / "000003.kvs").touch()
    assert is_store(tmp_path)


def test_why_makes_no_store(cli: Cli, tiny: Path, folder: Path, tmp_path: Path) -> None:
    rules, other = tmp_path / "rules.txt", tmp_path / "other"
    rules.write_text(" ".join(f"Rule {n}: count to {n}." for n in range(60)))
    other.mkdir(mode=0o755)
    for more in ([], ["--kv", other]):
        ran = cli("kv", "why", rules, "-m", tiny, *more)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith("never_stored: 0 of ")
        found = json.loads(cli("kv", "why", rules, "-m", tiny, *more, "--json").out)
        assert (found["reason"], found["blocks"]) == ("never_stored", 0)
    assert (folder.exists(), list(other.iterdir()), other.stat().st_mode & 0o777) == (
        False, [], 0o755,
    )  # fmt: skip
    # As a store says it that holds nothing.
    opened(folder).close()
    assert cli("kv", "why", rules, "-m", tiny).out == ran.out
