"""Runs that are stopped, killed, ended early or begun twice: nothing is lost, nothing doubled."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from training import made
from training_runs import ALWAYS, NEVER, RECIPE, SHORT, StopAfter, heal, log_of, same

from cedagent.upcycle.training import whole_file
from cedagent.upcycle.training.checkpoint import CHECKPOINT, LOG, RESULT, Log


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return made(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def healed(model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("healed")
    heal(model_dir, folder)
    return folder


@pytest.fixture(scope="module")
def short(model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("short")
    heal(model_dir, folder, SHORT)
    return folder


@pytest.mark.parametrize("steps", [0, 2])
def test_a_stopped_run_goes_on_with_the_same_bits(model_dir, healed, tmp_path, steps):
    stop = StopAfter(steps)
    assert heal(model_dir, tmp_path, report=stop.report, should_stop=stop, cadence=NEVER) is None
    assert log_of(tmp_path)[-1]["event"] == "stop"
    assert not (tmp_path / RESULT).exists()
    result = heal(model_dir, tmp_path)
    assert (result.steps, result.tokens) == (4, 4 * 144)
    assert same(healed / RESULT, tmp_path / RESULT)
    events = ["start", "held_out", *["step"] * steps, "stop", "resume", *["step"] * (4 - steps)]
    assert [entry["event"] for entry in log_of(tmp_path)] == [*events, "held_out", "end"]
    a, b = log_of(healed, "step"), log_of(tmp_path, "step")
    assert [step["step"] for step in b] == [1, 2, 3, 4]
    assert [step["loss"] for step in a] == [step["loss"] for step in b]


def test_a_run_can_be_stopped_while_it_finds_its_place_in_the_texts(model_dir, healed, tmp_path):
    stop = StopAfter(2)
    heal(model_dir, tmp_path, report=stop.report, should_stop=stop)
    assert heal(model_dir, tmp_path, should_stop=lambda: True) is None
    events = [entry["event"] for entry in log_of(tmp_path)]
    assert events == ["start", "held_out", "step", "step", "stop", "resume", "stop"]
    heal(model_dir, tmp_path)
    assert same(healed / RESULT, tmp_path / RESULT)


def test_texts_within_the_window_change_no_bit_of_a_run_that_goes_on(model_dir, tmp_path):
    """Global tensors are of no use to some steps; their moments fade all the same."""
    recipe, parts = replace(RECIPE, batch_tokens=24, pass_tokens=24), tmp_path / "parts"
    more = {"lengths": (4, 24)}
    heal(model_dir, tmp_path / "whole", recipe, **more)
    for steps in (1, 3):
        stop = StopAfter(steps)
        heal(model_dir, parts, recipe, report=stop.report, should_stop=stop, **more)
    heal(model_dir, parts, recipe, **more)
    assert same(tmp_path / "whole" / CHECKPOINT, parts / CHECKPOINT)


class Killed(BaseException):
    """As if the process were no more."""


class Mortal:
    """Lets the n-th write of a process be its last, and stop in its middle."""

    def __init__(self, monkeypatch, n):
        self.left, self.patch = n, monkeypatch
        self.watch(whole_file, "save_tensors", lambda tensors, path: path.write_bytes(b"x" * 99))
        self.watch(os, "replace", lambda source, target: None)
        self.watch(Log, "write", lambda log, *_: log._path.write_text(log._path.read_text() + "{"))

    def watch(self, module, name, half):
        real = getattr(module, name)

        def call(*args, **more):
            self.left -= 1
            if self.left == 0:
                half(*args)
                raise Killed
            return real(*args, **more)

        self.patch.setattr(module, name, call)


WRITES = 15
"""Of a run of two steps: of the log, of the checkpoint and of the result."""


@pytest.mark.parametrize(
    "n",
    [pytest.param(n, marks=() if n in (8, 11) else pytest.mark.slow) for n in range(1, WRITES + 1)],
)
def test_whatever_write_was_the_last_a_run_goes_on_with_the_same_bits(
    model_dir, short, tmp_path, n
):
    with pytest.MonkeyPatch.context() as patch:
        Mortal(patch, n)
        with pytest.raises(Killed):
            heal(model_dir, tmp_path, SHORT)
    heal(model_dir, tmp_path, SHORT)
    assert same(short / CHECKPOINT, tmp_path / CHECKPOINT)
    assert same(short / RESULT, tmp_path / RESULT)
    assert [step["step"] for step in log_of(tmp_path, "step")] == [1, 2]
    assert [entry["event"] for entry in log_of(tmp_path)].count("start") == 1
    assert {path.name for path in tmp_path.iterdir()} == {".lock", CHECKPOINT, LOG, RESULT}


def test_there_are_no_more_writes_than_these(model_dir, tmp_path, monkeypatch):
    mortal = Mortal(monkeypatch, WRITES + 1)
    heal(model_dir, tmp_path, SHORT)
    assert mortal.left == 1


KILLED = """
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from training_runs import heal
heal(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.stress
@pytest.mark.parametrize("line", [1, 2, 3])
def test_a_killed_run_goes_on_with_the_same_bits(model_dir, healed, tmp_path, line):
    path = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, model_dir, tmp_path], env=os.environ | {"PYTHONPATH": path}
    )
    log = tmp_path / LOG
    stop = time.monotonic() + 120
    while not log.exists() or log.read_text().count('"event": "step"') < line:
        assert process.poll() is None
        assert time.monotonic() < stop
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    heal(model_dir, tmp_path)
    assert same(healed / RESULT, tmp_path / RESULT)
    # Killed between a step's line and its checkpoint: that step is run again.
    assert [entry["step"] for entry in log_of(tmp_path, "resume")][:1] >= [line - 1][: line > 1]


