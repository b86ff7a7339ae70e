"""A folder that is no store becomes one only if nothing in it is anybody else's."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import StoreError


def listed(folder: Path) -> dict[Path, tuple[int, bytes | None]]:
    """Modes and contents of a folder and of all in it."""
    return {
        path: (path.lstat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.parametrize("version", [None, b""], ids=["no version", "an empty version"])
@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "kv", "VERSION.old", "seg.bak"])
def test_a_folder_with_other_files_is_one_clear_error_and_left_as_it_is(
    kit: Any, name: str, version: bytes | None
) -> None:
    kit.directory.mkdir(mode=0o755)
    (kit.directory / name).write_text("mine")
    for path in ("seg/000001.kvs", "index/data.mdb"):
        (kit.directory / path).parent.mkdir()
        (kit.directory / path).write_text("mine, too")
    if version is not None:
        (kit.directory / "VERSION").write_bytes(version)
    before = listed(kit.directory)
    expected = f"{kit.directory} holds other files; give the prefix store a folder of its own"
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            kit.open()
        assert str(caught.value) == expected
        assert listed(kit.directory) == before


@pytest.mark.parametrize(
    "names", [(), ("lost+found",), ("OPEN", "LOCK", "index", "VERSION.new"), ("LEASE", "pins")]
)
def test_a_folder_with_nothing_but_our_names_becomes_a_store_and_private(
    kit: Any, names: tuple[str, ...]
) -> None:
    kit.directory.mkdir()
    kit.directory.chmod(0o755)
    for name in names:
        if name.isupper() or name == "VERSION.new":
            (kit.directory / name).write_text("")
        else:
            (kit.directory / name).mkdir()
    store = kit.open()
    assert store.notice is None
    assert kit.commit(store, kit.ids(2)).blocks == 2
    assert stat.S_IMODE(kit.directory.stat().st_mode) == 0o700
    assert (kit.directory / "VERSION").read_text() == "ced-kv 1\n"


@pytest.mark.parametrize("version", [None, b""], ids=["lost", "empty"])
def test_a_store_without_its_version_finds_everything_again_and_is_private(
    kit: Any, version: bytes | None
) -> None:
    kit.fill()
    (kit.directory / "VERSION").unlink()
    if version is not None:
        (kit.directory / "VERSION").write_bytes(version)
    kit.directory.chmod(0o755)
    store = kit.open()
    assert store.notice is None
    assert kit.good_blocks(store, kit.ids(4)) == 4
    assert [anchor.label for anchor in store.anchors()] == ["session:a", "warm"]
    assert stat.S_IMODE(kit.directory.stat().st_mode) == 0o700
    assert (kit.directory / "VERSION").read_text() == "ced-kv 1\n"


def test_other_files_in_a_store_do_no_harm(kit: Any) -> None:
    kit.fill()
    (kit.directory / "notes.txt").write_text("mine")
    store = kit.open()
    assert (store.notice, kit.good_blocks(store, kit.ids(4))) == (None, 4)
    store.close()
    assert (kit.directory / "notes.txt").read_text() == "mine"
