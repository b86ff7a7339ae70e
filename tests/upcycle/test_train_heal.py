"""Healing: the loss falls, a stopped or killed run goes on with the same bits, all else stays."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from training import LENGTHS, Texts, made

from cedagent.errors import CedError, EngineError, UsageError, WeightsError
from cedagent.upcycle.training.checkpoint import CHECKPOINT, LOG, Log, locked
from cedagent.upcycle.training.recipe import Budget, Recipe, rate_at
from cedagent.upcycle.training.run import run
from cedagent.upcycle.training.trained_file import read_trained
from cedagent.upcycle.training.trainer import Cadence

RECIPE = Recipe(
    "heal", steps=6, rank=3, lr=1e-2, lr_global=1e-2, batch_tokens=192, pass_tokens=96,
    precision="float32", seed=1,
)  # fmt: skip
ALWAYS = Cadence(checkpoint_s=0, held_out_s=1e9)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return made(tmp_path_factory.mktemp("made"))


def heal(model_dir, folder, recipe=RECIPE, **more):
    more = {"minutes": None, "texts": Texts(), "lengths": LENGTHS, "cadence": ALWAYS} | more
    return run(model_dir, folder, recipe=recipe, **more)


def log_of(folder, event):
    lines = (folder / LOG).read_text().splitlines()
    return [entry for line in lines if (entry := json.loads(line))["event"] == event]


class StopAfter:
    """Says stop once so many steps were done."""

    def __init__(self, steps):
        self.steps, self.seen = steps, 0

    def report(self, status):
        self.seen = status.step

    def __call__(self):
        return self.seen >= self.steps


@pytest.fixture(scope="module")
def healed(model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("healed")
    heal(model_dir, folder)
    return folder


def test_the_divergence_from_the_parent_falls_on_text_that_was_not_trained_on(model_dir, tmp_path):
    heal(model_dir, tmp_path, replace(RECIPE, steps=20))
    before, after = log_of(tmp_path, "held_out")
    assert after["kl"] < 0.8 * before["kl"]
    assert after["kl_after_prefill"] < 0.8 * before["kl_after_prefill"]
    losses = [step["loss"] for step in log_of(tmp_path, "step")]
    assert len(losses) == 20
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.slow
def test_bfloat16_products_heal_as_well(model_dir, tmp_path):
    heal(model_dir, tmp_path, replace(RECIPE, steps=30, precision="bfloat16"))
    before, after = log_of(tmp_path, "held_out")
    assert after["kl"] < 0.7 * before["kl"]


@pytest.mark.slow
def test_a_rounded_step_says_so_and_trains(model_dir, tmp_path):
    heal(model_dir, tmp_path, replace(RECIPE, steps=30, fake_int8=0.5))
    steps = log_of(tmp_path, "step")
    assert 5 < sum(step["int8"] for step in steps) < 25
    before, after = log_of(tmp_path, "held_out")
    assert after["kl"] < 0.7 * before["kl"]


@pytest.mark.parametrize("steps", [1, 4])
def test_a_stopped_run_goes_on_with_the_same_bits(model_dir, healed, tmp_path, steps):
    stop, never = StopAfter(steps), Cadence(checkpoint_s=1e9, held_out_s=1e9)
    stopped = heal(model_dir, tmp_path, report=stop.report, should_stop=stop, cadence=never)
    assert stopped is None
    assert log_of(tmp_path, "stop")[0]["step"] == steps
    result = heal(model_dir, tmp_path)
    assert (result.steps, result.tokens) == (6, 6 * 192)
    assert [entry["step"] for entry in log_of(tmp_path, "resume")] == [steps]
    assert same(healed / "trained.safetensors", tmp_path / "trained.safetensors")
    assert [step["step"] for step in log_of(tmp_path, "step")] == [1, 2, 3, 4, 5, 6]
    a, b = log_of(healed, "step"), log_of(tmp_path, "step")
    assert [step["loss"] for step in a] == [step["loss"] for step in b]


def test_the_log_of_a_run_that_goes_on_has_each_step_once(tmp_path):
    path = tmp_path / LOG
    log = Log(path, steps=0)
    for step in (1, 2, 3):
        log.write("step", step, loss=0.5)
    with path.open("a") as file:
        file.write('{"event": "step", "st')
    Log(path, steps=2).write("step", 3, loss=0.25)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"event": "step", "step": 1, "loss": 0.5},
        {"event": "step", "step": 2, "loss": 0.5},
        {"event": "step", "step": 3, "loss": 0.25},
    ]


def same(a, b):
    mine, theirs = load_file(a), load_file(b)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)


KILLED = """
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from test_train_heal import heal
heal(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.stress
@pytest.mark.parametrize("line", [1, 3, 5])
def test_a_killed_run_goes_on_with_the_same_bits(model_dir, healed, tmp_path, line):
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
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
    assert same(healed / "trained.safetensors", tmp_path / "trained.safetensors")
    # Killed between a step's line and its checkpoint: that step is run again.
    assert [entry["step"] for entry in log_of(tmp_path, "resume")][:1] >= [line - 1][: line > 1]


def test_only_global_tensors_and_decoder_adapters_are_in_the_file(model_dir, healed):
    trained = read_trained(healed / "trained.safetensors")
    layers = {name.split(".")[2] for name in (*trained.full, *trained.pairs)}
    assert layers == {"2", "3"}
    assert len(trained.full) == 2 * 3
    assert len(trained.pairs) == 2 * 7
    start = load_file(model_dir / "model.safetensors")
    for name, tensor in trained.full.items():
        assert not torch.equal(tensor, start[name])
    assert all(a.shape[0] == 3 for a, _ in trained.pairs.values())
    stages = trained.metadata["stages"]
    assert [(stage["stage"], stage["seed"], stage["tokens"]) for stage in stages] == [
        ("heal", 1, 6 * 192)
    ]


def test_the_model_directory_is_not_written(model_dir, tmp_path):
    before = {path.name: path.read_bytes() for path in model_dir.iterdir()}
    heal(model_dir, tmp_path, replace(RECIPE, steps=1))
    assert {path.name: path.read_bytes() for path in model_dir.iterdir()} == before


@pytest.mark.slow
def test_windowed_encoder_layers_are_healed_where_the_recipe_says_so(tmp_path):
    model_dir = made(tmp_path, n_encoder_layers=3, encoder_global_layers=(2,))
    for is_adapted, expected in ((False, {"3"}), (True, {"0", "1", "3"})):
        folder = tmp_path / str(is_adapted)
        recipe = replace(RECIPE, steps=25, lr_global=3e-2, encoder_adapters=is_adapted)
        heal(model_dir, folder, recipe)
        trained = read_trained(folder / "trained.safetensors")
        assert {name.split(".")[2] for name in trained.pairs} == expected
        assert all(b.abs().max() > 0 for _, b in trained.pairs.values())
        before, after = log_of(folder, "held_out")
        assert after["kl"] < 0.95 * before["kl"]


def test_minutes_end_a_run_and_more_minutes_go_on_with_it(model_dir, tmp_path):
    recipe = replace(RECIPE, steps=None)
    began = time.monotonic()
    first = heal(model_dir, tmp_path, recipe, minutes=0.005)
    assert time.monotonic() - began < 10
    assert first.steps >= 1
    assert log_of(tmp_path, "step")[-1]["rate"] < 0.5
    second = heal(model_dir, tmp_path, recipe, minutes=0.01)
    assert second.steps > first.steps
    assert second.seconds >= 0.6


def test_a_finished_run_is_not_trained_further(model_dir, healed, tmp_path):
    before = (healed / LOG).read_text()
    result = heal(model_dir, healed)
    assert result.steps == 6
    assert (healed / LOG).read_text() == before


def test_progress_tells_step_share_and_time_left(model_dir, tmp_path):
    seen = []
    heal(model_dir, tmp_path, report=seen.append)
    assert [status.step for status in seen] == list(range(7))
    assert [round(status.used, 4) for status in seen] == [round(i / 6, 4) for i in range(7)]
    assert seen[0].seconds_left is None
    assert seen[3].seconds_left > 0
    assert seen[6].seconds_left == 0
    assert seen[3].tokens_per_second > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 4}, "rank was 3, now 4"),
        ({"seed": 2}, "seed was 1, now 2"),
        ({"lr": 1e-3}, "lr was 0.01, now 0.001"),
        ({"stage": "teach"}, "stage was heal, now teach"),
    ],
)
def test_a_folder_of_another_recipe_is_refused(model_dir, healed, change, message):
    before = (healed / CHECKPOINT).read_bytes()
    with pytest.raises(UsageError, match=f"holds a run of another recipe .{message}"):
        heal(model_dir, healed, replace(RECIPE, **change))
    assert (healed / CHECKPOINT).read_bytes() == before


