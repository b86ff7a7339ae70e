"""Steps: two rates, one clip for all, no decay, and moments that are taken up again."""

import pytest
import torch

from cedagent.upcycle.training.optimizer import Optimizer


def parameters():
    generator = torch.Generator().manual_seed(2)
    return {name: torch.randn(5, generator=generator).requires_grad_() for name in ("a", "b", "w")}


def made(parameters, lr=0.1, lr_whole=0.01):
    return Optimizer(parameters, whole={"w"}, lr=lr, lr_whole=lr_whole)


def step(optimizer, parameters, *, share=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    optimizer.forget_gradients()
    for parameter in parameters.values():
        parameter.grad = torch.randn(5, generator=generator)
    norm = optimizer.clip()
    optimizer.step(share)
    return norm


@pytest.mark.parametrize(("lr", "lr_whole"), [(0.1, 0.01), (0.1, 0.1)])
def test_a_first_step_is_as_long_as_the_rate_of_its_group_and_the_share_say(lr, lr_whole):
    some = parameters()
    before = {name: values.detach().clone() for name, values in some.items()}
    step(made(some, lr, lr_whole), some, share=0.5)
    for name, values in some.items():
        rate = 0.5 * (lr_whole if name == "w" else lr)
        # Adam divides a gradient by its size, so that a first step has the size of the rate.
        moved = (values.detach() - before[name]).abs()
        assert torch.allclose(moved, torch.full((5,), rate), rtol=1e-4)


def test_all_gradients_together_are_clipped_to_length_one():
    some = parameters()
    norm = step(made(some), some)
    assert norm > 1
    clipped = torch.cat([values.grad for values in some.values()])
    assert clipped.norm() == pytest.approx(1, rel=1e-4)


def test_without_a_gradient_nothing_moves():
    some = parameters()
    optimizer, before = made(some), [values.detach().clone() for values in some.values()]
    for values in some.values():
        values.grad = torch.zeros(5)
    optimizer.step(1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, some.values(), strict=True))


def test_what_was_written_down_goes_on_as_if_nothing_had_come_between():
    whole, parts = parameters(), parameters()
    optimizer = made(whole)
    for seed in range(5):
        step(optimizer, whole, seed=seed)
    written = made(parts).tensors()
    for steps in range(5):
        # Anew after every step.
        optimizer = made(parts)
        optimizer.restore(written, steps=steps)
        step(optimizer, parts, seed=steps)
        written = {name: values.detach().clone() for name, values in optimizer.tensors().items()}
        assert len(written) == 9
        parts = parameters()
    assert all(torch.equal(written[f"value/{name}"], values) for name, values in whole.items())


def test_before_the_first_step_there_are_values_alone():
    some = parameters()
    written = made(some).tensors()
    assert set(written) == {"value/a", "value/b", "value/w"}
    made(some).restore(written, steps=0)
