"""`kv gc --max-bytes`: the store's budget is set, kept and told, with all that went for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_store import commit, fill, ids, opened

from ced_kvstore import Collected, Store
from ced_kvstore.stats import StoreStats

Cli = Callable[..., Any]
BLOCK = 1 << 20


@pytest.fixture
def folder(home: Path) -> Path:
    return home / "cache" / "kv"


@pytest.fixture
def filled(folder: Path) -> None:
    fill(folder, BLOCK)


def stats_of(folder: Path) -> StoreStats:
    with opened(folder, BLOCK) as store:
        return store.stats()


@pytest.mark.usefixtures("filled")
def test_gc_gives_the_store_a_budget_that_it_keeps(cli: Cli, folder: Path) -> None:
    assert cli("kv", "gc", "--max-bytes", "6.7 mb").code == 0
    stats = stats_of(folder)
    assert stats.bytes_on_disk <= stats.max_bytes == 6_700_000
    assert (stats.blocks, stats.anchors) == (4, 2)
    assert "of at most 6.7 MB" in cli("kv", "ls").out


@pytest.mark.usefixtures("filled")
def test_a_smaller_budget_says_all_that_went_for_it(cli: Cli, folder: Path) -> None:
    before = stats_of(folder)
    ran = cli("kv", "gc", "--max-bytes", "2MB")
    assert (ran.code, ran.err) == (0, "")
    gone = before.bytes_on_disk - stats_of(folder).bytes_on_disk
    blocks = before.blocks - stats_of(folder).blocks
    assert ran.out.startswith(
        f"the store may take 2.0 MB; dropped {blocks} blocks; {gone / 1e6:.1f} MB left the disk (1 "
    )
    assert ran.out.endswith("; 2 labels went with them\n")
    assert (blocks > 4, gone > 4 * BLOCK) == (True, True)


def test_what_fits_of_a_path_stays_when_its_end_goes_for_the_budget(cli: Cli, folder: Path) -> None:
    with opened(folder, BLOCK) as store:
        commit(store, ids(0, 1, 2, 3), "s:a")
    assert cli("kv", "gc", "--max-bytes", "4MB").out.endswith("; 1 label went with them\n")
    with opened(folder, BLOCK) as store:
        assert store.match(ids(0, 1, 2, 3)).blocks == 2


@pytest.mark.usefixtures("filled")
def test_a_budget_is_told_in_json_with_what_went_for_it(cli: Cli, folder: Path) -> None:
    before = stats_of(folder)
    found = json.loads(cli("kv", "gc", "--max-bytes", "6.7MB", "--json").out)
    assert (found["dry_run"], found["max_bytes"], found["labels"]) == (False, 6_700_000, [])
    assert found["collected"]["blocks"] == 2
    gone = before.bytes_on_disk - stats_of(folder).bytes_on_disk
    assert found["collected"]["bytes"] == gone > 2 * BLOCK
    assert json.loads(cli("kv", "gc", "--json").out)["max_bytes"] == 6_700_000


def test_a_budget_that_pins_do_not_let_hold_says_so(cli: Cli, folder: Path) -> None:
    with opened(folder, BLOCK) as store:
        commit(store, ids(0, 1), "warm:x", pinned=True)
    ran = cli("kv", "gc", "--max-bytes", "1MB")
    on_disk = stats_of(folder).bytes_on_disk / 1e6
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith(f"; {on_disk:.1f} MB stay: they are pinned or in use\n")
    assert "stay" not in cli("kv", "gc", "--max-bytes", "5MB").out
    cli("kv", "rm", "--all")
    assert "stay: so much an empty store takes" in cli("kv", "gc", "--max-bytes", "1").out


@pytest.mark.usefixtures("filled")
def test_a_budget_that_others_do_not_let_hold_is_not_called_pinned(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "limit", lambda store, max_bytes: None)
    monkeypatch.setattr(Store, "gc", lambda store: Collected(0, 0, 0, waiting=1))
    out = cli("kv", "gc", "--max-bytes", "1MB").out
    assert "dead bytes in 1 file wait" in out
    assert "pinned" not in out
    monkeypatch.setattr(Store, "gc", lambda store: Collected(0, 0, 0, "others are at it"))
    ran = cli("kv", "gc", "--max-bytes", "1MB")
    assert (ran.code, ran.out) == (5, "")
    assert "the store may take 1.0 MB, but nothing was collected: others are at it" in ran.err


def test_a_budget_may_be_given_before_anything_is_stored(cli: Cli, folder: Path) -> None:
    ran = cli("kv", "gc", "--max-bytes", "10MB")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "the store may take 10.0 MB; dropped 0 blocks; 0 B left the disk (0 files)\n"
    )
    assert stats_of(folder).max_bytes == 10_000_000


@pytest.mark.parametrize(
    ("given", "n_bytes"), [("5GiB", 5 << 30), ("1.5 mib", 3 << 19), ("2KiB", 2048), ("7b", 7)]
)
def test_units_are_powers_of_1000_and_with_an_i_of_1024(cli: Cli, given: str, n_bytes: int) -> None:
    assert json.loads(cli("kv", "gc", "--max-bytes", given, "--json").out)["max_bytes"] == n_bytes


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("given", ["5 XB", "-1", "1e9", "", "nan", "5iB", "1,5GB", "٣GB"])
def test_a_budget_that_is_no_size_is_one_line_and_changes_nothing(cli: Cli, given: str) -> None:
    before = cli("kv", "ls").out
    ran = cli("kv", "gc", "--max-bytes", given)
    assert (ran.code, ran.out) == (2, "")
    assert f"expected a size such as 5GB, got {given}" in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert re.sub(r"\d+ s", "", cli("kv", "ls").out) == re.sub(r"\d+ s", "", before)


@pytest.mark.parametrize("given", ["99999999TB", "4194304TiB", "9" * 400])
def test_a_budget_beyond_all_bounds_says_what_the_most_is(
    cli: Cli, folder: Path, given: str
) -> None:
    ran = cli("kv", "gc", "--max-bytes", given)
    assert (ran.code, ran.out, folder.exists()) == (2, "", False)
    (most,) = re.findall(f"expected at most (.* TB), got {given}", ran.err)
    assert cli("kv", "gc", "--max-bytes", most).code == 0


@pytest.mark.usefixtures("filled")
def test_a_dry_run_says_what_a_budget_would_cost_and_keeps_the_old_one(
    cli: Cli, folder: Path
) -> None:
    before = stats_of(folder)
    ran = cli("kv", "gc", "--dry-run", "--max-bytes", "5MB")
    on_disk, over = before.bytes_on_disk, before.bytes_on_disk - 5_000_000
    told, more = ran.out.splitlines()
    assert told == (
        f"the store has {on_disk / 1e6:.1f} MB; for 5.0 MB at least {over / 1e6:.1f} MB of it "
        "would have to go"
    )
    assert more.startswith("there are 2 blocks that no label needs; ")
    found = json.loads(cli("kv", "gc", "--dry-run", "--max-bytes", "5MB", "--json").out)
    assert (found["max_bytes"], found["bytes_on_disk"], found["over"]) == (5000000, on_disk, over)
    assert "for 1.0 GB none of it" in cli("kv", "gc", "--dry-run", "--max-bytes", "1GB").out
    after = stats_of(folder)
    assert (after.blocks, after.max_bytes) == (before.blocks, before.max_bytes)


def test_a_dry_run_with_a_budget_makes_no_store(cli: Cli, folder: Path) -> None:
    ran = cli("kv", "gc", "--dry-run", "--max-bytes", "1GB")
    assert (ran.code, ran.out, folder.exists()) == (0, "Nothing is stored yet.\n", False)