def test_a_damaged_checkpoint_is_refused(model_dir, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(b"x" * 100)
    with pytest.raises(UsageError, match=f"{CHECKPOINT} is damaged"):
        heal(model_dir, tmp_path)


def test_two_processes_do_not_train_in_one_folder(model_dir, tmp_path):
    with locked(tmp_path), pytest.raises(UsageError, match="another process trains in"):
        heal(model_dir, tmp_path)


def test_a_folder_that_cannot_be_made_is_one_line(model_dir, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CedError, match="cannot train in"):
        heal(model_dir, tmp_path / "file" / "x")


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_last_checkpoint(model_dir, tmp_path):
    recipe = replace(RECIPE, lr=1e30, lr_global=1e30)
    with pytest.raises(EngineError, match=r"no numbers to go on with; .* lower --lr"):
        heal(model_dir, tmp_path, recipe)
    values = load_file(tmp_path / CHECKPOINT)
    assert all(torch.isfinite(tensor).all() for tensor in values.values())


def test_a_model_that_was_trained_is_no_start(model_dir, tmp_path):
    trained = tmp_path / "model"
    trained.mkdir()
    for path in model_dir.iterdir():
        (trained / path.name).write_bytes(path.read_bytes())
    (trained / "origin.json").write_text('{"trained": {"sha256": "x"}}')
    with pytest.raises(UsageError, match="carries trained weights already"):
        heal(trained, tmp_path / "out")


def test_a_model_with_nothing_to_heal_is_refused(tmp_path):
    baseline = made(tmp_path, n_layers=2, n_encoder_layers=2)
    with pytest.raises(UsageError, match="nothing to heal"):
        heal(baseline, tmp_path / "out")


def test_rounding_needs_int8_weights(tmp_path):
    model_dir = made(tmp_path, n_layers=2, n_encoder_layers=1, int8=False)
    with pytest.raises(UsageError, match="has no int8 weights"):
        heal(model_dir, tmp_path / "out", replace(RECIPE, fake_int8=0.5))


def test_a_stage_goes_on_from_a_trained_file(model_dir, healed, tmp_path):
    recipe = replace(RECIPE, steps=1, lr=1e-9, lr_global=1e-9, rank=5)
    heal(model_dir, tmp_path, recipe, start=healed / "trained.safetensors")
    before, after = (read_trained(f / "trained.safetensors") for f in (healed, tmp_path))
    assert all(torch.equal(before.full[name], after.full[name]) for name in before.full)
    for name, (a, b) in before.pairs.items():
        assert torch.equal(a, after.pairs[name][0])
        assert torch.equal(b, after.pairs[name][1])
    assert [stage["steps"] for stage in after.metadata["stages"]] == [6, 1]


def test_a_trained_file_of_another_model_is_no_start(healed, tmp_path):
    other = made(tmp_path, n_layers=4, n_encoder_layers=2, window=7)
    with pytest.raises(WeightsError, match="trained for decoder_window = 6, but the model has 7"):
        heal(other, tmp_path / "out", start=healed / "trained.safetensors")
    path = other / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] += 1
    save_file(tensors, path)
    config = json.loads((other / "config.json").read_text()) | {"decoder_window": 6}
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="trained from another parent"):
        heal(other, tmp_path / "out", start=healed / "trained.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 0}, "rank: rank must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr_global": math.inf}, "lr_global must be above 0"),
        ({"replay_share": 1.5}, r"replay_share must be 0 \.\. 1"),
        ({"batch_tokens": 1}, "batch_tokens must be at least 2"),
        ({"hidden_weight": math.nan}, "hidden_weight"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        replace(RECIPE, **change)


def test_a_budget_needs_an_end():
    with pytest.raises(UsageError, match="got neither"):
        Budget(None, None)
    with pytest.raises(UsageError, match="minutes must be above 0"):
        Budget(3, 0)
    assert Budget(10, 2).used(5, 30) == 0.5
    assert Budget(10, 2).used(1, 90) == 0.75


def test_the_rate_warms_up_falls_as_a_cosine_and_ends_at_a_tenth():
    assert rate_at(0.0) == rate_at(0.005) == 0.1
    assert rate_at(0.025) == pytest.approx(0.5)
    assert rate_at(0.05) == pytest.approx(1)
    assert rate_at(0.525) == pytest.approx(0.55)
    assert rate_at(1.0) == pytest.approx(0.1)
    assert rate_at(2.0) == pytest.approx(0.1)
