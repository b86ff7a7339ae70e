"""How the `kv` commands meet a terminal: its colours, its width, its characters."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ced_kvstore import Anchor, Store, Stream
from cedagent.cli import kv_screen

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def filled(home: Path) -> None:
    """A warmed prompt, and a branch of nobody's."""
    folder, ids = home / "cache" / "kv", list(range(256))
    with Store.open(folder, fingerprint={}, streams=[Stream("k", 700)]) as store:
        anchor = Anchor(store.hashes(ids)[1], "warm:rules \N{SNOWMAN}", pinned=True)
        store.commit(ids, first_block=0, rows={"k": bytes(1400)}, anchors=[anchor])
        store.commit(ids[128:], first_block=0, rows={"k": bytes(700)})


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_the_characters_gets_others(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cedagent.cli.main import run

    monkeypatch.chdir(tmp_path)
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with redirect_stdout(out):
        assert run(["kv", "tree"]) == 0
        assert not kv_screen.can_draw()
    out.seek(0)
    assert re.search(r"^[|`]- 0-256  warm:rules \?", out.read(), re.M)
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with redirect_stdout(out):
        assert run(["kv", "export", "\udcff.tar"]) == 0
        assert run(["kv", "rm", "warm:rules \N{SNOWMAN}"]) == 0
    out.seek(0)
    assert re.search(r" to \?\.tar\nremoved warm:rules \?, 1 anchor", out.read())


@pytest.mark.parametrize("width", [24, 31, 40, 45])
def test_what_belongs_together_is_not_broken_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    header = ["label", "kind", "tokens", "", "made", "block"]
    row = ["session:a", "prefill", "256", "pinned", "28 s", "0123456789ab"]
    kv_screen.show_table(header, [row, row], numbers=["tokens"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    pieces = "kind prefill", "tokens 256", "pinned", "made 28 s", "block 0123456789ab"
    assert [text.count(piece) for piece in pieces] == [2] * 5
    assert " ".join(text.split()) == " ".join([f"session:a {', '.join(pieces)}"] * 2)


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_has_colours_unless_it_is_told_not_to(home: Path, no_color: str) -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (30, 60))
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "kvstore", "kernels"))
    env = {"PYTHONPATH": paths, "TERM": "xterm-256color", "NO_COLOR": no_color}
    argv = [sys.executable, "-m", "cedagent", "kv", "tree"]
    process = subprocess.Popen(argv, stdout=slave, env=os.environ | env)
    os.close(slave)
    raw = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        raw += piece
    os.close(master)
    assert process.wait(30) == 0
    assert (b"\x1b[" in raw) == (not no_color)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", raw.decode())
    assert max(map(len, plain.splitlines())) <= 60


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
def test_what_takes_its_time_says_so_on_a_terminal_and_leaves_no_trace(
    screen: Callable[..., Any], home: Path
) -> None:
    with screen("kv", "verify", home=home) as shown:
        assert shown.wait_for_end() == 0
        assert "checking 5 records, " in shown.text
        assert shown.text.rstrip().splitlines()[-2].endswith("The store is good.")
