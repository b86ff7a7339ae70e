"""Healing: the student comes closer to its parent, and only what the recipe names changes."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from training import Texts, made
from training_runs import RECIPE, heal, log_of

from cedagent.errors import UsageError, WeightsError
from cedagent.upcycle.training.checkpoint import RESULT
from cedagent.upcycle.training.recipe import Budget, rate_at
from cedagent.upcycle.training.trained_file import read_trained


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return made(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def healed(model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("healed")
    heal(model_dir, folder)
    return folder


def test_the_divergence_from_the_parent_falls_on_text_that_was_not_trained_on(healed):
    before, after = log_of(healed, "held_out")
    assert (before["step"], after["step"]) == (0, 4)
    assert after["kl"] < 0.95 * before["kl"]
    assert after["kl_after_prefill"] < 0.95 * before["kl_after_prefill"]


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"precision": "bfloat16"}, {"fake_int8": 0.5}])
def test_a_longer_run_heals_in_either_precision_and_rounded(model_dir, tmp_path, change):
    heal(model_dir, tmp_path, replace(RECIPE, steps=30, **change))
    before, after = log_of(tmp_path, "held_out")
    assert after["kl"] < 0.7 * before["kl"]
    assert after["kl_after_prefill"] < 0.7 * before["kl_after_prefill"]
    steps = log_of(tmp_path, "step")
    losses = [step["loss"] for step in steps]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    n_rounded = sum(step["int8"] for step in steps)
    assert 5 < n_rounded < 25 if "fake_int8" in change else n_rounded == 0


def test_a_share_of_steps_sees_rounded_weights(model_dir, healed, tmp_path):
    heal(model_dir, tmp_path, replace(RECIPE, steps=2, fake_int8=0.5))
    plain, some = (log_of(folder, "step") for folder in (healed, tmp_path))
    # The draws of seed 1.
    assert [step["int8"] for step in some] == [False, True]
    assert some[0]["loss"] == plain[0]["loss"]
    assert some[1]["loss"] != plain[1]["loss"]
    assert some[1]["loss"] == pytest.approx(plain[1]["loss"], rel=0.05)


def test_the_loss_is_divergence_and_weighted_distance(model_dir, healed, tmp_path):
    heal(model_dir, tmp_path, replace(RECIPE, steps=1, hidden_weight=0.25))
    for folder, weight in ((healed, 1.0), (tmp_path, 0.25)):
        step = log_of(folder, "step")[0]
        expected = step["divergence"] + weight * step["hidden"]
        assert step["loss"] == pytest.approx(expected, abs=2e-6)


def test_only_global_tensors_and_decoder_adapters_are_in_the_file(model_dir, healed):
    trained = read_trained(healed / RESULT)
    layers = {name.split(".")[2] for name in (*trained.full, *trained.pairs)}
    assert layers == {"2", "3"}
    assert len(trained.full) == 2 * 3
    assert len(trained.pairs) == 2 * 7
    start = load_file(model_dir / "model.safetensors")
    for name, tensor in trained.full.items():
        assert not torch.equal(tensor, start[name])
    assert all(a.shape[0] == 3 for a, _ in trained.pairs.values())
    assert all(b.abs().max() > 0 for _, b in trained.pairs.values())
    stages = trained.metadata["stages"]
    assert [(stage["stage"], stage["seed"], stage["tokens"]) for stage in stages] == [
        ("heal", 1, 4 * 144)
    ]


@pytest.mark.parametrize(("is_adapted", "layers"), [(False, {"3"}), (True, {"0", "1", "3"})])
def test_windowed_encoder_layers_are_adapted_where_the_recipe_says_so(tmp_path, is_adapted, layers):
    model_dir = made(tmp_path, n_encoder_layers=3, encoder_global_layers=(2,))
    recipe = replace(RECIPE, steps=1, encoder_adapters=is_adapted)
    heal(model_dir, tmp_path / "out", recipe)
    trained = read_trained(tmp_path / "out" / RESULT)
    assert {name.split(".")[2] for name in trained.pairs} == layers
    assert all(b.abs().max() > 0 for _, b in trained.pairs.values())


@pytest.mark.slow
@pytest.mark.parametrize("is_adapted", [False, True])
def test_a_model_with_windowed_encoder_layers_heals_either_way(tmp_path, is_adapted):
    model_dir = made(tmp_path, n_encoder_layers=3, encoder_global_layers=(2,))
    recipe = replace(RECIPE, steps=30, lr=1e-2, encoder_adapters=is_adapted)
    heal(model_dir, tmp_path / "out", recipe)
    before, after = log_of(tmp_path / "out", "held_out")
    assert after["kl"] < 0.95 * before["kl"]


def test_an_encoder_that_is_all_there_is_heals_its_windowed_layers(tmp_path):
    model_dir = made(tmp_path, n_layers=2, n_encoder_layers=2, encoder_global_layers=(1,))
    heal(model_dir, tmp_path / "out", replace(RECIPE, steps=1, encoder_adapters=True))
    trained = read_trained(tmp_path / "out" / RESULT)
    assert (len(trained.full), len(trained.pairs)) == (0, 7)


def test_the_model_directory_is_not_written(model_dir, tmp_path):
    before = {path.name: path.read_bytes() for path in model_dir.iterdir()}
    heal(model_dir, tmp_path, replace(RECIPE, steps=1))
    assert {path.name: path.read_bytes() for path in model_dir.iterdir()} == before


def test_a_model_that_was_trained_is_no_start(model_dir, tmp_path):
    trained = tmp_path / "model"
    trained.mkdir()
    for path in model_dir.iterdir():
        (trained / path.name).write_bytes(path.read_bytes())
    (trained / "origin.json").write_text('{"trained": {"sha256": "x"}}')
    with pytest.raises(UsageError, match="carries trained weights already"):
        heal(trained, tmp_path / "out")


@pytest.mark.parametrize("is_adapted", [False, True])
def test_a_model_with_nothing_to_heal_is_refused_and_leaves_no_folder(tmp_path, is_adapted):
    baseline = made(tmp_path, n_layers=2, n_encoder_layers=2)
    with pytest.raises(UsageError, match="nothing to heal"):
        heal(baseline, tmp_path / "out", replace(RECIPE, encoder_adapters=is_adapted))
    assert not (tmp_path / "out").exists()


def test_rounding_needs_int8_weights(tmp_path):
    model_dir = made(tmp_path, n_layers=2, n_encoder_layers=1, int8=False)
    with pytest.raises(UsageError, match="has no int8 weights"):
        heal(model_dir, tmp_path / "out", replace(RECIPE, fake_int8=0.5))


def test_a_stage_goes_on_from_a_trained_file(model_dir, healed, tmp_path):
    recipe = replace(RECIPE, steps=1, lr=1e-9, lr_global=1e-9, rank=5)
    heal(model_dir, tmp_path, recipe, start=healed / RESULT)
    before, after = (read_trained(folder / RESULT) for folder in (healed, tmp_path))
    assert all(torch.equal(before.full[name], after.full[name]) for name in before.full)
    for name, (a, b) in before.pairs.items():
        assert torch.equal(a, after.pairs[name][0])
        assert torch.equal(b, after.pairs[name][1])
    assert [stage["steps"] for stage in after.metadata["stages"]] == [4, 1]
    # It begins as good as the first one ended, up to the type of the file.
    first, second = log_of(healed, "held_out")[-1], log_of(tmp_path, "held_out")[0]
    assert second["kl"] == pytest.approx(first["kl"], rel=0.02)


def test_a_trained_file_of_another_model_is_no_start(healed, tmp_path):
    other = made(tmp_path, n_layers=4, n_encoder_layers=2, window=7)
    with pytest.raises(WeightsError, match="trained for decoder_window = 6, but the model has 7"):
        heal(other, tmp_path / "out", start=healed / RESULT)
    path = other / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] += 1
    save_file(tensors, path)
    config = json.loads((other / "config.json").read_text()) | {"decoder_window": 6}
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="trained from another parent"):
        heal(other, tmp_path / "out", start=healed / RESULT)
    assert not (tmp_path / "out").exists()


def test_the_seed_decides_the_draws(model_dir, healed, tmp_path):
    heal(model_dir, tmp_path, replace(RECIPE, steps=1, seed=2), texts=OneSeed())
    assert log_of(tmp_path, "step")[0]["loss"] != log_of(healed, "step")[0]["loss"]


class OneSeed(Texts):
    """The same texts for every seed."""

    def plain(self, split, seed):
        return super().plain(split, RECIPE.seed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 0}, "rank: expected at least 1, got 0"),
        ({"steps": 0}, "steps: expected at least 1"),
        ({"lr": 0.0}, "lr: expected a number above 0"),
        ({"lr": math.nan}, "lr: expected a number above 0"),
        ({"lr_global": math.inf}, "lr_global: expected a number above 0"),
        ({"replay_share": 1.5}, r"replay_share: expected a share, 0 \.\. 1, got 1.5"),
        ({"fake_int8": math.nan}, "fake_int8: expected a share"),
        ({"batch_tokens": 1}, "batch_tokens: expected at least 2"),
        ({"pass_tokens": 1}, "pass_tokens: expected at least 2"),
        ({"hidden_weight": math.nan}, "hidden_weight: expected a number of at least 0"),
        ({"hidden_weight": -1.0}, "hidden_weight: expected a number of at least 0"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(UsageError, match=message):
        replace(RECIPE, **change)


def test_a_budget_needs_an_end():
    with pytest.raises(UsageError, match="got neither"):
        Budget(None, None)
    for minutes in (0, math.nan, math.inf):
        with pytest.raises(UsageError, match="minutes: expected a number above 0"):
            Budget(3, minutes)
    assert Budget(10, 2).used(5, 30) == 0.5
    assert Budget(10, 2).used(1, 90) == 0.75


def test_the_rate_warms_up_falls_as_a_cosine_and_ends_at_a_tenth():
    assert rate_at(0.0) == rate_at(0.005) == 0.1
    assert rate_at(0.025) == pytest.approx(0.5)
    assert rate_at(0.05) == pytest.approx(1)
    assert rate_at(0.525) == pytest.approx(0.55)
    assert rate_at(1.0) == pytest.approx(0.1)
    assert rate_at(2.0) == pytest.approx(0.1)
