"""`kv ls`, `tree`, `du`, `show`: what they say at any width, in a pipe, and as JSON."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_store import commit, ids, opened

from ced_kvstore import Files, Store

Cli = Callable[..., Any]
LONG = "session:" + "a-name-that-is-long-" * 5
SPITEFUL = "session:\x1b[2J\x1b[31mred[bold]\r\n"
VIEWS = ["ls", "tree", "du"]


@pytest.fixture
def folder(home: Path) -> Path:
    return home / "cache" / "kv"


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    made = opened(folder)
    yield made
    made.close()


@pytest.fixture
def filled(store: Store) -> Store:
    """Two sessions on a warmed prompt, one of them with three points, and a branch of nobody's."""
    commit(store, ids(0, 1), "warm:rules", pinned=True)
    for n_blocks in (3, 4, 5):
        path = ids(0, 1, 2, 3, 4)[: 128 * n_blocks]
        commit(store, path, "session:a", snapshot=b"w" * 5000)
    commit(store, ids(0, 1, 9), LONG, SPITEFUL)
    commit(store, ids(7))
    commit(store, [], "session:short", n_tokens=12)
    return store


def test_a_tree_in_a_pipe_has_a_line_for_each_stretch(cli: Cli, filled: Store) -> None:
    ran = cli("kv", "tree")
    assert (ran.code, ran.err) == (0, "")
    head, *lines, early = ran.out.splitlines()
    assert re.fullmatch(r"fingerprint [0-9a-f]{12}: 7 blocks, 45\.1 kB", head)
    assert early == "without a whole block yet: session:short"
    warm, *rest = [line for line in lines if not re.match(r".. 0-128", line)]
    (alone,) = [line for line in lines if re.match(r".. 0-128", line)]
    assert re.search(r"─ 0-256  warm:rules \(pinned\)  256 tokens, 8\.2 kB, [\d.]+ hits", warm)
    assert "nobody's" in alone
    a, others = sorted(rest, key=lambda line: "session:a," not in line)
    assert "256-640  session:a, 3 anchors  384 tokens, 28.7 kB" in a
    assert "2 snapshots" in a
    assert a.endswith(filled.hashes(ids(0, 1, 2, 3, 4))[-1].hex()[:12])
    assert LONG in others
    # Both branches hang below the warmed prompt.
    assert all(re.match(r"[│ ]  [├└]─ ", line) for line in rest)


@pytest.mark.parametrize("width", [60, 200])
@pytest.mark.parametrize("view", [*VIEWS, "show session:a"])
def test_nothing_is_wider_than_the_terminal(
    cli: Cli, filled: Store, monkeypatch: pytest.MonkeyPatch, view: str, width: int
) -> None:
    whole = cli("kv", *view.split()).out
    monkeypatch.setenv("COLUMNS", str(width))
    ran = cli("kv", *view.split())
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= width
    assert not [line for line in ran.out.splitlines() if line != line.rstrip()]
    # Folded, not cut: but for guides and blanks it is the same text.
    assert sorted(re.sub(r"[\s│├└─]|\d+s", "", ran.out)) == sorted(
        re.sub(r"[\s│├└─]|\d+s", "", whole)
    )


