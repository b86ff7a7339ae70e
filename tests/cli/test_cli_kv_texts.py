"""`kv show` and `why` where text is needed: the block's own, and the one that a chat would send."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Anchor, Explanation, Store, Stream
from cedagent.chat.tokenizer import Tokenizer
from cedagent.cli import loading
from cedagent.testing import ScriptedModel

Cli = Callable[..., Any]
RULES = " ".join(f"Rule {n}: count to {n}." for n in range(60))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.txt"
    path.write_text(RULES)
    return path


def test_show_has_the_text_where_its_tokenizer_is_known(
    cli: Cli, tiny: Path, tmp_path: Path, home: Path
) -> None:
    tokenizer = Tokenizer.load(tiny)
    spiteful = "naïve\n\x1b[2Jcleared\x9b\u200b "
    ids = [tokenizer.control_id("<|im_start|>"), *tokenizer.encode(spiteful + RULES)][:256]
    fields = {"tokenizer": tokenizer.digest}
    streams = [Stream("k", 700)]
    with Store.open(home / "cache" / "kv", fingerprint=fields, streams=streams) as store:
        anchors = [Anchor(key, f"at {n}") for n, key in enumerate(store.hashes(ids))]
        store.commit(ids, first_block=0, rows={"k": bytes(1400)}, anchors=anchors)
    ran = cli("kv", "show", "at 0", "-m", tiny)
    assert ran.code == 0
    text = ran.out.partition("\nids ")[2].partition("\n")[2].removesuffix("\n")
    # A control token by its name, and no character that would move the cursor.
    assert text.startswith("<|im_start|>naïve\n[2Jcleared\u200b Rule 0: count")
    assert json.loads(cli("kv", "show", "at 0", "-m", tiny, "--json").out)["text"] == text
    after = json.loads(cli("kv", "show", "at 1", "-m", tiny, "--json").out)["text"]
    assert after in RULES
    assert "name its model with -m" in cli("kv", "show", "at 0").out
    assert cli("kv", "show", "at 0", "-m", "nobody").code == 2
    other = shutil.copytree(tiny, tmp_path / "other")
    (other / "tokenizer.json").write_text((tiny / "tokenizer.json").read_text() + "\n")
    assert "it was written with another tokenizer" in cli("kv", "show", "at 0", "-m", other).out


def test_why_explains_the_text_that_reasons(
    cli: Cli, rules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--thinking` and `--effort` are a part of the system turn: the ids are those of the chat."""
    asked: list[list[int]] = []

    class Recording:
        notice = None

        def explain(self, ids: list[int]) -> Explanation:
            asked.append(ids)
            return Explanation("hit", len(ids) // 128 * 128, len(ids) // 128)

    model = ScriptedModel(["So.</think>Four."], chat_format="dsml", thinking=True)
    monkeypatch.setattr(model, "close", lambda: None)
    monkeypatch.setattr(loading, "ensure_model", lambda *_, **__: model.model_dir)
    monkeypatch.setattr(loading, "open_engine", lambda *_, **__: model)
    monkeypatch.setattr(model, "notices", [], raising=False)
    monkeypatch.setattr(model, "store", None, raising=False)
    how = ["--thinking", "--effort", "7"]
    assert cli("chat", "-s", f"@{rules}", "-p", "2+2?", "--session", "s", *how).code == 0
    monkeypatch.setattr(model, "store", Recording())
    for argv in (["--session", "s"], [rules, *how], [rules], [rules, "--thinking"]):
        assert cli("kv", "why", *argv).code == 0
    session, same, plain, other = asked
    assert session[: len(same)] == same
    assert same not in (plain, other)
    ran = cli("kv", "why", "--session", "s", "--thinking")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "--thinking with a FILE" in ran.err
    assert cli("kv", "why", rules, "--effort", "7").code == 2
