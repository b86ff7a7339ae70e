"""Teaching: transcripts are learned, the parent is not forgotten, every layer may change."""

import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file
from training import LENGTHS, Texts, made

from cedagent.engine import Engine
from cedagent.upcycle.training.checkpoint import LOG
from cedagent.upcycle.training.recipe import Recipe
from cedagent.upcycle.training.run import run
from cedagent.upcycle.training.trained_file import read_trained
from cedagent.upcycle.training.trained_model import write_trained_model
from cedagent.upcycle.training.trainer import Cadence

RECIPE = Recipe(
    "teach", steps=45, rank=4, lr=3e-2, lr_global=1e-2, batch_tokens=256, pass_tokens=128,
    precision="float32", seed=1,
)  # fmt: skip


def teach(model_dir, folder, recipe=RECIPE, **more):
    more = {"minutes": None, "texts": Texts(), "lengths": LENGTHS} | more
    return run(model_dir, folder, recipe=recipe, cadence=Cadence(0, 1e9), **more)


def log_of(folder, event):
    lines = (folder / LOG).read_text().splitlines()
    return [entry for line in lines if (entry := json.loads(line))["event"] == event]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return made(tmp_path_factory.mktemp("made"), encoder_global_layers=(0,))


@pytest.fixture(scope="module")
def taught(model_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    teach(model_dir, folder)
    return folder


def test_outputs_of_unseen_transcripts_are_learned(taught):
    before, after = log_of(taught, "held_out")
    assert before["tokens_right"] < 0.2
    assert after["tokens_right"] > 0.9
    assert after["surprise"] < 0.5 * before["surprise"]
    assert after["outputs_right"] > before["outputs_right"] == 0


def test_what_was_taught_is_what_the_engine_writes_after_a_prefill(model_dir, taught, tmp_path):
    dst = write_trained_model(model_dir, taught / "trained.safetensors", tmp_path / "dst")
    engine = Engine.load(dst)
    examples = Texts().transcripts("heldout", 5)
    right = total = 0
    for _ in range(6):
        example = next(examples)
        start = example.trained.index(True)
        sequence = engine.sequence()
        sequence.prefill(example.ids[:start])
        for token in example.ids[start : start + 7]:
            right += int(sequence.logits.argmax()) == token
            total += 1
            sequence.feed(token)
    assert right / total > 0.9


@pytest.mark.slow
def test_plain_text_keeps_the_student_with_its_parent(model_dir, taught, tmp_path):
    teach(model_dir, tmp_path, replace(RECIPE, plain_share=0.0))
    with_plain, without = (log_of(folder, "held_out")[1]["kl"] for folder in (taught, tmp_path))
    assert with_plain < 0.8 * without
    assert not any("divergence" in step for step in log_of(tmp_path, "step"))


def test_every_layer_has_adapters_and_the_rest_is_untouched(model_dir, taught):
    trained = read_trained(taught / "trained.safetensors")
    assert {name.split(".")[2] for name in trained.pairs} == {"0", "1", "2", "3"}
    assert {name.split(".")[2] for name in trained.full} == {"2", "3"}
    touched = trained.full.keys() | trained.pairs.keys()
    left = load_file(model_dir / "model.safetensors").keys() - touched
    assert {name.split(".")[-2] for name in left} == {
        "embed_tokens", "norm", "input_layernorm", "post_attention_layernorm",
    }  # fmt: skip


def test_a_stopped_run_goes_on_with_the_same_bits(model_dir, tmp_path):
    recipe = replace(RECIPE, steps=4)
    teach(model_dir, tmp_path / "whole", recipe)
    seen = []
    stopped = teach(
        model_dir, tmp_path / "parts", recipe, report=seen.append,
        should_stop=lambda: seen[-1].step >= 2,
    )  # fmt: skip
    assert stopped is None
    teach(model_dir, tmp_path / "parts", recipe)
    files = [tmp_path / name / "trained.safetensors" for name in ("whole", "parts")]
    a, b = (load_file(file) for file in files)
    assert all((a[name] == b[name]).all() for name in a)


def test_teaching_goes_on_from_healed_weights(model_dir, tmp_path):
    heal = replace(RECIPE, stage="heal", steps=2, rank=3)
    teach(model_dir, tmp_path / "heal", heal)
    start = tmp_path / "heal" / "trained.safetensors"
    teach(model_dir, tmp_path / "teach", replace(RECIPE, steps=2), start=start)
    trained = read_trained(tmp_path / "teach" / "trained.safetensors")
    ranks = {name.split(".")[2]: a.shape[0] for name, (a, _) in trained.pairs.items()}
    assert ranks == {"0": 4, "1": 4, "2": 3, "3": 3}
    assert [stage["stage"] for stage in trained.metadata["stages"]] == ["heal", "teach"]


def test_a_transcripts_run_whole_without_replay(model_dir, tmp_path):
    teach(model_dir, tmp_path, replace(RECIPE, steps=2, replay_share=0.0))
    assert len(log_of(tmp_path, "step")) == 2
