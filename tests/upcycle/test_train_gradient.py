"""The gradient that a step takes is the slope of its loss, measured by finite differences."""

import pytest
import torch
from training import made
from training_runs import heal, log_of, stage_of

from cedagent.upcycle.training.recipe import Recipe


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return made(tmp_path_factory.mktemp("made"), encoder_global_layers=(0,))


def recipe_of(name):
    return Recipe(
        name, steps=1, rank=3, batch_tokens=240, pass_tokens=120, precision="float32",
        encoder_adapters=True,
    )  # fmt: skip


def add_up(stage, batches):
    """Give every parameter its gradient."""
    stage.weights.refresh()
    for batch in batches:
        (stage.loss(batch)[0] * batch.share).backward()
        stage.weights.collect()


@pytest.mark.parametrize("name", ["heal", pytest.param("teach", marks=pytest.mark.slow)])
def test_a_run_takes_this_gradient(model_dir, tmp_path, name):
    stage = stage_of(model_dir, recipe_of(name))
    batches = next(stage.steps())
    assert len(batches) > 1
    add_up(stage, batches)
    heal(model_dir, tmp_path, recipe_of(name))
    length = torch.cat([p.grad.flatten() for p in stage.weights.parameters().values()]).norm()
    (step,) = log_of(tmp_path, "step")
    assert step["gradient"] == pytest.approx(float(length), rel=1e-3)


@pytest.mark.parametrize("name", ["heal", "teach"])
def test_the_gradient_of_a_step_is_the_slope_of_its_loss(model_dir, name):
    stage = stage_of(model_dir, recipe_of(name))
    batches, parameters = next(stage.steps()), list(stage.weights.parameters().values())
    assert {len(batch.stretches) > len(batch.documents) for batch in batches} == {True, False}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # Away from the start, where the B of every adapter is zero and the A has no slope.
        for parameter in parameters:
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)

    def loss():
        stage.weights.refresh()
        with torch.no_grad():
            return sum(float(stage.loss(batch)[0]) * batch.share for batch in batches)

    add_up(stage, batches)
    gradients = [parameter.grad for parameter in parameters]
    downhill = [gradient / gradient.norm() for gradient in gradients]
    anywhere = [torch.randn(g.shape, generator=generator) + 3 * d
                for g, d in zip(gradients, downhill, strict=True)]  # fmt: skip
    for direction in (downhill, anywhere):
        values = []
        for sign in (1, -2, 1):
            with torch.no_grad():
                for parameter, part in zip(parameters, direction, strict=True):
                    parameter += sign * 1e-3 * part
            values.append(loss())
        expected = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True))
        assert (values[0] - values[1]) / 2e-3 == pytest.approx(expected, rel=0.02)
