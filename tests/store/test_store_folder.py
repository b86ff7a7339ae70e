"""The directory is private, of one version, and one clear error when it cannot be a store."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from store_race import hold

from ced_kvstore import Files, StoreError, VersionError
from ced_kvstore.rows import Tables


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_everything_is_private_whatever_the_umask(kit: Any, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = kit.open(max_bytes=4 << 20)
        kit.commit(store, kit.ids(40))
        store.close()
        check_modes(kit.directory, {"index/CHECK", "LOCK", "OPEN", "VERSION"})
        # Whatever the first one made, others make again.
        for name in ("LOCK", "OPEN"):
            (kit.directory / name).unlink()
        store = kit.open()
        store.match(kit.ids(40))
        store.evict(0)
        kit.anchored(store, kit.ids(30, seed=1), "a")
        store.remove("a", purge=True)
        check_modes(kit.directory, {"LEASE", "LOCK", "OPEN", "index/data.mdb", "index/lock.mdb"})
        assert len(list((kit.directory / "pins").iterdir())) == 1
        archive = kit.directory.with_name("all.tar")
        store.export(archive)
        assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_folder_that_was_there_and_was_empty_is_made_private(kit: Any) -> None:
    kit.directory.mkdir(mode=0o755)
    kit.fill()
    check_modes(kit.directory, {"VERSION"})


@pytest.mark.parametrize("name", [".", "index", "pins", "seg"])
def test_a_folder_that_somebody_opened_to_others_is_private_again(kit: Any, name: str) -> None:
    kit.fill()
    (kit.directory / name).chmod(0o755)
    kit.open()
    check_modes(kit.directory, {"VERSION"})


def test_nothing_is_open_to_others_even_for_a_moment(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fchmod", lambda fd, mode: None)
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
    before = os.umask(0)
    try:
        kit.fill()
        with kit.open() as store:
            store.match(kit.ids(4))
            store.remove("session:a", purge=True)
            store.export(kit.directory / ".." / "all.tar")
            check_modes(kit.directory, {"index/data.mdb", "index/lock.mdb", "LEASE"})
        assert stat.S_IMODE(kit.directory.with_name("all.tar").stat().st_mode) == 0o600
    finally:
        os.umask(before)


def check_modes(directory: Path, expected_files: set[str]) -> None:
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*")}
    assert expected_files <= found
    for path in [directory, *directory.rglob("*")]:
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.parametrize(
    "version", [b"ced-kv 99\n", b"ced-kv 10\n", b"ced-kv 1", b"\n", b"\xff\n\0" * 99], ids=repr
)
def test_another_format_version_is_one_clear_error(kit: Any, version: bytes) -> None:
    kit.fill()
    (kit.directory / "VERSION").write_bytes(version)
    before = {p: p.is_file() and p.read_bytes() for p in kit.directory.rglob("*")}
    found = repr(version[:40].decode(errors="replace"))
    expected = re.escape(rf"expected 'ced-kv 1\n' in VERSION, found {found};")
    with pytest.raises(VersionError, match=expected) as caught:
        kit.open()
    assert "\n" not in str(caught.value)
    assert {p: p.is_file() and p.read_bytes() for p in kit.directory.rglob("*")} == before


def test_a_file_in_the_way_is_one_clear_error(tmp_path: Path, kit: Any) -> None:
    (tmp_path / "kv").write_text("not a folder")
    with pytest.raises(StoreError, match="not a folder"):
        kit.open()
    with pytest.raises(StoreError, match="not a folder"):
        kit.open(directory=tmp_path / "kv" / "below")


def noted(kit: Any, patch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Grows with every call of these methods: each one's name and that of the file it is for."""
    steps: list[str] = []

    def name_of(target: Any) -> str:
        if isinstance(target, int):
            wanted = os.fstat(target).st_ino
            return next(p.name for p in kit.directory.rglob("*") if p.stat().st_ino == wanted)
        return target.name if isinstance(target, Path) else ""

    def noting(name: str) -> Any:
        plain = getattr(Files, name)

        def method(self: Files, target: Any, *args: Any, **options: Any) -> Any:
            steps.append(f"{name} {name_of(target)}".rstrip())
            return plain(self, target, *args, **options)

        return method

    for name in names:
        patch.setattr(Files, name, noting(name))
    return steps


