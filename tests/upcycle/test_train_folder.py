"""What a run's folder holds: another run's files, damaged ones, and such as cannot be written."""

import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from training import made
from training_runs import RECIPE, SHORT, heal

from cedagent.errors import CedError, EngineError, UsageError
from cedagent.upcycle.training.checkpoint import CHECKPOINT, LOG, RESULT, Log, locked


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return made(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def short(model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("short")
    heal(model_dir, folder, SHORT)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 4}, "rank was 3, now 4"),
        ({"seed": 2}, "seed was 1, now 2"),
        ({"lr": 1e-3}, "lr was 0.02, now 0.001"),
        ({"stage": "teach"}, "stage was heal, now teach"),
    ],
)
def test_a_folder_of_another_recipe_is_refused(model_dir, short, change, message):
    before = {path.name: path.read_bytes() for path in short.iterdir()}
    with pytest.raises(UsageError, match=f"holds a run of another recipe .{message}"):
        heal(model_dir, short, replace(SHORT, **change))
    assert {path.name: path.read_bytes() for path in short.iterdir()} == before


def test_a_folder_of_another_start_or_model_is_refused(model_dir, short, tmp_path):
    with pytest.raises(UsageError, match=r"start was None, now [0-9a-f]{64}"):
        heal(model_dir, short, SHORT, start=short / RESULT)
    with pytest.raises(UsageError, match="decoder_window was 6, now 7"):
        heal(made(tmp_path, window=7), short, SHORT)
    with pytest.raises(UsageError, match=r"parent was [0-9a-f]{64}, now [0-9a-f]{64}"):
        heal(made(tmp_path / "other", seed=1), short, SHORT)


def test_lines_of_another_kind_are_left_out_of_a_log_that_goes_on(tmp_path):
    path, line = tmp_path / LOG, '{"event": "step", "step": 1}\n'
    path.write_text('5\n[1]\n{}\n{"step": "x", "event": "step"}\n' + line + '{"step": 1')
    assert Log(path, steps=1).last_event == "step"
    assert path.read_text() == line


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    log = Log(tmp_path / LOG, steps=None)
    (tmp_path / LOG).unlink()
    # Every write to it finds the disk full, in an error that names no file.
    (tmp_path / LOG).symlink_to("/dev/full")
    with pytest.raises(CedError, match=rf"cannot write \S+{LOG}: No space left on device"):
        log.write("step", 1)


@pytest.mark.parametrize("content", [b"x" * 100, b"", None])
def test_a_damaged_checkpoint_is_refused(model_dir, tmp_path, content):
    path = tmp_path / CHECKPOINT
    # A file of tensors alone is no checkpoint, either.
    path.write_bytes((model_dir / "model.safetensors").read_bytes() if content is None else content)
    with pytest.raises(UsageError, match=f"{CHECKPOINT} is damaged"):
        heal(model_dir, tmp_path)


@pytest.mark.parametrize("stage", ["heal", "teach"])
def test_a_run_is_not_mixed_with_the_files_of_a_model(model_dir, tmp_path, stage):
    before = sorted(path.name for path in model_dir.iterdir())
    (tmp_path / "link").symlink_to(model_dir)
    for folder in (model_dir, tmp_path / "link", made(tmp_path, n_layers=1, n_encoder_layers=1)):
        with pytest.raises(UsageError, match=r"holds a model: .* give another --out"):
            heal(model_dir, folder, replace(SHORT, stage=stage))
    assert sorted(path.name for path in model_dir.iterdir()) == before


def test_the_files_of_a_run_are_as_public_as_any_other(model_dir, tmp_path):
    before = os.umask(0o027)
    try:
        heal(model_dir, tmp_path, SHORT)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys((CHECKPOINT, LOG, RESULT, ".lock"), 0o640)


def test_two_processes_do_not_train_in_one_folder(model_dir, tmp_path):
    with locked(tmp_path), pytest.raises(UsageError, match="another process trains in"):
        heal(model_dir, tmp_path)


def test_a_folder_that_cannot_be_made_is_one_line(model_dir, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CedError, match="cannot train in"):
        heal(model_dir, tmp_path / "file" / "x")


@pytest.mark.parametrize("name", [CHECKPOINT, RESULT])
def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(model_dir, tmp_path, name):
    # A folder in its place, which no file replaces.
    (tmp_path / name).mkdir()
    with pytest.raises(CedError, match=f"cannot write .*{name}"):
        heal(model_dir, tmp_path, SHORT)
    assert not [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_last_checkpoint(model_dir, tmp_path):
    recipe = replace(RECIPE, lr=1e30, lr_global=1e30)
    with pytest.raises(EngineError, match=r"no numbers to go on with; .* lower --lr"):
        heal(model_dir, tmp_path, recipe)
    values = load_file(tmp_path / CHECKPOINT)
    assert all(torch.isfinite(tensor).all() for tensor in values.values())
