"""`kv export` and `import`: from one folder into another, and archives that are none."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_store import commit, ids, opened

from ced_kvstore import Files

Cli = Callable[..., Any]


@pytest.fixture
def folder(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default store, with two labels that share a block."""
    monkeypatch.chdir(tmp_path)
    with opened(home / "cache" / "kv") as store:
        commit(store, ids(0, 1), "s:a", snapshot=b"w" * 5000)
        commit(store, ids(0, 2, 3), "s:b", snapshot=b"v" * 5000)
    return home / "cache" / "kv"


def labels(cli: Cli, *argv: object) -> list[str]:
    anchors = json.loads(cli("kv", "ls", "--json", *argv).out)["anchors"]
    return sorted(anchor["label"] for anchor in anchors)


def test_everything_goes_from_one_folder_into_another(cli: Cli, folder: Path) -> None:
    ran = cli("kv", "export", "all.tar")
    size = Path("all.tar").stat().st_size
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"wrote 4 blocks, 2 snapshots, 2 anchors, {size / 1000:.1f} kB to all.tar\n"
    assert Path("all.tar").stat().st_mode & 0o777 == 0o600
    ran = cli("kv", "import", "all.tar", "--kv", "other")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("added 4 blocks, ")
    assert ran.out.endswith("the store now has 2 snapshots, 2 anchors\n")
    assert labels(cli, "--kv", "other") == ["s:a", "s:b"]
    with opened(Path("other")) as store:
        assert store.match(ids(0, 2, 3)).blocks == 3
    again = cli("kv", "import", "all.tar", "--kv", "other")
    assert again.out.startswith("added 0 blocks, 0 B (4 blocks were there); ")


def test_json_says_what_the_lines_say(cli: Cli, folder: Path) -> None:
    done = json.loads(cli("kv", "export", "b.tar", "s:b", "--json").out)
    assert done["file"] == "b.tar"
    exported = done["exported"]
    assert (exported["blocks"], exported["anchors"], exported["reason"]) == (3, 1, None)
    assert exported["bytes"] == Path("b.tar").stat().st_size
    done = json.loads(cli("kv", "import", "b.tar", "--kv", "other", "--json").out)
    imported = done["imported"]
    assert (imported["blocks"], imported["skipped"], imported["reason"]) == (3, 0, None)
    assert labels(cli, "--kv", "other") == ["s:b"]


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["export", "there.tar"], 2, "it exists; remove it or name another file"),
        (["export", "x.tar", "s:a", "nobody"], 2, "nothing is stored under nobody"),
        (["export", "no-such-folder/x.tar"], 2, "there is no folder no-such-folder"),
        (["import", "no-such.tar"], 2, "no such file"),
        (["import", "."], 2, "it is no regular file"),
        (["import", "/dev/null"], 2, "it is no regular file"),
        (["export", "."], 2, "it is no regular file"),
        (["export", "-"], 2, "expected the name of a file, not stdout"),
        (["import", "there.tar"], 2, "archive there.tar: "),
        (["import", "cut.tar"], 2, "archive cut.tar: "),
        (["import", "flipped.tar"], 2, "archive flipped.tar: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_names_and_bad_archives_are_one_line(
    cli: Cli, folder: Path, argv: list[str], code: int, says: str
) -> None:
    cli("kv", "export", "good.tar")
    good = Path("good.tar").read_bytes()
    Path("there.tar").write_text("not an archive")
    Path("cut.tar").write_bytes(good[: len(good) // 2])
    Path("flipped.tar").write_bytes(good[:-3000] + b"\xff" + good[-2999:])
    ran = cli("kv", *argv, "--json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (code, "", 1)
    assert says in ran.err
    assert labels(cli) == ["s:a", "s:b"]
    assert not Path("x.tar").exists()
    assert not Path("-").exists()


def test_a_folder_that_cannot_be_written_to_is_a_wrong_name(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path("closed"))
    Path("closed").mkdir()
    ran = cli("kv", "export", "closed/x.tar")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"you cannot write to {Path('closed').absolute()}" in ran.err


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_store_that_takes_nothing_is_one_line_with_code_5(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    cli("kv", "export", "all.tar")

    def fails(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Files, "pwritev", fails)
    for argv in (["import", "all.tar", "--kv", "other"], ["export", "again.tar"]):
        ran = cli("kv", *argv)
        assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1)
        assert os.strerror(number) in ran.err
    assert not Path("again.tar").exists()


def test_what_was_left_out_is_told_with_code_5(cli: Cli, folder: Path) -> None:
    with opened(folder) as store:
        found = store.show(store.hashes(ids(0, 2, 3))[1].hex())
    with (folder / found.file).open("r+b") as segment:
        segment.seek(found.offset + 700)
        segment.write(b"\xff")
    ran = cli("kv", "export", "part.tar", "--json")
    assert (ran.code, ran.err.count("\n")) == (5, 1)
    assert "not everything was exported to part.tar: " in ran.err
    exported = json.loads(ran.out)["exported"]
    assert (exported["blocks"], exported["skipped"]) == (2, 2)
    assert cli("kv", "import", "part.tar", "--kv", "other").code == 0


def test_an_import_says_what_the_byte_budget_has_no_room_for(cli: Cli, folder: Path) -> None:
    with opened(folder) as store:
        commit(store, ids(*range(60)), "s:long", created=9.0)
        commit(store, [], "s:start", created=8.0)
    cli("kv", "export", "all.tar")
    for budget in (400_000, 250_000):
        opened(Path(f"{budget}"), max_bytes=budget).close()
    ran = cli("kv", "import", "all.tar", "--kv", "400000")
    assert (ran.code, ran.err.count("\n")) == (5, 1)
    assert ran.out.startswith("added 4 blocks, ")
    assert ran.out.endswith("of the archive the store now has 2 snapshots, 3 anchors\n")
    words = (
        "not everything was imported from all.tar: the byte budget has no room for {} of its blocks"
    )
    assert words.format(58) in ran.err
    # An anchor before the first block is something, too.
    ran = cli("kv", "import", "all.tar", "--kv", "250000")
    assert (ran.code, ran.out.split(";")[0]) == (5, "added 0 blocks, 0 B")
    assert words.format(62) in ran.err
    assert labels(cli, "--kv", "250000") == ["s:start"]