def test_a_commit_writes_then_syncs_once_then_publishes_once(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.open()
    kit.commit(store, kit.ids(1))
    steps = noted(kit, monkeypatch, "create", "pwritev", "sync_data", "sync_directory", "publish")
    assert kit.commit(store, kit.ids(32)).blocks == 31
    assert steps == ["pwritev 000001.kvs", "sync_data 000001.kvs", "publish"]


def test_a_commit_that_fills_a_segment_makes_both_durable(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kit.open(max_bytes=2 << 20)
    kit.commit(store, kit.ids(1))
    steps = noted(kit, monkeypatch, "create", "pwritev", "sync_data", "sync_directory", "publish")
    assert kit.commit(store, kit.ids(9)).blocks == 8
    assert steps == [
        "pwritev 000001.kvs",
        "sync_data 000001.kvs",
        "create 000002.kvs",
        "sync_directory seg",
        "pwritev 000002.kvs",
        "sync_data 000002.kvs",
        "publish",
    ]


def test_a_small_file_is_whole_and_named_before_anything_builds_on_it(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = noted(kit, monkeypatch, "sync_data", "sync_directory")
    plain = os.replace

    def replaced(old: Path, new: Path) -> None:
        plain(old, new)
        steps.append(f"replace {new.name}")

    monkeypatch.setattr(os, "replace", replaced)
    kit.open().close()
    for name, folder in (("VERSION", "kv"), ("CHECK", "index")):
        at = steps.index(f"replace {name}")
        assert steps[at - 1 : at + 2 : 2] == [f"sync_data {name}.new", f"sync_directory {folder}"]


def test_the_sum_of_an_index_is_gone_for_good_before_the_index_changes(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.fill()
    steps = noted(kit, monkeypatch, "unlink", "sync_directory", "open_index", "publish")
    kit.open()
    assert steps[:3] == ["unlink CHECK", "sync_directory index", "open_index index"]


def test_opening_after_a_clean_close_walks_no_rows(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit.fill()

    def walked(*args: Any) -> Any:
        raise AssertionError("open takes as long as there are rows")

    for method in ("blocks", "placed", "anchors", "heats"):
        monkeypatch.setattr(Tables, method, walked)
    monkeypatch.setattr("lmdb.verify.verify", walked)
    with kit.open() as store:
        assert store.notice is None
        assert store.stats().blocks == 4


def test_the_sum_of_an_index_is_gone_before_the_first_write(kit: Any) -> None:
    kit.fill()
    check = kit.directory / "index" / "CHECK"
    assert check.exists()
    with kit.open():
        assert not check.exists()
    assert check.exists()


def test_a_disk_that_does_not_answer_is_not_read_at_the_end(kit: Any) -> None:
    store, ids = kit.open(), kit.ids(2)
    kit.commit(store, ids)
    store._core.disabled = "a read took too long"
    store.close()
    assert not (kit.directory / "index" / "CHECK").exists()
    again = kit.open()
    assert again.match(ids).blocks == 2
    again.close()
    assert (kit.directory / "index" / "CHECK").exists()


def test_a_store_that_closes_bars_nobody_who_waits_to_open_it(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once OPEN is free, LOCK is: who got the one and not the other would never write."""
    kit.fill()
    store, plain, found = kit.open(), Files.unlock, []

    def unlocked(files: Files, fd: int) -> None:
        is_open = files.identity(fd) == files.identity(kit.directory / "OPEN")
        plain(files, fd)
        if is_open:
            os.close(hold(kit.directory / "LOCK"))
            found.append("free")

    monkeypatch.setattr(Files, "unlock", unlocked)
    store.close()
    assert found == ["free"]
