"""A full disk, a read-only store: one warning, the same answer, the same exit code."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Anchor, Commit, Files, Store, Stream

Cli = Callable[..., Any]
ASK = ["--max-tokens", "30", "--temperature", "0.8", "--seed", "5", "--no-builtin-tools"]
PROMPT = "count to one hundred " * 30


def fail_with(number: int) -> Callable[..., Any]:
    def failing(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    return failing


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("pwritev", errno.ENOSPC),
        ("sync_data", errno.EIO),
        ("open", errno.EROFS),
        ("create", errno.EROFS),
        ("make_directory", errno.EIO),
    ],
)
def test_trouble_with_the_disk_is_one_warning(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch, method: str, number: int
) -> None:
    expected = cli("chat", "-m", tiny, "-p", PROMPT, *ASK, "--no-kv")
    assert expected.err.count("\n") == 1, "the limit alone"
    assert hasattr(Files, method)
    monkeypatch.setattr(Files, method, fail_with(number))
    ran = cli("chat", "-m", tiny, "-p", PROMPT, *ASK)
    assert (ran.code, ran.out) == (expected.code, expected.out)
    warnings = ran.err.replace(expected.err, "").splitlines()
    assert len(warnings) == 1, ran.err
    assert "prefix store" in warnings[0]
    assert os.strerror(number) in warnings[0]


@pytest.mark.parametrize("name", ["pins", "seg", "index"])
def test_what_is_in_the_way_is_named_with_what_to_do_by_every_command(
    cli: Cli, home: Path, name: str
) -> None:
    folder = home / "cache" / "kv"
    folder.mkdir(parents=True)
    (folder / "VERSION").write_text("ced-kv 1\n")
    (folder / name).write_text("")
    for argv in (["ls"], ["tree"], ["du"], ["verify"], ["verify", "--json"]):
        ran = cli("kv", *argv)
        assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1), argv
        assert f"{folder / name} (move it away)" in ran.err


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("pwritev", errno.ENOSPC),
        ("sync_data", errno.EIO),
        ("open", errno.EROFS),
        ("create", errno.EROFS),
        ("publish", errno.ENOSPC),
        ("preadv", errno.EIO),
    ],
)
def test_kv_commands_on_a_disk_that_fails_end_in_one_line(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, number: int
) -> None:
    monkeypatch.chdir(tmp_path)
    ids, folder = list(range(256)), home / "cache" / "kv"
    with Store.open(folder, fingerprint={}, streams=[Stream("k", 700)]) as store:
        anchor = Anchor(store.hashes(ids)[1], "s")
        store.commit(ids, first_block=0, rows={"k": bytes(1400)}, anchors=[anchor])
    assert cli("kv", "export", "good.tar").code == 0
    assert hasattr(Files, method)
    monkeypatch.delenv("CEDAGENT_DEBUG")
    monkeypatch.setattr(Files, method, fail_with(number))
    for argv in (
        ["ls"], ["tree"], ["du"], ["show", "s"], ["verify"], ["verify", "--fix"], ["gc"],
        ["export", "x.tar"], ["import", "good.tar"], ["rm", "s"], ["rm", "--all"],
    ):  # fmt: skip
        ran = cli("kv", *argv, "--json")
        assert ran.code in (0, 2, 5), (argv, ran)
        assert ran.err.count("\n") <= 1, (argv, ran)
        assert "unexpected" not in ran.err, (argv, ran)
        if ran.out:
            json.loads(ran.out)
        assert ran.out or ran.err, argv


def test_answer_goes_on_with_exit_code_0_when_the_disk_fills_up(
    cli: Cli, scripted: Callable[..., Any], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is the answer's, not the disk's: a run that ends gives 0."""
    model = scripted("one")
    model.notices.append("prefix store: No space left on device; nothing new is stored")
    ran = cli("chat", "-p", "x")
    assert (ran.code, ran.out) == (0, "one\n")
    assert ran.err.count("\n") == 1


def test_warm_into_a_full_disk_says_so_and_fails(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Files, "pwritev", fail_with(errno.ENOSPC))
    ran = cli("warm", "-m", tiny)
    assert ran.code == 5
    assert os.strerror(errno.ENOSPC) in ran.err


def test_warm_into_a_read_only_store_encodes_nothing_and_still_reports_a_hit(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("warm", "-m", tiny).code == 0
    monkeypatch.setattr(Store, "read_only", property(lambda self: True))
    monkeypatch.setattr(Store, "notice", property(lambda self: "in use by another process"))
    hit = cli("warm", "-m", tiny)
    assert hit.code == 0
    assert " hit " in hit.out

    def encoded(*args: object, **kwargs: object) -> None:
        raise AssertionError("a tile was encoded")

    monkeypatch.setattr("cedagent.engine.llama.family.encode_tile", encoded)
    rules = tmp_path / "rules.txt"
    rules.write_text("Count. " * 300)
    ran = cli("warm", rules, "-m", tiny)
    assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1)
    assert "nothing was encoded" in ran.err
    assert "in use by another process" in ran.err


def test_warm_that_keeps_less_than_all_says_so_and_fails(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Store, "commit", lambda *args, **kwargs: Commit(blocks=0, skipped=0, reason="no budget")
    )
    ran = cli("warm", "-m", tiny)
    assert (ran.code, ran.out, ran.err.count("\n")) == (5, "", 1)
    assert "not everything" in ran.err
    assert "no budget" in ran.err


def test_warm_of_more_than_the_context_has_code_3(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.txt"
    rules.write_text("Count to one. " * 9000)
    ran = cli("warm", rules, "-m", tiny)
    assert (ran.code, ran.out, ran.err.count("\n")) == (3, "", 1)


def test_session_log_on_a_full_disk_is_one_warning(
    cli: Cli, scripted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted("one")
    monkeypatch.setattr(os, "pwrite", fail_with(errno.ENOSPC))
    ran = cli("chat", "-p", "x")
    assert (ran.code, ran.out) == (0, "one\n")
    assert ran.err.count("\n") == 1
    assert "unsaved" in ran.err
