"""`kv selftest`: every claim has a line, and each turns red when it does not hold."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Files
from cedagent.cli import kv_probe, probe, selftest
from cedagent.cli.kv_proofs import Compared, proofs_of
from cedagent.errors import EngineError

Cli = Callable[..., Any]
GOOD = Compared(
    tokens=300,
    live=True,
    ram=True,
    disk=True,
    reused_disk=256,
    rerun=0,
    no_snapshot=True,
    rerun_no_snapshot=256,
    reused_no_snapshot=256,
    moved=True,
    reused_moved=256,
    damaged=True,
    reused_damaged=128,
)
NAMES = ["live", "fork", "restart", "no_snapshot", "archive", "damage"]


def test_a_good_run_proves_every_claim() -> None:
    assert [(proof.name, proof.holds) for proof in proofs_of([GOOD])] == [(n, True) for n in NAMES]
    # A model without windows has nothing to say of snapshots, a short text nothing of block two.
    plain = replace(GOOD, tokens=200, no_snapshot=None, reused_no_snapshot=None, reused_damaged=128)
    assert [proof.name for proof in proofs_of([plain])] == ["live", "fork", "restart", "archive"]
    (damage,) = [proof for proof in proofs_of([plain, GOOD]) if proof.name == "damage"]
    assert list(damage.tokens) == [300]


def test_what_was_never_stored_proves_nothing_of_the_disk() -> None:
    zero = dict.fromkeys(("reused_disk", "reused_no_snapshot", "reused_moved", "reused_damaged"), 0)
    short = replace(GOOD, tokens=127, **zero)
    tokens = {proof.name: list(proof.tokens) for proof in proofs_of([short, GOOD])}
    assert tokens == {name: [127, 300] if name in ("live", "fork") else [300] for name in NAMES}
    # But other bits are other bits.
    (failed,) = [p for p in proofs_of([replace(short, disk=False), GOOD]) if not p.holds]
    assert (failed.name, failed.fails_at) == ("restart", [127])


@pytest.mark.slow
def test_a_full_disk_is_no_wrong_answer(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Files, "pwritev", full)
    ran = cli("kv", "selftest", "-m", tiny, "--kv", tmp_path / "kv")
    assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1)
    assert "nothing can be tried; " in ran.err
    assert f"{os.strerror(errno.ENOSPC)} (make room on that disk)" in ran.err


@pytest.mark.parametrize(
    ("lie", "fails", "verdict"),
    [
        ({"live": False}, "live", "A hit changes the answer!"),
        ({"ram": False}, "fork", "A hit changes the answer!"),
        ({"disk": False}, "restart", "A hit changes the answer!"),
        ({"no_snapshot": False}, "no_snapshot", "A hit changes the answer!"),
        ({"moved": False}, "archive", "A hit changes the answer!"),
        ({"damaged": False}, "damage", "A hit changes the answer!"),
        ({"reused_disk": 128}, "restart", "Stored rows were not used."),
        ({"reused_no_snapshot": 0}, "no_snapshot", "Stored rows were not used."),
        ({"reused_moved": 128}, "archive", "Stored rows were not used."),
        ({"reused_damaged": 256}, "damage", "A damaged record was not noticed where it is."),
        ({"reused_damaged": 0}, "damage", "A damaged record was not noticed where it is."),
    ],
    ids=str,
)
def test_each_lie_turns_its_claim_red(
    cli: Cli,
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: dict[str, Any],
    fails: str,
    verdict: str,
) -> None:
    rows = [GOOD, replace(GOOD, tokens=301, **lie)]
    monkeypatch.setattr(selftest, "_compare", lambda *_: (rows, []))
    assert fails in [proof.name for proof in proofs_of(rows) if not proof.holds]
    ran = cli("kv", "selftest", "-m", tiny)
    assert (ran.code, ran.out.splitlines()[-1]) == (5, verdict)
    (line,) = [proof.words for proof in proofs_of(rows) if proof.name == fails]
    assert line.endswith(": NOT SO at 301 tokens")
    assert f"NO   {line}" in ran.out
    found = json.loads(cli("kv", "selftest", "-m", tiny, "--json").out)
    assert not found["good"]
    assert [row["tokens"] for row in found["rows"]] == [300, 301]
    assert {proof["name"]: proof["holds"] for proof in found["proofs"]}[fails] is False


@pytest.mark.parametrize("width", [60, 200])
def test_its_lines_fit_the_terminal(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(selftest, "_compare", lambda *_: ([GOOD], []))
    monkeypatch.setenv("COLUMNS", str(width))
    ran = cli("kv", "selftest", "-m", tiny)
    lines = ran.out.splitlines()
    assert (ran.code, max(map(len, lines)) <= width) == (0, True)
    assert lines[-1] == "A hit gives the bits of a cold run."


def test_a_process_that_fails_is_one_line_with_its_reason() -> None:
    with pytest.raises(EngineError, match=r"^a process for nothing failed: .*no_such_module'?$"):
        probe.run_elsewhere("no_such_module", {}, "for nothing")


@pytest.mark.slow
def test_selftest_is_green_and_leaves_nothing_behind(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    ran = cli("kv", "selftest", "-m", tiny, "--kv", tmp_path / "kv", "--json")
    assert ran.code == 0, ran.out
    found = json.loads(ran.out)
    assert [proof["name"] for proof in found["proofs"]] == [n for n in NAMES if n != "no_snapshot"]
    last = found["rows"][-1]
    assert (last["reused_disk"], last["reused_moved"], last["reused_damaged"]) == (640, 640, 128)
    assert not list(tmp_path.glob("cedagent-selftest-*"))


@pytest.mark.slow
def test_selftest_is_red_when_other_bits_come_from_the_disk(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(
        *, stores: dict[str, str], known: list[int], **arguments: Any
    ) -> dict[str, kv_probe.Resumed]:
        zeros = [0] * len(known)
        found = kv_probe.Resumed(["0" * 64] * len(known), zeros, zeros, ["a notice"])
        return dict.fromkeys(stores, found)

    monkeypatch.setattr(kv_probe, "resume_elsewhere", other)
    ran = cli("kv", "selftest", "-m", tiny)
    assert (ran.code, ran.err) == (5, "cedagent: a notice\n")
    assert "NO   so does what another process restores" in ran.out
