"""`kv verify`, `rm`, `gc`: what was read, what went, what that gave back; and stores of nothing."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_store import commit, fill, ids, opened

from ced_kvstore import Collected, Files, Problem, Store

Cli = Callable[..., Any]
BLOCK = 1 << 20
"""Bytes of a block's rows: as large beside the index as in earnest."""
COMMANDS = [
    ["ls"], ["tree"], ["du"], ["show", "s:a"], ["verify"], ["gc"], ["gc", "--dry-run"],
    ["rm", "--all"], ["rm", "s:a"], ["export", "out.tar"],
]  # fmt: skip


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return home / "cache" / "kv"


@pytest.fixture
def filled(folder: Path) -> None:
    fill(folder, BLOCK)


def in_segments(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "seg").iterdir())


def flip(folder: Path, key: str) -> None:
    with opened(folder, BLOCK) as store:
        found = store.show(key)
    with (folder / found.file).open("r+b") as segment:
        segment.seek(found.offset + 1000)
        segment.write(b"\xff")


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_without_a_store_nothing_is_made_and_nothing_is_wrong(
    cli: Cli, folder: Path, argv: list[str]
) -> None:
    ran = cli("kv", *argv)
    asks_for_something = argv[0] in ("show", "export") or argv == ["rm", "s:a"]
    if asks_for_something:
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "nothing is stored" in ran.err
    else:
        assert (ran.code, ran.out, ran.err) == (0, "Nothing is stored yet.\n", "")
        json.loads(cli("kv", *argv, "--json").out)
    assert not folder.exists()


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_a_folder_of_something_else_is_left_as_it_is(
    cli: Cli, folder: Path, argv: list[str]
) -> None:
    folder.mkdir(mode=0o755)
    ran = cli("kv", *argv)
    assert ran.code == 2 or ran.out == "Nothing is stored yet.\n"
    assert (list(folder.iterdir()), folder.stat().st_mode & 0o777) == ([], 0o755)


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_an_empty_store_is_nothing_wrong(cli: Cli, folder: Path, argv: list[str]) -> None:
    opened(folder, BLOCK).close()
    ran = cli("kv", *argv)
    if argv[0] in ("show", "export") or argv == ["rm", "s:a"]:
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert not Path("out.tar").exists()
    else:
        assert (ran.code, ran.err) == (0, "")
        json.loads(cli("kv", *argv, "--json").out)


