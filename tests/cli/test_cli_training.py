"""`model heal`, `teach`, `answers` and `apply`, as the command line runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cedagent.cli import training
from cedagent.model.tiny import write_tiny

Cli = Callable[..., Any]
SMALL = ["--batch-tokens", "300", "--pass-tokens", "300", "--rank", "2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "m", n_layers=2, n_encoder_layers=1)


def steps_of(folder: Path) -> list[int]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line["event"] == "step"]


@pytest.mark.slow
def test_heal_teach_and_apply_make_a_model_that_answers(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    healed, taught = tmp_path / "healed", tmp_path / "taught"
    ran = cli("model", "heal", model, "--out", healed, "--steps", "2", *SMALL)
    assert ran.code == 0, ran.err
    assert re.fullmatch(r"\S+/trained.safetensors: 0\.\d MB after 2 steps, [\d,]+ tokens, "
                        r"0.00 hours\n", ran.out)  # fmt: skip
    assert "heal: 100%, step 2, loss" in ran.err
    start = healed / "trained.safetensors"
    # Room for transcripts.
    argv = [*SMALL, "--batch-tokens", "1500", "--pass-tokens", "1500"]
    ran = cli("model", "teach", model, "--from", start, "--out", taught, "--steps", "1", *argv)
    assert ran.code == 0, ran.err
    dst = tmp_path / "ced"
    ran = cli("model", "apply", model, taught / "trained.safetensors", dst)
    assert (ran.code, ran.out) == (0, f"{dst}\n")
    argv = ["-m", dst, "--max-tokens", "3", "--no-kv", "--no-builtin-tools"]
    assert cli("run", "x", *argv).code in (0, 3)


@pytest.mark.slow
def test_the_same_command_goes_on_and_another_recipe_is_refused(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    argv = ["model", "heal", model, "--out", tmp_path / "out", "--steps", "1", *SMALL]
    assert cli(*argv).code == 0
    again = cli(*argv)
    assert again.code == 0
    assert steps_of(tmp_path / "out") == [1]
    assert re.fullmatch(r"\S+/trained.safetensors: 0\.\d MB after 1 steps, [\d,]+ tokens, "
                        r"0.00 hours\n", again.out)  # fmt: skip
    other = cli(*argv, "--seed", "5")
    assert (other.code, other.err.count("\n")) == (2, 1)
    assert "holds a run of another recipe (seed was 0, now 5)" in other.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--steps", "0"], "0 is not in the range"),
        ([], "expected --steps or --minutes, got neither"),
        (["--steps", "1", "--rank", "0"], "0 is not in the range"),
        (["--steps", "1", "--lr", "nan"], "nan"),
        (["--minutes", "0"], "0"),
        (["--minutes", "nan"], "minutes: expected a number above 0, got nan"),
        (["--steps", "1", "--from", "nowhere"], "nowhere: no such file"),
        (["--steps", "1", "--from", "."], ".: no such file"),
    ],
)
def test_bad_settings_are_one_line(
    cli: Cli, model: Path, tmp_path: Path, argv: list[str], message: str
) -> None:
    ran = cli("model", "heal", model, "--out", tmp_path / "out", *argv)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_answers_come_from_the_parent_itself(cli: Cli, model: Path, tmp_path: Path) -> None:
    parent = write_tiny(tmp_path / "parent", n_layers=1, n_encoder_layers=1)
    file = tmp_path / "answers.jsonl"
    ran = cli("model", "answers", parent, "--out", file, "-n", "1")
    assert (ran.code, ran.out) == (0, f"{file}: 1 of 1 prompts answered\n")
    assert len(file.read_text().splitlines()) == 1
    ran = cli("model", "answers", parent, "--out", file, "--seed", "5")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "holds answers of other settings (seed was 0, now 5)" in ran.err
    ran = cli("model", "answers", model, "--out", file)
    assert ran.code == 2
    assert "or windowed ones: expected the parent itself, converted with --encoder-layers 2" in (
        ran.err
    )
    windowed = write_tiny(
        tmp_path / "windowed", n_layers=1, n_encoder_layers=1, encoder_global_layers=()
    )
    assert cli("model", "answers", windowed, "--out", file).code == 2
    ran = cli("model", "teach", model, "--out", tmp_path / "x", "--steps", "1", "--answers", "no")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "cannot read no" in ran.err


def test_a_model_of_the_other_family_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert cli("model", "tiny", tmp_path / "v41", "--family", "deepseek_v41").code == 0
    ran = cli("model", "heal", tmp_path / "v41", "--out", tmp_path / "out", "--steps", "1")
    assert ran.code == 2
    assert "expected model_type ced_llama, got 'deepseek_v41'" in ran.err
    assert not (tmp_path / "out").exists()
    ran = cli("model", "answers", tmp_path / "v41", "--out", tmp_path / "out")
    assert ran.code == 2
    assert "expected model_type ced_llama, got 'deepseek_v41'" in ran.err


def test_healing_does_without_a_chat_format_and_teaching_does_not(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(model, bare)
    spec = json.loads((bare / "tokenizer.json").read_text())
    spec["added_tokens"] = spec["added_tokens"][:1]
    (bare / "tokenizer.json").write_text(json.dumps(spec))
    argv = ["--steps", "1", "--out", tmp_path / "out", *SMALL]
    assert cli("model", "heal", bare, *argv).code == 0
    ran = cli("model", "teach", bare, "--steps", "1", "--out", tmp_path / "taught", *SMALL)
    assert ran.code == 5
    assert "expected the control token <|im_start|>" in ran.err


def test_a_run_that_is_told_to_stop_says_how_it_goes_on_and_how_it_ends(
    cli: Cli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def at_once(stop: Callable[[], None]) -> Iterator[None]:
        stop()
        yield

    argv = ["model", "heal", model, "--out", tmp_path / "out", "--steps", "2", *SMALL]
    with monkeypatch.context() as patch:
        patch.setattr(training, "stop_on_interrupt", at_once)
        ran = cli(*argv)
    assert (ran.code, ran.out) == (0, "")
    assert f"stopped; the same command goes on from {tmp_path / 'out'}" in ran.err
    ended = cli(*argv, "--minutes", "0.0001")
    assert "after 1 steps" in ended.out
    assert steps_of(tmp_path / "out") == [1]


@pytest.mark.stress
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_a_checkpoint(
    model: Path, home: Path, tmp_path: Path, signum: int
) -> None:
    argv = [sys.executable, "-m", "cedagent", "model", "heal", model, "--out", tmp_path / "out",
            "--steps", "100000", *SMALL]  # fmt: skip
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        argv, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    log, stop = tmp_path / "out" / "log.jsonl", time.monotonic() + 60
    while not log.exists() or '"step", "step": 2' not in log.read_text():
        assert process.poll() is None
        assert time.monotonic() < stop
        time.sleep(0.05)
    process.send_signal(signum)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (0 if signum == signal.SIGINT else 143)
    assert "stopping after this pass, with a checkpoint; again ends at once" in err
    assert (tmp_path / "out" / "checkpoint.safetensors").is_file()
    last = [json.loads(line) for line in log.read_text().splitlines()][-1]
    assert last["event"] == "stop"
    if signum == signal.SIGINT:
        assert "the same command goes on from" in err
