"""A trained file applied is the model that was trained, in either type, and says so."""

import json
from dataclasses import replace

import pytest
import torch
from plain_llama import random_parent, write_hf_folder
from safetensors.torch import load_file
from training import LENGTHS, Texts, made
from training_runs import RECIPE, heal, log_of, same

from cedagent.engine import Engine
from cedagent.errors import UsageError
from cedagent.model.llama.config import LlamaConfig
from cedagent.model.llama.weights import write_model
from cedagent.model.tokenizer_build import build_tiny
from cedagent.upcycle.convert import convert
from cedagent.upcycle.smooth import SHARE
from cedagent.upcycle.source import sha256_file
from cedagent.upcycle.training.adapters import frozen_weights
from cedagent.upcycle.training.attention import Documents, whole
from cedagent.upcycle.training.batches import Room
from cedagent.upcycle.training.heal import closeness, fixed_passes
from cedagent.upcycle.training.pair import Pair, load_untrained
from cedagent.upcycle.training.trained_file import apply_trained, read_trained
from cedagent.upcycle.training.trained_model import smoothed_anew, write_trained_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    # Calibration text is cut to the context.
    return made(
        tmp_path_factory.mktemp("made"), encoder_global_layers=(1,), max_position_embeddings=128
    )


@pytest.fixture
def tensors(model_dir):
    return load_file(model_dir / "model.safetensors")


@pytest.fixture
def config(model_dir):
    return LlamaConfig.load(model_dir)


@pytest.fixture(scope="module")
def healed(model_dir, tmp_path_factory):
    """Trained in the decoder and in a windowed encoder layer."""
    folder = tmp_path_factory.mktemp("healed")
    recipe = replace(RECIPE, steps=3, lr=3e-2, lr_global=5e-2, encoder_adapters=True)
    return heal(model_dir, folder, recipe).path


@pytest.fixture(scope="module")
def written(model_dir, healed, tmp_path_factory):
    """(the directory that `healed` gives, the steps that were reported)."""
    steps = []
    dst = write_trained_model(
        model_dir, healed, tmp_path_factory.mktemp("written") / "dst",
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    return dst, steps


def test_a_written_model_has_them_in_both_types_and_says_so(model_dir, tensors, healed, written):
    dst, steps = written
    assert list(dict.fromkeys(step[0] for step in steps)) == ["calibrate", "write"]
    applied = apply_trained(tensors, healed)
    stored = load_file(dst / "model.safetensors")
    assert all(torch.equal(stored[name], applied[name]) for name in applied)
    origin = json.loads((dst / "origin.json").read_text())
    assert origin["trained"]["stages"][0]["stage"] == "heal"
    assert origin["trained"]["sha256"] == sha256_file(healed)
    assert (dst / "tokenizer.json").read_bytes() == (model_dir / "tokenizer.json").read_bytes()
    ids = list(range(3, 90))
    float32 = Engine.load(dst, precision="float32").logits(ids).log_softmax(-1)
    int8 = Engine.load(dst, precision="int8").logits(ids).log_softmax(-1)
    before = Engine.load(model_dir, precision="float32").logits(ids).log_softmax(-1)

    def kl(a, b):
        return float((a.exp() * (a - b)).sum(-1).mean())

    assert kl(float32, int8) < 0.2 * kl(float32, before)


def test_the_engine_computes_what_training_computed(model_dir, tensors, config, healed, written):
    """The same file, taken up by training and applied: the same logits."""
    trained = read_trained(healed)
    pair = Pair(config, tensors, dtype=torch.float32, device=torch.device("cpu"))
    pair.weights.go_on_from(trained.full, trained.pairs)
    pair.weights.refresh()
    ids, documents = torch.arange(3, 90), [Documents(0, 1, 87)]
    with torch.no_grad():
        student = pair.student
        e_out = student.encode(student.embed(ids), documents)
        logits = student.logits(student.decode(e_out, documents, whole(documents)))
    engine = Engine.load(written[0], precision="float32", mode="full")
    assert torch.allclose(logits, engine.logits(ids.tolist()), atol=1e-4, rtol=0)


def test_an_applied_file_is_as_close_to_the_parent_as_the_log_says(tensors, config, healed):
    """Held-out figures are of float32 parameters, the file has bfloat16 ones."""
    pair = Pair(config, tensors, dtype=torch.float32, device=torch.device("cpu"))
    pair.weights.update(
        frozen_weights(apply_trained(tensors, healed), dtype=torch.float32, device=pair.device)
    )
    room = Room(config, RECIPE.pass_tokens, RECIPE.replay_share, LENGTHS)
    found = closeness(pair, fixed_passes(Texts().plain("heldout", 0), room))
    before, logged = log_of(healed.parent, "held_out")
    for name, value in found.items():
        assert value == pytest.approx(logged[name], rel=0.01)
        assert value != pytest.approx(before[name], rel=0.02)


def test_a_float32_model_stays_one(healed, tmp_path):
    model_dir = made(tmp_path, encoder_global_layers=(1,), int8=False)
    dst = write_trained_model(model_dir, healed, tmp_path / "dst")
    assert not (dst / "model-int8.safetensors").exists()
    assert LlamaConfig.load(dst).weights_dtype == "float32"


@pytest.mark.parametrize(
    ("stage", "is_same"),
    [("heal", True), pytest.param("teach", False, marks=pytest.mark.slow)],
)
def test_stored_rows_stay_good_as_long_as_the_encoder_is_frozen(tmp_path, stage, is_same):
    model_dir = made(tmp_path, int8=False)
    result = heal(model_dir, tmp_path / "out", replace(RECIPE, stage=stage, steps=1))
    dst = write_trained_model(model_dir, result.path, tmp_path / "dst")
    check_fingerprints(model_dir, dst, is_same, precision="float32")


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "is_same"), [("heal", True), ("teach", False)])
def test_so_do_those_of_int8_weights_that_are_made_anew(tmp_path, stage, is_same):
    config, tensors = random_parent(layers=3, hidden=64, heads=2, head_dim=32)
    source = write_hf_folder(tmp_path / "hf", config, tensors, build_tiny(384))
    model_dir = convert(source, tmp_path / "ced", n_encoder_layers=2, window=6)
    result = heal(model_dir, tmp_path / "out", replace(RECIPE, stage=stage, steps=1))
    dst = write_trained_model(model_dir, result.path, tmp_path / "dst")
    check_fingerprints(model_dir, dst, is_same, precision="int8")


