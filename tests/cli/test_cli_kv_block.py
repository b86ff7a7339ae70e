"""`kv rm --block`: a block is meant by enough digits of its hash, and what went is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_store import commit, ids, opened

from ced_kvstore import Store
from cedagent.cli import kv_block
from cedagent.errors import UsageError

Cli = Callable[..., Any]


@pytest.fixture
def folder(home: Path) -> Path:
    return home / "cache" / "kv"


@pytest.fixture
def filled(folder: Path) -> None:
    """Two labels that share a block, and two blocks of nobody's."""
    with opened(folder) as store:
        commit(store, ids(0, 1), "s:a")
        commit(store, ids(0, 2, 3), "s:b")
        commit(store, ids(7, 8))


@pytest.mark.usefixtures("filled")
def test_rm_of_a_block_takes_the_digits_that_ls_shows(cli: Cli, folder: Path) -> None:
    (label,) = [a for a in json.loads(cli("kv", "ls", "--json").out)["anchors"]
                if a["label"] == "s:b"]  # fmt: skip
    whole = label["block_hash"]
    for wrong in ("", "zz", "0" * 12, whole[0], whole[:11]):
        ran = cli("kv", "rm", "--block", wrong)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert f"{wrong!r}: expected at least 12 digits" in ran.err
    ran = json.loads(cli("kv", "rm", "--block", whole[:12], "--json").out)
    assert (ran["removed"], ran["labels"], ran["dropped"]["blocks"]) == (whole, ["s:b"], 2)
    ran = cli("kv", "rm", "--all")
    assert ran.out.startswith("removed everything, 1 anchor, 4 blocks, ")
    assert json.loads(cli("kv", "ls", "--json").out)["stats"]["blocks"] == 0


def begins(store: Store, seed: int, digit: str) -> bool:
    return store.hashes(ids(seed))[0].hex().startswith(digit)


def test_rm_of_a_block_that_others_may_be_meant_by_removes_nothing(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digits are unclear as soon as another block has them, be there an anchor at it or not."""
    monkeypatch.setattr(kv_block, "MIN_DIGITS", 1)
    with opened(folder) as store:
        commit(store, ids(0), "s:a")
        digit = store.hashes(ids(0))[0].hex()[0]
        assert [found.label for found in kv_block.anchors_at(store, digit)] == ["s:a"]
        commit(store, ids(next(n for n in range(1, 999) if begins(store, n, digit))))
        with pytest.raises(UsageError, match="several blocks begin so"):
            kv_block.anchors_at(store, digit)


@pytest.mark.usefixtures("filled")
def test_rm_of_a_block_names_what_went(cli: Cli, folder: Path) -> None:
    with opened(folder) as store:
        whole = store.hashes(ids(0, 1))[1].hex()
    out = cli("kv", "rm", "--block", whole[:12]).out
    assert out.startswith(f"removed s:a at block {whole}, 1 anchor, 1 block, ")
    assert "nothing is stored under '';" in cli("kv", "rm", "").err
