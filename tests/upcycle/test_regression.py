"""The fit is least squares with little ridge, and the prior with much or with no rows."""

import pytest
import torch

from cedagent.upcycle.regression import fit_towards


def problem(n_rows, *, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n_rows, 33, generator=random) * torch.logspace(-2, 2, 33)
    truth, prior = torch.randn(2, 7, 33, generator=random)
    return x, truth, prior


def test_a_linear_map_is_found_again():
    x, truth, prior = problem(500)
    fitted = fit_towards(x, x @ truth.T, prior, ridge=1e-12)
    assert torch.allclose(fitted, truth, atol=1e-3)


def test_a_large_ridge_keeps_the_prior():
    x, truth, prior = problem(500)
    assert torch.allclose(fit_towards(x, x @ truth.T, prior, ridge=1e9), prior, atol=1e-4)


@pytest.mark.parametrize("n_rows", [0, 1, 32])
def test_too_few_rows_are_no_trouble(n_rows):
    x, truth, prior = problem(n_rows)
    fitted = fit_towards(x, x @ truth.T, prior)
    assert fitted.dtype is torch.float32
    assert torch.isfinite(fitted).all()
    if n_rows == 0:
        assert torch.equal(fitted, prior)


def test_the_gradient_vanishes_at_the_fit():
    x, truth, prior = problem(100)
    y = x @ truth.T + torch.randn(100, 7, generator=torch.Generator().manual_seed(5))
    w = fit_towards(x, y, prior, ridge=0.1).double()
    x, y = x.double(), y.double()
    strength = 0.1 * (x.T @ x).diagonal().mean()
    gradient = (x @ w.T - y).T @ x + strength * (w - prior.double())
    at_prior = (x @ prior.double().T - y).T @ x
    assert gradient.norm() < 1e-5 * at_prior.norm()
