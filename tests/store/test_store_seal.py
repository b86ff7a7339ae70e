"""The sum that the last process leaves of the index: of all its bytes, and what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Files, recover, seal
from ced_kvstore.errors import BadRecord


def test_an_index_that_its_sum_does_not_fit_is_built_anew(
    kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page with a flipped bit in a key is a page like any other; only the sum tells."""
    kit.fill()
    with kit.open() as store:
        key = store.hashes(kit.ids(4))[3]
    data, erased, erase = kit.directory / "index" / "data.mdb", [], recover.erase
    raw = data.read_bytes()
    at = raw.find(key)
    while at >= 0:
        kit.flip(data, at + 31)
        at = raw.find(key, at + 1)
    assert data.read_bytes() != raw

    def erasing(files: Files, folder: Path) -> None:
        erased.append(folder)
        erase(files, folder)

    monkeypatch.setattr(recover, "erase", erasing)
    store = kit.open()
    assert kit.good_blocks(store, kit.ids(4)) == 4
    assert store.verify() == []
    assert erased == [kit.directory / "index"]


@pytest.mark.parametrize("at", [0, (1 << 20) - 1, 1 << 20, 5 << 19, (3 << 20) + 6])
def test_the_sum_is_of_every_byte(kit: Any, tmp_path: Path, at: int) -> None:
    data, files = tmp_path / "data.mdb", Files()
    data.write_bytes(bytes((3 << 20) + 7))
    seal.leave(files, tmp_path)
    seal.check(files, tmp_path, walk=False)
    kit.flip(data, at)
    with pytest.raises(BadRecord, match="the index is damaged"):
        seal.check(files, tmp_path, walk=False)


def test_the_sum_is_of_no_byte_more(tmp_path: Path) -> None:
    data, files = tmp_path / "data.mdb", Files()
    data.write_bytes(bytes(9000))
    seal.leave(files, tmp_path)
    with data.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(BadRecord, match="the index is damaged"):
        seal.check(files, tmp_path, walk=False)