@pytest.mark.parametrize("view", VIEWS[::2])
def test_labels_are_read_on_a_narrow_terminal(
    cli: Cli, filled: Store, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = cli("kv", view).out
    assert max(map(len, out.splitlines())) <= 40
    assert "warm:rules" in out
    assert "session:a" in out


def test_a_label_cannot_turn_the_line_around(cli: Cli, store: Store) -> None:
    commit(store, ids(0), "a\u202eb\u2067c\u200fd")
    for view in VIEWS:
        assert "abcd" in cli("kv", view).out


def test_sentences_are_folded_between_words(
    cli: Cli, filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cli("kv", "gc", "--dry-run").out
    monkeypatch.setenv("COLUMNS", "40")
    lines = cli("kv", "gc", "--dry-run").out.splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(lines).split() == whole.split()


def test_a_tree_of_many_forks_stays_on_the_screen(
    cli: Cli, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    trunk: list[int] = []
    for depth in range(40):
        commit(store, [*trunk, *ids(100 + depth)], f"s:{depth}")
        trunk += ids(depth)
    commit(store, trunk, "deepest")
    monkeypatch.setenv("COLUMNS", "60")
    lines = cli("kv", "tree").out.splitlines()
    assert max(map(len, lines)) <= 60
    (line,) = [line for line in lines if "deepest" in line]
    assert re.match(r"… .*[├└]─ ", line)


@pytest.mark.parametrize("view", [*VIEWS, "show session:a"])
def test_no_name_reaches_the_terminal_with_its_control_characters(
    cli: Cli, filled: Store, view: str
) -> None:
    out = cli("kv", *view.split()).out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out)
    if view in VIEWS:
        assert "[31mred[bold]" in out


def test_json_has_all_that_the_tables_show(cli: Cli, filled: Store, folder: Path) -> None:
    tree = json.loads(cli("kv", "tree", "--json").out)
    assert [anchor["label"] for anchor in tree["before_first_block"]] == ["session:short"]
    assert sum(run["n_tokens"] for run in tree["runs"]) == 7 * 128
    assert set(tree["runs"][0]) >= {
        "parent", "depth", "position", "n_tokens", "bytes", "labels", "pinned", "hits", "last",
        "snapshots", "bad", "block_hash", "fingerprint",
    }  # fmt: skip
    du = json.loads(cli("kv", "du", "--json").out)
    on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert du["bytes_on_disk"] == sum(row["own_bytes"] for row in du["rows"]) == on_disk
    rows = {row["label"]: row for row in du["rows"] if row["kind"] == "label"}
    assert set(rows) == {"warm:rules", "session:a", LONG, SPITEFUL, "session:short"}
    assert (rows["session:a"]["blocks"], rows["warm:rules"]["pinned"]) == (5, True)
    shown = json.loads(cli("kv", "show", "session:a", "--json").out)
    assert (shown["position"], shown["good"], shown["text"]) == (512, True, None)
    assert shown["ids"] == ids(4)
    assert [anchor["label"] for anchor in shown["anchors"]] == ["session:a"]
    assert shown["block_hash"] in [run["block_hash"] for run in tree["runs"]]


def test_du_shows_the_rows_that_add_up(cli: Cli, filled: Store) -> None:
    header, *lines = cli("kv", "du").out.splitlines()
    assert header.split() == ["label", "blocks", "needs", "alone", "snapshots", "made"]
    names = [re.split(r"\s{2,}", line)[0] for line in lines]
    assert names[0] == "session:a"
    assert "warm:rules (pinned)" in names
    rest = ["shared by several", "nobody's", "fingerprints, removals", "dead", "index and locks"]
    assert names[-6:] == [*rest, "on disk"]


def test_show_takes_a_label_or_the_digits_of_a_hash(cli: Cli, filled: Store) -> None:
    key = filled.hashes(ids(0, 1))[1].hex()
    by_hash, by_label = cli("kv", "show", key[:14].upper()), cli("kv", "show", "warm:rules")
    assert by_hash.out.splitlines()[0] == f"block        {key}"
    assert re.sub(r"\d+ s ago", "", by_label.out) == re.sub(r"\d+ s ago", "", by_hash.out)
    assert re.search(r"^anchor +warm:rules \(prefill, pinned, 256 tokens", by_hash.out, re.M)
    assert re.search(r"^tokens +128 to 256$", by_hash.out, re.M)
    assert re.search(r"^record +seg/000001.kvs at [\d,]+, 4.1 kB, written by", by_hash.out, re.M)
    assert re.search(r"^fingerprint +[0-9a-f]{32}: \d fields, see --json$", by_hash.out, re.M)
    assert re.search(r"^text +name its model with -m$", by_hash.out, re.M)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nobody", "kv show 'nobody': it is neither a label nor the digits of a block's hash"),
        ("0123456789abcdef", "no block's hash begins with 0123456789abcdef"),
        ("", "kv show '': it is neither a label nor"),
        ("session:short", "it has no whole block yet (12 tokens)"),
    ],
)
def test_show_of_nothing_is_one_line(cli: Cli, filled: Store, target: str, says: str) -> None:
    ran = cli("kv", "show", target)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert says in ran.err


def test_a_damaged_block_is_said_to_be_damaged(cli: Cli, filled: Store, folder: Path) -> None:
    found = filled.show(filled.hashes(ids(7))[0].hex())
    with (folder / found.file).open("r+b") as segment:
        segment.seek(found.offset + 700)
        segment.write(b"\xff")
    assert re.search(r"^state +DAMAGED: the payload", cli("kv", "show", "session:a").out) is None
    out = cli("kv", "show", found.block_hash.hex()).out
    assert re.search(r"^state +DAMAGED: the payload's checksum does not fit$", out, re.M)
    filled.quarantine([found.block_hash])
    commit(filled, ids(8))
    assert "1 damaged block" in cli("kv", "tree").out


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk on which nothing can be opened for writing."""
    plain = Files.open

    def fails(self: Files, path: Path, *, write: bool = False, **options: Any) -> int:
        if write:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return plain(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(Files, "open", fails)
        yield


@pytest.mark.parametrize("view", [*VIEWS, "show session:a"])
def test_a_store_that_cannot_be_written_is_shown(
    cli: Cli, filled: Store, request: pytest.FixtureRequest, view: str
) -> None:
    filled.close()
    request.getfixturevalue("read_only")
    ran = cli("kv", *view.split())
    assert ran.code == 0
    assert "session:a" in ran.out
    assert os.strerror(errno.EROFS) in ran.out + ran.err or view.startswith("show")


@pytest.mark.parametrize("view", VIEWS)
def test_a_damaged_index_is_built_anew_or_told_of(
    cli: Cli, filled: Store, folder: Path, request: pytest.FixtureRequest, view: str
) -> None:
    filled.close()
    (folder / "index" / "data.mdb").write_bytes(b"x" * 32768)
    assert "session:a" in cli("kv", view).out
    (folder / "index" / "data.mdb").write_bytes(b"x" * 32768)
    request.getfixturevalue("read_only")
    ran = cli("kv", view, "--json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1)
    assert os.strerror(errno.EROFS) in ran.err