def check_fingerprints(before, after, is_same, **more):
    mine, theirs = (Engine.load(model_dir, **more).family for model_dir in (before, after))
    assert (mine.fingerprint() == theirs.fingerprint()) == is_same
    assert mine.weights_digest() != theirs.weights_digest()


def test_untrained_weights_are_smoothed_as_their_conversion_smoothed_them(tmp_path):
    fields, tensors = random_parent(layers=4, hidden=64, heads=2, head_dim=32)
    fields["max_position_embeddings"] = 96
    source = write_hf_folder(tmp_path / "hf", fields, tensors, build_tiny(384))
    model_dir = convert(source, tmp_path / "ced", n_encoder_layers=2, window=6, global_layers=(1,))
    config, tensors = load_untrained(model_dir)
    tokenizer_json = (model_dir / "tokenizer.json").read_text()
    smooth = smoothed_anew(tensors, config, tokenizer_json)
    (tmp_path / "again").mkdir()
    write_model(tmp_path / "again", config, tensors, int8=smooth)
    name = "model-int8.safetensors"
    assert same(tmp_path / "again" / name, model_dir / name)
    # What enters a global projection is as large as its own norm makes it.
    norm = "model.layers.3.global_norm.weight"
    louder = smoothed_anew(tensors | {norm: 2 * tensors[norm]}, config, tokenizer_json)
    assert torch.allclose(louder[norm], 2 ** (1 - SHARE) * smooth[norm], rtol=1e-4)


def test_a_model_that_pull_made_is_not_pulls_any_more(healed, tmp_path):
    model_dir = made(tmp_path, encoder_global_layers=(1,), int8=False)
    origin = {"made_by": "cedagent model pull", "recipe": "0123", "licence": "x"}
    (model_dir / "origin.json").write_text(json.dumps(origin))
    dst = write_trained_model(model_dir, healed, tmp_path / "dst")
    found = json.loads((dst / "origin.json").read_text())
    assert found.keys() == {"made_by", "licence", "trained"}
    assert found["made_by"] == "cedagent model apply"


def test_nothing_is_written_where_something_is(model_dir, healed, tmp_path):
    (tmp_path / "dst").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        write_trained_model(model_dir, healed, tmp_path / "dst")


def test_what_cannot_be_written_is_refused_before_the_work(model_dir, healed, tmp_path):
    (tmp_path / "file").write_text("")
    steps = []
    with pytest.raises(UsageError, match=r"cannot write \S+file/x: \S+file is no folder; expected"):
        write_trained_model(
            model_dir, healed, tmp_path / "file" / "x", progress=lambda *step: steps.append(step)
        )
    assert steps == []


def test_a_trained_model_takes_no_second_file(healed, written, tmp_path):
    with pytest.raises(UsageError, match="carries trained weights already"):
        write_trained_model(written[0], healed, tmp_path / "again")
