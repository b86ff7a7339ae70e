"""Parent and student side by side, and the figures that tell how far apart they are."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from training import LENGTHS, Texts, made
from training_runs import RECIPE, stage_of

from cedagent.engine import Engine
from cedagent.model.llama.weights import write_model
from cedagent.upcycle.training.batches import Room
from cedagent.upcycle.training.forward import parent_of
from cedagent.upcycle.training.heal import closeness, fixed_passes
from cedagent.upcycle.training.teach import by_output

TEACH = replace(RECIPE, stage="teach")


@pytest.fixture(scope="module", params=[(0, 1), (0,)])
def model_dir(tmp_path_factory, request):
    return made(tmp_path_factory.mktemp("made"), encoder_global_layers=request.param)


def batches_of(stage):
    return [batch for batch in next(stage.steps()) if batch.kind == "distill"]


def disturb(stage):
    """Change all that is trained."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in stage.weights.parameters().values():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    stage.weights.refresh()


@pytest.mark.parametrize("recipe", [RECIPE, TEACH], ids=["heal", "teach"])
def test_the_parent_is_the_checkpoint_whatever_is_trained(model_dir, tmp_path, recipe):
    stage = stage_of(model_dir, recipe)
    pair = stage._pair
    tensors = load_file(model_dir / "model.safetensors")
    own = {name: tensor for name, tensor in tensors.items() if ".global_" not in name}
    write_model(tmp_path, replace(parent_of(pair.config), weights_dtype="float32"), own)
    engine = Engine.load(tmp_path, precision="float32", mode="full")
    disturb(stage)
    (batch, *_) = batches_of(stage)
    mine, theirs = pair.both_rows(batch)
    (some,) = batch.documents
    logits = torch.cat([engine.logits(ids.tolist()) for ids in some.of(batch.ids)])
    head = pair.student.head
    assert torch.allclose(theirs @ head.t(), logits[batch.places], atol=1e-4, rtol=0)
    assert not torch.allclose(mine, theirs, atol=0.1)
    # Each alone is what both are.
    assert torch.allclose(mine, pair.student_rows(batch), atol=1e-5)


def test_closeness_is_the_mean_past_the_window_and_after_a_prefill(model_dir):
    stage = stage_of(model_dir, RECIPE)
    pair = stage._pair
    disturb(stage)
    window = pair.config.decoder_window
    room = Room(pair.config, 96, 0.5, LENGTHS)
    passes = fixed_passes(Texts().plain("heldout", 0), room)
    whole, replayed = [], []
    for batch in passes:
        with torch.no_grad():
            mine, theirs = (
                (rows @ pair.student.head.t()).log_softmax(-1) for rows in pair.both_rows(batch)
            )
        kl, at = (theirs.exp() * (theirs - mine)).sum(-1), 0
        for stretch in batch.stretches:
            is_whole = (stretch.start, stretch.stop) == (0, 48)
            # A replay within a text begins a window before its end, and a window is fed after it.
            end = (
                1
                if is_whole
                else stretch.start + window
                if stretch.start
                else (stretch.stop - window)
            )
            n_scored = stretch.stop - end + 1
            for _ in range(stretch.documents.n):
                rows = kl[at : at + n_scored]
                at += n_scored
                if is_whole:
                    whole += rows[window:].tolist()
                elif stretch.start:
                    replayed += rows[:33].tolist()
        assert at == len(kl)
    found = closeness(pair, passes)
    assert found["kl"] == pytest.approx(sum(whole) / len(whole), rel=1e-3)
    assert found["kl_after_prefill"] == pytest.approx(sum(replayed) / len(replayed), rel=1e-3)


def test_held_out_figures_are_means_over_tokens_and_outputs(model_dir):
    stage = stage_of(model_dir, TEACH)
    disturb(stage)
    surprises, hits = [], []
    with torch.no_grad():
        for batch in stage._held_out:
            rows = stage._pair.student_rows(batch)
            log_p = (rows @ stage._pair.student.head.t()).log_softmax(-1)
            surprises += (-log_p.gather(1, batch.targets.unsqueeze(1))).flatten().tolist()
            hits += (log_p.argmax(-1) == batch.targets).tolist()
    found = stage.held_out()
    assert len({len(batch.rows) for batch in stage._held_out}) > 1
    assert found["surprise"] == pytest.approx(sum(surprises) / len(surprises), rel=1e-4)
    assert found["tokens_right"] == pytest.approx(sum(hits) / len(hits))


def test_outputs_are_parted_where_their_places_are():
    places = torch.tensor([4, 5, 6, 8, 20, 21, 0, 1])
    assert [part.tolist() for part in by_output(places, places)] == [
        [4, 5, 6],
        [8],
        [20, 21],
        [0, 1],
    ]
