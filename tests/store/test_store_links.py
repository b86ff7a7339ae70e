"""Symbolic links that somebody planted in a store's folder lead no write out of it."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest


def planted(kit: Any, name: str, content: bytes = b"precious") -> Path:
    """A file outside that a name in the store's folder links to."""
    victim: Path = kit.directory.with_name("victim")
    victim.write_bytes(content)
    victim.chmod(0o644)
    link: Path = kit.directory / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    return victim


def is_as_it_was(victim: Path, content: bytes = b"precious") -> bool:
    return victim.read_bytes() == content and stat.S_IMODE(victim.stat().st_mode) == 0o644


def is_told(notice: str | None, path: Path) -> bool:
    assert notice is not None
    assert notice.count("\n") == 0
    return f"{path} (it is a symbolic link: move it away); nothing new is stored" in notice


@pytest.mark.parametrize("content", [b"precious", b""], ids=["full", "empty"])
@pytest.mark.parametrize("name", ["VERSION.new", "OPEN", "LOCK"])
def test_a_link_in_a_new_folder_is_one_notice_and_nothing_is_written_through_it(
    kit: Any, name: str, content: bytes
) -> None:
    victim = planted(kit, name, content)
    store = kit.open()
    assert is_told(store.notice, kit.directory / name)
    assert kit.commit(store, kit.ids(2)).reason == "read_only"
    store.close()
    assert is_as_it_was(victim, content)


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
def test_a_link_in_place_of_the_index_is_one_notice(kit: Any, name: str) -> None:
    # One that is not empty is no index, and goes for it.
    victim = planted(kit, f"index/{name}", b"")
    store = kit.open()
    assert is_told(store.notice, kit.directory / "index" / name)
    store.close()
    assert is_as_it_was(victim, b"")


@pytest.mark.parametrize("name", ["index", "pins", "seg"])
def test_a_link_in_place_of_a_folder_is_one_notice(kit: Any, name: str) -> None:
    outside = kit.directory.with_name("outside")
    outside.mkdir()
    outside.chmod(0o755)
    kit.directory.mkdir()
    (kit.directory / name).symlink_to(outside)
    store = kit.open()
    assert is_told(store.notice, kit.directory / name)
    store.match(kit.ids(2))
    store.close()
    assert (stat.S_IMODE(outside.stat().st_mode), [*outside.iterdir()]) == (0o755, [])


@pytest.mark.parametrize("name", ["LEASE", "seg/000001.kvs"])
def test_a_link_in_a_store_that_is_there_is_one_notice(kit: Any, name: str) -> None:
    kit.fill()
    whole = (kit.directory / name).read_bytes() if name.startswith("seg") else b"precious"
    victim = planted(kit, name, whole)
    store = kit.open()
    assert kit.good_blocks(store, kit.ids(4)) == 4
    store.gc()
    kit.commit(store, kit.ids(2, seed=1))
    assert is_told(store.notice, kit.directory / name)
    store.close()
    assert is_as_it_was(victim, whole)


def test_a_link_in_place_of_the_sum_is_not_written_through(kit: Any) -> None:
    victim = planted(kit, "index/CHECK.new")
    kit.fill()
    assert is_as_it_was(victim)
    assert not (kit.directory / "index" / "CHECK").exists()
    assert kit.good_blocks(kit.open(), kit.ids(4)) == 4


def test_the_folder_itself_and_those_above_it_may_be_links(kit: Any, tmp_path: Path) -> None:
    real = tmp_path / "real" / "deep"
    real.mkdir(parents=True)
    real.chmod(0o755)
    (tmp_path / "above").symlink_to(tmp_path / "real")
    kit.directory.symlink_to(tmp_path / "above" / "deep")
    store = kit.open()
    assert kit.commit(store, kit.ids(2)).blocks == 2
    assert store.notice is None
    assert stat.S_IMODE(real.stat().st_mode) == 0o700
    assert (real / "VERSION").exists()