@pytest.mark.parametrize("argv", [*COMMANDS, ["import", "x.tar"]], ids=" ".join)
def test_a_folder_that_is_no_store_is_one_line(
    cli: Cli, folder: Path, argv: list[str], tmp_path: Path
) -> None:
    folder.mkdir()
    (folder / "VERSION").write_text("ced-kv 99\n")
    (tmp_path / "x.tar").write_bytes(b"x")
    ran = cli("kv", *argv, "--json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1)
    assert "holds a prefix store of another version" in ran.err
    assert (folder / "VERSION").read_text() == "ced-kv 99\n"


@pytest.mark.usefixtures("filled")
def test_verify_says_how_much_it_read(cli: Cli, folder: Path) -> None:
    out = cli("kv", "verify").out.splitlines()
    assert out[0] == "The store is good."
    live = 6 * (BLOCK + 4096) + 3 * 4096
    assert re.fullmatch(rf"read 9 records, {live / 1e6:.1f} MB in [\d.]+ s \([\d.]+ .B/s\)", out[1])
    found = json.loads(cli("kv", "verify", "--json").out)
    assert found | {"seconds": 0} == {
        "good": True, "problems": [], "records": 9, "bytes": live, "seconds": 0,
    }  # fmt: skip
    assert found["seconds"] > 0


@pytest.mark.usefixtures("filled")
def test_verify_tells_what_is_damaged_and_whether_it_was_mended(cli: Cli, folder: Path) -> None:
    with opened(folder, BLOCK) as store:
        key = store.hashes(ids(0, 2))[1].hex()
    flip(folder, key)
    ran = cli("kv", "verify", "--json")
    assert (ran.code, json.loads(ran.out)["good"]) == (5, False)
    (problem,) = json.loads(ran.out)["problems"]
    assert (problem["kind"], problem["fixed"]) == ("corrupt", False)
    assert cli("kv", "verify").out.startswith("corrupt (found): 000001.kvs+")
    ran = cli("kv", "verify", "--fix")
    assert (ran.code, ran.out.count("corrupt (mended)")) == (0, 1)
    assert json.loads(cli("kv", "verify", "--json").out)["problems"] == []


@pytest.mark.usefixtures("filled")
def test_what_needs_no_mending_is_good_where_nothing_could_be_mended(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    unmended = Problem("read_only", "kv", "nothing was mended: read_only")
    monkeypatch.setattr(Store, "verify", lambda self, *, fix: [unmended])
    ran = cli("kv", "verify", "--fix")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "The store is good.")
    other = Problem("corrupt", "kv", "its rows are others")
    monkeypatch.setattr(Store, "verify", lambda self, *, fix: [unmended, other])
    ran = cli("kv", "verify", "--fix")
    assert (ran.code, ran.out.count("(found)")) == (5, 2)


@pytest.mark.usefixtures("filled")
def test_gc_gives_back_what_nobody_needs_and_says_it_before(cli: Cli, folder: Path) -> None:
    before = in_segments(folder)
    told = cli("kv", "gc", "--dry-run")
    assert re.search(r"there are 2 blocks that no label needs; .* up to 2\.1 MB", told.out)
    planned = json.loads(cli("kv", "gc", "--dry-run", "--json").out)
    assert (planned["dry_run"], planned["collected"]["blocks"]) == (True, 2)
    assert in_segments(folder) == before
    # Two of six blocks are not half of the file: their bytes go all the same.
    ran = json.loads(cli("kv", "gc", "--json").out)
    assert (ran["dry_run"], ran["collected"]["blocks"]) == (False, 2)
    assert before - in_segments(folder) >= 2 * BLOCK
    assert json.loads(cli("kv", "ls", "--json").out)["stats"]["blocks"] == 4
    cli("kv", "rm", "s:b")
    ran = cli("kv", "gc")
    assert (ran.code, ran.err) == (0, "")
    assert re.match(r"dropped 0 blocks; \d\.\d MB left the disk", ran.out)
    assert in_segments(folder) < before // 2
    assert cli("kv", "verify").code == 0


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    ("done", "code", "says"),
    [
        (Collected(0, 0, 0, "another process is making room"), 5, "another process is making"),
        (Collected(3, 1, 5_000_000, "the rest is in use"), 0, "(1 file); the rest is in use"),
    ],
)
def test_gc_that_could_not_do_all_says_so(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, done: Collected, code: int, says: str
) -> None:
    monkeypatch.setattr(Store, "gc", lambda self: done)
    ran = cli("kv", "gc")
    assert ran.code == code
    assert says in (ran.err if code else ran.out)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("purge", [False, True])
def test_rm_says_what_went_and_what_left_the_disk(cli: Cli, folder: Path, purge: bool) -> None:
    before = in_segments(folder)
    option = ["--purge"] if purge else []
    ran = json.loads(cli("kv", "rm", "s:b", *option, "--json").out)
    assert ran["removed"] == "s:b"
    dropped = ran["dropped"]
    assert (dropped["anchors"], dropped["blocks"]) == (1, 2)
    assert dropped["bytes"] == 2 * (BLOCK + 4096) + 4096
    assert dropped["left_disk"] == max(0, before - in_segments(folder))
    assert (dropped["left_disk"] > 2 * BLOCK) == purge
    out = cli("kv", "rm", "s:a", *option).out
    assert out.startswith("removed s:a, 1 anchor, 2 blocks, 2.1 MB; ")
    assert ("(`kv gc`: at once)" in out) == (not purge)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "argv", [["gc"], ["gc", "--max-bytes", "1GB"], ["rm", "s:a"], ["rm", "--all"]], ids=" ".join
)
def test_what_cannot_be_written_is_one_line_with_code_5(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    plain = Files.open

    def read_only(self: Files, path: Path, *, write: bool = False, **options: Any) -> int:
        if write:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return plain(self, path)

    monkeypatch.setattr(Files, "open", read_only)
    ran = cli("kv", *argv)
    assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1)
    assert os.strerror(errno.EROFS) in ran.err
    monkeypatch.undo()


def test_another_folder_is_named_with_kv(cli: Cli, tmp_path: Path) -> None:
    with opened(tmp_path / "other", BLOCK) as store:
        commit(store, ids(0), "s:a")
    assert json.loads(cli("kv", "du", "--kv", tmp_path / "other", "--json").out)["rows"]
    assert cli("kv", "du").out == "Nothing is stored yet.\n"
