"""How far a command is: what is said of a step, on a terminal and without one."""

from __future__ import annotations

import re

import pytest

from cedagent.cli.progress import _Lines, duration, progress_bars


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [100.0]
    monkeypatch.setattr("cedagent.cli.progress.time.monotonic", lambda: seconds[0])
    return seconds


def test_lines_of_progress_say_how_long_it_takes(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    lines = _Lines()
    for done in range(5):
        lines.advance("cases", done, 40)
        now[0] += 6
    assert capsys.readouterr().err.splitlines() == [
        "cedagent: cases",
        "cedagent: cases: 2 of 40, about 4 min left",
        "cedagent: cases: 4 of 40, about 4 min left",
    ]
    assert [duration(s) for s in (0.2, 89, 95, 3599, 4800)] == [
        "1 s", "89 s", "2 min", "1 h 0 min", "1 h 20 min",
    ]  # fmt: skip


def test_what_was_done_before_does_not_shorten_the_time_left(
    capsys: pytest.CaptureFixture[str], now: list[float]
) -> None:
    lines = _Lines()
    for done in (300, 301, 302):
        lines.advance("answer", done, 400)
        now[0] += 6
    assert capsys.readouterr().err.splitlines() == [
        "cedagent: answer",
        "cedagent: answer: 302 of 400, about 10 min left",
    ]


def test_each_step_is_a_line_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as progress:
        for what in ("read", "calibrate", "write", "calibrate"):
            for done in range(3):
                progress(what, done, 2)
    steps = ["read", "calibrate", "write", "calibrate"]
    assert capsys.readouterr().err.splitlines() == [f"cedagent: {what}" for what in steps]


def test_a_bar_counts_pieces_and_says_the_share_of_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bars() as progress:
        progress("download", 46_435_520, 92_871_040)
        progress("cases", 7, 40)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert re.search(r"download +\S+ +50%", shown)
    assert re.search(r"cases +\S+ +7/40", shown)
