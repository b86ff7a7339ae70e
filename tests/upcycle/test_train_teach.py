"""Teaching: transcripts are learned, the parent is not forgotten, every layer may change."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from training import Made, Texts, made
from training_runs import StopAfter, heal, log_of, same, stage_of

from cedagent.engine import Engine
from cedagent.upcycle.training.checkpoint import RESULT
from cedagent.upcycle.training.recipe import Recipe
from cedagent.upcycle.training.trained_file import read_trained
from cedagent.upcycle.training.trained_model import write_trained_model

RECIPE = Recipe(
    "teach", steps=3, rank=4, lr=3e-2, lr_global=1e-2, batch_tokens=128, pass_tokens=96,
    precision="float32", seed=1,
)  # fmt: skip
LONG = replace(RECIPE, steps=45, batch_tokens=256, pass_tokens=128)


def teach(model_dir, folder, recipe=RECIPE, **more):
    return heal(model_dir, folder, recipe, **more)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return made(tmp_path_factory.mktemp("made"), encoder_global_layers=(0,))


@pytest.fixture(scope="module")
def begun(model_dir, tmp_path_factory):
    """After a few steps."""
    folder = tmp_path_factory.mktemp("begun")
    teach(model_dir, folder)
    return folder


@pytest.fixture(scope="module")
def taught(model_dir, tmp_path_factory):
    """After as many as it takes."""
    folder = tmp_path_factory.mktemp("taught")
    teach(model_dir, folder, LONG)
    return folder


def test_transcripts_surprise_less_after_a_few_steps(begun):
    before, after = log_of(begun, "held_out")
    assert after["surprise"] < 0.97 * before["surprise"]


def test_the_loss_is_the_sum_of_surprise_and_divergence(begun):
    for step in log_of(begun, "step"):
        assert step["surprise"] > 0
        assert step["loss"] == pytest.approx(step["surprise"] + step["divergence"], abs=2e-6)


@pytest.mark.slow
def test_outputs_of_unseen_transcripts_are_learned(taught):
    before, after = log_of(taught, "held_out")
    assert before["tokens_right"] < 0.2
    assert after["tokens_right"] > 0.9
    assert after["surprise"] < 0.5 * before["surprise"]
    assert after["outputs_right"] > before["outputs_right"] == 0


@pytest.mark.slow
def test_what_was_taught_is_what_the_engine_writes_after_a_prefill(model_dir, taught, tmp_path):
    dst = write_trained_model(model_dir, taught / RESULT, tmp_path / "dst")
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
    teach(model_dir, tmp_path, replace(LONG, plain_share=0.0))
    with_plain, without = (log_of(folder, "held_out")[1]["kl"] for folder in (taught, tmp_path))
    assert with_plain < 0.8 * without
    assert not any("divergence" in step for step in log_of(tmp_path, "step"))


class LastCounts(Texts):
    """The same transcripts; only the last token of an output counts in full."""

    def transcripts(self, split, seed):
        for example in super().transcripts(split, seed):
            some = zip(example.ids, example.trained, strict=True)
            yield Made(example.ids, [(1.0 if i == 2 else 0.2) if t else 0.0 for i, t in some])


def test_tokens_that_could_be_others_are_neither_right_nor_wrong(model_dir, monkeypatch):
    stage = stage_of(model_dir, RECIPE, LastCounts())
    stage.weights.refresh()
    monkeypatch.setattr(
        "cedagent.upcycle.training.teach.predictions",
        lambda rows, head: torch.full((len(rows),), 2),
    )
    found = stage.held_out()
    assert (found["tokens_right"], found["outputs_right"]) == (1.0, 1.0)


def test_every_layer_has_adapters_and_the_rest_is_untouched(model_dir, begun):
    trained = read_trained(begun / RESULT)
    assert {name.split(".")[2] for name in trained.pairs} == {"0", "1", "2", "3"}
    assert {name.split(".")[2] for name in trained.full} == {"2", "3"}
    touched = trained.full.keys() | trained.pairs.keys()
    left = load_file(model_dir / "model.safetensors").keys() - touched
    assert {name.split(".")[-2] for name in left} == {
        "embed_tokens", "norm", "input_layernorm", "post_attention_layernorm",
    }  # fmt: skip


def test_a_stopped_run_goes_on_with_the_same_bits(model_dir, begun, tmp_path):
    stop = StopAfter(1)
    assert teach(model_dir, tmp_path, report=stop.report, should_stop=stop) is None
    teach(model_dir, tmp_path)
    assert same(begun / RESULT, tmp_path / RESULT)


@pytest.mark.slow
def test_teaching_goes_on_from_healed_weights(model_dir, tmp_path):
    heal(model_dir, tmp_path / "heal", replace(RECIPE, stage="heal", steps=1, rank=3))
    start = tmp_path / "heal" / RESULT
    teach(model_dir, tmp_path / "teach", replace(RECIPE, steps=1), start=start)
    trained = read_trained(tmp_path / "teach" / RESULT)
    ranks = {name.split(".")[2]: a.shape[0] for name, (a, _) in trained.pairs.items()}
    assert ranks == {"0": 4, "1": 4, "2": 3, "3": 3}
    assert [stage["stage"] for stage in trained.metadata["stages"]] == ["heal", "teach"]


@pytest.mark.parametrize("plain_share", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_plain_text_alone_and_transcripts_alone_are_trained_on(tmp_path, plain_share):
    recipe = replace(RECIPE, steps=1, plain_share=plain_share, replay_share=0.0)
    # Every encoder layer sees everything, as the parent's do, and learns all the same.
    teach(made(tmp_path), tmp_path / "out", recipe)
    step = log_of(tmp_path / "out", "step")[0]
    assert ("divergence" in step, "surprise" in step) == (plain_share == 1, plain_share == 0)
    trained = read_trained(tmp_path / "out" / RESULT)
    assert all(b.abs().max() > 0 for _, b in trained.pairs.values())