def test_the_log_of_a_run_that_goes_on_has_each_step_once(tmp_path):
    path = tmp_path / LOG
    log = Log(path, steps=None)
    assert log.last_event is None
    for step in (1, 2, 3):
        log.write("step", step, loss=0.5)
    log.write("end", 3)
    with path.open("a") as file:
        file.write('{"event": "step", "st')
    assert Log(path, steps=3).last_event == "end"
    log = Log(path, steps=2)
    assert log.last_event == "step"
    log.write("step", 3, loss=0.25)
    assert [(entry["step"], entry["loss"]) for entry in log_of(tmp_path)] == [
        (1, 0.5), (2, 0.5), (3, 0.25),
    ]  # fmt: skip
    # Without a checkpoint there is nothing that it could be the log of.
    Log(path, steps=None)
    assert path.read_text() == ""


def test_a_stopped_run_ends_where_it_stands_when_its_minutes_are_over(model_dir, tmp_path):
    stop = StopAfter(3)
    heal(model_dir, tmp_path, report=stop.report, should_stop=stop)
    before = load_file(tmp_path / CHECKPOINT)
    result = heal(model_dir, tmp_path, minutes=1e-5)
    assert (result.steps, result.tokens) == (3, 3 * 144)
    assert [entry["event"] for entry in log_of(tmp_path)][-3:] == ["resume", "held_out", "end"]
    after = load_file(tmp_path / CHECKPOINT)
    assert all(torch.equal(before[name], after[name]) for name in before)
    written = load_file(result.path)
    name = "model.layers.3.mlp.up_proj.weight.a"
    assert torch.equal(written[name], before[f"value/{name}"].bfloat16())
    # And goes on when it is given its steps again.
    assert heal(model_dir, tmp_path).steps == 4


def test_minutes_end_a_run_and_more_minutes_go_on_with_it(model_dir, tmp_path):
    recipe = replace(RECIPE, steps=None, batch_tokens=96)
    first = heal(model_dir, tmp_path, recipe, minutes=0.001)
    assert first.steps >= 1
    assert first.seconds >= 0.06
    assert log_of(tmp_path, "step")[-1]["rate"] < 1
    second = heal(model_dir, tmp_path, recipe, minutes=first.seconds / 60 + 0.001)
    assert second.steps > first.steps
    assert second.seconds >= first.seconds + 0.05


def test_a_run_takes_a_step_however_few_its_minutes(model_dir, tmp_path):
    recipe = replace(RECIPE, steps=None, batch_tokens=96)
    assert heal(model_dir, tmp_path, recipe, minutes=1e-6).steps == 1


def test_a_finished_run_is_not_trained_further(model_dir, healed):
    files = [healed / name for name in (LOG, CHECKPOINT, RESULT)]
    before = [path.read_bytes() for path in files]
    (healed / RESULT).unlink()
    assert heal(model_dir, healed).steps == 4
    assert [path.read_bytes() for path in files] == before


def test_progress_tells_step_share_and_time_left(model_dir, tmp_path):
    seen = []
    heal(model_dir, tmp_path, SHORT, report=seen.append)
    assert [status.step for status in seen] == [0, 1, 2]
    assert [status.used for status in seen] == [0, 0.5, 1]
    assert [status.seconds_left is None for status in seen] == [True, False, False]
    assert seen[1].seconds_left == pytest.approx(seen[1].seconds)
    assert seen[2].seconds_left == 0
    assert seen[1].tokens_per_second == pytest.approx(96 / seen[1].seconds, rel=0.2)


def test_figures_on_held_out_text_come_as_often_as_the_cadence_says(model_dir, tmp_path):
    heal(model_dir, tmp_path, SHORT, cadence=replace(ALWAYS, held_out_s=0))
    assert [entry["step"] for entry in log_of(tmp_path, "held_out")] == [0, 1, 2, 2]
