"""`kv`, `warm`, `sessions`: what is kept, and why something misses."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedagent.model.tiny import write_tiny

Cli = Callable[..., Any]
FAST = ["--max-tokens", "8", "--no-builtin-tools"]
RULES = " ".join(f"Rule {n}: count to {n}." for n in range(60))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.txt"
    path.write_text(RULES)
    return path


def events_of(ran: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.out.splitlines()]


def usage_of(ran: Any) -> dict[str, int]:
    return dict(events_of(ran)[-1]["usage"])


def test_empty_store_says_so(cli: Cli) -> None:
    assert cli("kv", "ls").out == "Nothing is stored yet.\n"
    assert cli("kv", "verify").out == "Nothing is stored yet.\n"
    assert json.loads(cli("kv", "ls", "--json").out) == {"anchors": [], "stats": None}
    assert cli("sessions", "ls").out.startswith("No sessions yet")


def test_warm_is_idempotent_and_pins(cli: Cli, tiny: Path, rules: Path) -> None:
    (first,) = json.loads(cli("warm", rules, "-m", tiny, "--json").out)
    assert not first["hit"]
    assert 0 < first["tokens"] - first["encoded"] < 128
    ran = cli("warm", rules, "-m", tiny, "--json")
    assert ran.code == 0
    (again,) = json.loads(ran.out)
    assert (again["hit"], again["encoded"]) == (True, 0)
    anchors = json.loads(cli("kv", "ls", "--json").out)["anchors"]
    assert [(a["label"], a["pinned"]) for a in anchors] == [(f"warm:{rules}", True)]


def test_a_file_of_any_name_can_be_warmed(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    deep = Path(tmp_path, *(["d" * 200] * 3))
    deep.mkdir(parents=True)
    strange, long = tmp_path / os.fsdecode(b"bad\xff.txt"), deep / "é.txt"
    for path in (strange, long):
        path.write_text(RULES)
    ran = cli("warm", strange, long, "-m", tiny)
    assert (ran.code, ran.err) == (0, "")
    assert "bad\N{REPLACEMENT CHARACTER}.txt" in ran.out
    for argv in (["warm", strange, "-m", tiny, "--json"], ["kv", "ls", "--json"]):
        cli(*argv).out.encode()
    labels = [anchor["label"] for anchor in json.loads(cli("kv", "ls", "--json").out)["anchors"]]
    assert f"warm:{tmp_path}/bad\N{REPLACEMENT CHARACTER}.txt" in labels
    (cut,) = [label for label in labels if label.endswith("/é.txt")]
    assert (cut[:8], len(cut.encode())) == ("warm:ddd", 512)


def test_after_warm_a_chat_encodes_its_own_turn_alone(cli: Cli, tiny: Path, rules: Path) -> None:
    (warmed,) = json.loads(cli("warm", rules, "-m", tiny, "--json").out)
    argv = ["chat", "-m", tiny, "-s", f"@{rules}", "-p", "Go.", "--max-tokens", "4", "--jsonl"]
    used = usage_of(cli(*argv))
    assert used["reused_disk"] == warmed["encoded"]
    tail = warmed["tokens"] - warmed["encoded"]
    assert used["encoded"] < tail + 60


def test_a_budget_too_small_for_any_block_is_told_with_what_gives_another(
    cli: Cli, tiny: Path, rules: Path, tmp_path: Path
) -> None:
    kv = tmp_path / "a store"
    assert cli("kv", "gc", "--kv", kv, "--max-bytes", "1kB").code == 0
    ran = cli("warm", rules, "-m", tiny, "--kv", kv)
    assert (ran.code, ran.err.count("\n")) == (5, 1)
    (advice,) = re.findall("smaller than what one block takes; `cedagent (.*)` gives", ran.err)
    assert cli(*shlex.split(advice)).out.startswith("the store may take 5.0 GB; ")
    assert cli("warm", rules, "-m", tiny, "--kv", kv).code == 0


def test_several_files_and_the_default_prompt_can_be_warmed(
    cli: Cli, tiny: Path, rules: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.txt"
    other.write_text(RULES.upper())
    both = json.loads(cli("warm", rules, other, "-m", tiny, "--json").out)
    assert [w["file"] for w in both] == [str(rules), str(other)]
    (default,) = json.loads(cli("warm", "-m", tiny, "--json").out)
    assert default["tokens"] > 0
    used = usage_of(cli("chat", "-m", tiny, "-p", "Go.", "--max-tokens", "4", "--jsonl"))
    assert used["reused_disk"] == default["encoded"]


def test_why_names_the_first_differing_token_with_its_neighbours(
    cli: Cli, tiny: Path, rules: Path
) -> None:
    cli("warm", rules, "-m", tiny, "--no-builtin-tools")
    argv = ["kv", "why", rules, "-m", tiny, "--no-builtin-tools"]
    assert cli(*argv).out.startswith("hit: ")
    rules.write_text(RULES.replace("Rule 30: count to 30", "Rule 30: shout at 30"))
    ran = cli(*argv)
    assert ran.code == 0
    reason, first, stored, given = ran.out.splitlines()
    assert reason.startswith("diverged: ")
    position = int(first.split()[-1].rstrip(":").replace(",", ""))
    assert "[ c]" in stored
    assert "[ s]" in given
    assert stored.split("[")[0].strip().endswith("30:")
    found = json.loads(cli(*argv, "--json").out)
    assert found["position"] == position
    assert found["stored_id"] != found["given_id"]


def test_why_names_a_changed_tool_description(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    tools = tmp_path / "mine.py"
    text = (
        "from cedagent import tool\n\n@tool\ndef count(word: str) -> int:\n"
        f"    'Count letters, {RULES}'\n    return len(word)\n"
    )
    tools.write_text(text)
    argv = ["-m", str(tiny), "-t", str(tools), "--no-builtin-tools"]
    cli("warm", *argv)
    assert cli("kv", "why", "-", *argv).out.startswith("hit")
    tools.write_text(text.replace("Count letters", "Count vowels"))
    out = cli("kv", "why", "-", *argv).out
    assert "Count  [le] " in out
    assert "Count  [v] owels" in out


def test_why_names_the_changed_weights(
    cli: Cli, tmp_path: Path, rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny(tmp_path / "model", seed=1)
    cli("warm", rules, "-m", model)
    shutil.rmtree(model)
    write_tiny(model, seed=2)
    out = cli("kv", "why", rules, "-m", model).out
    assert out.startswith("fingerprint:weights.")
    assert "was '" in out


def test_why_of_a_session(cli: Cli, tiny: Path, rules: Path) -> None:
    cli("chat", "-m", tiny, "-s", f"@{rules}", "-p", "Go.", "--session", "s", *FAST)
    assert cli("kv", "why", "--session", "s", "-m", tiny).out.startswith("hit: ")
    assert cli("kv", "rm", "--all").code == 0
    assert not cli("kv", "why", "--session", "s", "-m", tiny).out.startswith("hit: ")


def test_verify_finds_a_flipped_bit_and_mends_it(
    cli: Cli, tiny: Path, rules: Path, home: Path
) -> None:
    cli("warm", rules, "-m", tiny)
    assert cli("kv", "verify").out.startswith("The store is good.\n")
    (segment,) = (home / "cache" / "kv" / "seg").iterdir()
    data = bytearray(segment.read_bytes())
    data[20_000] ^= 1
    segment.write_bytes(data)
    ran = cli("kv", "verify")
    assert ran.code == 5
    assert ran.out.startswith("corrupt (found): ")
    assert cli("kv", "verify", "--fix").code == 0
    assert cli("kv", "verify").out.startswith("The store is good.\n")


def test_rm_of_a_label_leaves_what_others_need(cli: Cli, tiny: Path, rules: Path) -> None:
    argv = ["chat", "-m", tiny, "-s", f"@{rules}", "-p", "Go.", *FAST]
    cli("warm", rules, "-m", tiny, "--no-builtin-tools")
    cli(*argv, "--session", "s")
    ran = cli("kv", "rm", "--session", "s")
    assert (ran.code, ran.out.split(",")[0]) == (0, "removed session:s")
    anchors = json.loads(cli("kv", "ls", "--json").out)["anchors"]
    assert [a["label"] for a in anchors] == [f"warm:{rules}"]
    assert cli("kv", "why", rules, "-m", tiny, "--no-builtin-tools").out.startswith("hit")
    assert cli("kv", "rm", f"warm:{rules}", "--purge").code == 0
    assert json.loads(cli("kv", "ls", "--json").out)["stats"]["blocks"] == 0


def test_sessions_show_says_what_was_said(cli: Cli, scripted: Callable[..., Any]) -> None:
    from cedagent.testing import call

    scripted(call("calculator", expression="2^10"), "1024, naïvely.")
    cli("chat", "-p", "What is 2^10?", "--session", "s")
    shown = cli("sessions", "show", "s").out
    assert "> What is 2^10?" in shown
    assert "  calculator = 1024" in shown
    entries = json.loads(cli("sessions", "show", "s", "--json").out)
    assert entries[0]["kind"] == "head"


def test_sessions_show_reads_outputs_with_the_models_tokenizer(
    cli: Cli, scripted: Callable[..., Any], tiny: Path
) -> None:
    scripted("Plain words.")
    cli("chat", "-p", "x", "--session", "s")
    assert "tokens; name the session's model" in cli("sessions", "show", "s").out
    assert "Plain words." in cli("sessions", "show", "s", "-m", tiny).out


def test_damaged_log_is_listed_and_does_not_hide_the_others(
    cli: Cli, scripted: Callable[..., Any], home: Path
) -> None:
    scripted("one", "two")
    cli("chat", "-p", "x", "--session", "good")
    (home / "sessions" / "bad.jsonl").write_text("not a log\nat all\n")
    out = cli("sessions", "ls").out
    assert "good" in out
    assert "bad" in out
    assert "damaged" in out
