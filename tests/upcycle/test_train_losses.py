"""Losses are their formulas, whatever number of rows their logits are taken for at once."""

import pytest
import torch
import torch.nn.functional as F

from cedagent.upcycle.training import losses

M, D, V = 301, 24, 97


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(5)
    student, parent = (torch.randn(M, D, generator=generator) for _ in range(2))
    head = torch.randn(V, D, generator=generator)
    targets = torch.randint(V, (M,), generator=generator)
    return student.requires_grad_(), parent, head, targets


def value_and_gradient(loss, student):
    (gradient,) = torch.autograd.grad(loss, student)
    return loss.detach().double(), gradient


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_distillation_is_the_divergence_and_its_gradient(rows, temperature):
    student, parent, head, _ = rows
    log_q = F.log_softmax(student @ head.t() / temperature, -1)
    log_p = F.log_softmax(parent @ head.t() / temperature, -1)
    expected = F.kl_div(log_q, log_p, log_target=True, reduction="batchmean") * temperature**2
    found = losses.distillation(student, parent, head, temperature=temperature)
    for a, b in zip(
        value_and_gradient(3 * found, student), value_and_gradient(3 * expected, student),
        strict=True,
    ):  # fmt: skip
        assert torch.allclose(a, b, atol=1e-6, rtol=1e-4)


def test_cross_entropy_is_the_weighted_surprise_and_its_gradient(rows):
    student, _, head, targets = rows
    weights = torch.linspace(0.1, 1, M)
    each = F.cross_entropy(student @ head.t(), targets, reduction="none")
    expected = (weights * each).sum() / weights.sum()
    found = losses.cross_entropy(student, targets, weights, head)
    for a, b in zip(
        value_and_gradient(found, student), value_and_gradient(expected, student), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-6, rtol=1e-4)


def test_distance_is_relative_to_the_parent(rows):
    student, parent, _, _ = rows
    assert losses.distance(parent, parent) == 0
    assert torch.allclose(losses.distance(3 * parent, parent), torch.tensor(4.0))
    value_and_gradient(losses.distance(student, parent), student)


def test_divergence_and_predictions_are_by_row(rows):
    student, parent, head, _ = rows
    log_q, log_p = (F.log_softmax(x @ head.t(), -1) for x in (student, parent))
    expected = (log_p.exp() * (log_p - log_q)).sum(-1)
    assert torch.allclose(losses.divergence(student, parent, head), expected, atol=1e-5)
    assert torch.equal(losses.predictions(student, head), log_q.argmax(-1))


def test_bfloat16_heads_give_float32_gradients_close_to_exact_ones(rows):
    student, parent, head, _ = rows
    exact = value_and_gradient(losses.distillation(student, parent, head, temperature=2.0), student)
    rounded = value_and_gradient(
        losses.distillation(student, parent, head.bfloat16(), temperature=2.0), student
    )
    assert rounded[1].dtype is torch.float32
    assert torch.allclose(exact[0], rounded[0], rtol=0.02)
    assert (exact[1] - rounded[1]).norm() < 0.02 * exact[1].norm()
