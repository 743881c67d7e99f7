"""Bayesian linear regression, whose mean-field posterior and predictive distribution are known (float64)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import mcrepar
from mcrepar.likelihoods import Likelihood, Normal
from mcrepar.nn.preactivation import capture
from mcrepar.objective import elbo
from tests.conftest import seeded


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def trained(bnn: mcrepar.BayesianModule, likelihood: Likelihood, x: Tensor, y: Tensor) -> None:
    """To the optimum: with last_layer_draws="exact" the objective of a linear model is deterministic."""
    optimizer = torch.optim.LBFGS(
        bnn.parameters(), max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-16, line_search_fn="strong_wolfe"
    )

    def loss() -> float:
        optimizer.zero_grad()
        e = elbo(bnn, likelihood, x, y, data_size=len(x), last_layer_draws="exact")
        (e.loss * len(x)).backward()
        return float(e.loss.detach() * len(x))

    for _ in range(3):
        optimizer.step(loss)


def test_linear_regression_has_the_exact_mean_field_solution():
    scale, width, x = 0.7, 0.9, randn(30, 3)
    y = x @ randn(3, 2, seed=1) + 0.3 + scale * randn(30, 2, seed=2)
    torch.manual_seed(0)
    bnn = mcrepar.bayesian(nn.Linear(3, 2).double(), "normal", mcrepar.prior("normal", loc=0.0, scale=width))
    trained(bnn, Normal(scale), x, y)
    design = torch.cat([x, torch.ones(30, 1).double()], 1)
    precision = design.T @ design / scale**2 + torch.eye(4).double() / width**2
    mean = torch.linalg.solve(precision, design.T @ y / scale**2).T  # (outputs, weights and bias)
    std = precision.diagonal().rsqrt().expand(2, 4)
    for name, columns in (("weight", slice(0, 3)), ("bias", 3)):
        latent = bnn.latents[name]
        torch.testing.assert_close(latent.loc.data, mean[:, columns], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(latent.log_scale.exp().data, std[:, columns], atol=1e-6, rtol=1e-6)


def test_predictive_intervals_cover_at_their_nominal_rate():
    """1000 independent regressions, the outputs of one layer, with weights from the prior and orthogonal inputs.

    Then the mean-field posterior is the exact one and coverage is nominal: the number of covered points is
    Binomial(1000, level). |z| < 5: false alarms 6e-7 for each of two levels.
    """
    count, scale = 1000, 0.5
    x = torch.linalg.qr(randn(12, 3)).Q * 2
    truth = randn(count, 3, seed=1)
    y = x @ truth.T + scale * randn(12, count, seed=2)
    bnn = mcrepar.bayesian(nn.Linear(3, count, bias=False).double(), "normal", mcrepar.prior("normal", scale=1.0))
    trained(bnn, Normal(scale), x, y)
    new = randn(1, 3, seed=3)
    seen = (truth @ new[0] + scale * randn(count, seed=4)).squeeze()
    _, preactivation = capture([bnn], lambda: bnn(new))
    std = (preactivation.central_means(None)[1] + scale**2).sqrt().squeeze()
    z = (seen - preactivation.loc.squeeze()) / std
    for level in (0.5, 0.9):
        inside = float((z.abs() < math.sqrt(2) * torch.erfinv(torch.tensor(level))).sum())
        assert abs(inside - count * level) < 5 * math.sqrt(count * level * (1 - level))
