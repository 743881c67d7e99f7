"""The hierarchical prior: the best q(m) found numerically, its limits, its place in a network."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import nn

import mcrepar
from mcrepar import ParameterError, bayesian, kl_divergence, posterior, prior
from tests.conftest import example_posterior, pairs_with, seeded

POSTERIORS = [q for q, p in pairs_with("exact") if p == "hierarchical"]


def joint(mean: float, variance: float, entropy: float, v: float, v_m: float) -> float:
    """The minimum over a Normal q(m) of KL(q(w) q(m) || p(w | m) p(m)), found by a search."""

    def bound(parameters: np.ndarray) -> float:
        centre, log_std = parameters
        spread = math.exp(2 * log_std)
        given = 0.5 * math.log(2 * math.pi * v) + (variance + (mean - centre) ** 2 + spread) / (2 * v)
        of_m = 0.5 * math.log(2 * math.pi * v_m) + (centre**2 + spread) / (2 * v_m)
        return -entropy - 0.5 * math.log(2 * math.pi * math.e) - log_std + given + of_m

    found = optimize.minimize(
        bound, [0.1, -1.0], method="Nelder-Mead", options={"xatol": 1e-11, "fatol": 1e-13, "maxiter": 4000}
    )
    return float(found.fun)


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_kl_is_the_collapsed_bound_of_every_posterior(name):
    """For mean, variance and entropy of one weight of any family, to 1e-8 of the value."""
    q = example_posterior(name, 1, seed=2, vary=True)
    p = prior("hierarchical", scale=0.3, loc_scale=0.8)
    entropy = -float(kl_divergence(q, prior("normal", scale=100.0), "exact"))
    wide = prior("normal", scale=100.0)
    entropy -= float(wide.density.constant - (float(q.mean) ** 2 + float(q.stddev) ** 2) / 2e4)
    expected = joint(float(q.mean), float(q.stddev) ** 2, entropy, 0.09, 0.64)
    assert float(kl_divergence(q, p, "exact")) == pytest.approx(expected, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("method", ["stats", "repar", "stream", "regen", "direct"])
@pytest.mark.parametrize("name", ["normal", "radial", "gamma", "lognormal"])
def test_the_penalty_on_the_variance_is_never_sampled(name, method):
    """With the same noise, hierarchical minus the wide Normal prior is one number, whatever the draws."""
    q = example_posterior(name, 50, seed=1, vary=True)
    if method not in mcrepar.explain(q, prior("hierarchical")).methods:
        pytest.skip("the pair has no tuple")
    narrow, wide = prior("hierarchical", scale=0.3, loc_scale=0.4), prior("normal", scale=0.5)
    found = [
        float(kl_divergence(q, p, method, n_mc_iter=40, generator=seeded(3))) for p in (narrow, wide)
    ]  # scale^2 + loc_scale^2 = 0.25
    penalty = float((q.stddev**2).sum()) * (1 - 0.09 / 0.25) / (2 * 0.09)
    assert found[0] - found[1] == pytest.approx(penalty, rel=1e-10)


def test_without_a_spread_of_its_mean_it_is_the_normal_prior():
    q = example_posterior("normal", 5, seed=1, vary=True)
    same = kl_divergence(q, prior("normal", scale=0.3))
    assert float(kl_divergence(q, prior("hierarchical", scale=0.3, loc_scale=1e-9))) == pytest.approx(float(same))


def test_with_a_wide_mean_its_gradient_is_that_of_a_tied_mean():
    q = example_posterior("normal", 5, seed=1, vary=True, requires_grad=True)
    tied, wide = prior("normal", loc=q.loc.detach(), scale=0.3), prior("hierarchical", scale=0.3, loc_scale=1e6)
    expected, found = (torch.autograd.grad(kl_divergence(q, p), q.learned) for p in (tied, wide))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_second_derivatives_are_those_of_the_formula():
    q = example_posterior("normal", 3, seed=1, requires_grad=True)
    value = kl_divergence(q, prior("hierarchical", scale=0.3, loc_scale=0.4))
    (first,) = torch.autograd.grad(value, q.scale, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), q.scale)
    torch.testing.assert_close(second, 1 / q.scale.detach() ** 2 + 1 / 0.09)


def test_lengths_relative_to_the_inputs_or_the_spread_of_a_tensor():
    """One number suits layers of different width; a saved network keeps the absolute numbers."""
    net = nn.Sequential(nn.Linear(100, 25), nn.Conv2d(4, 8, 3, bias=False), nn.ConvTranspose1d(9, 3, 4, bias=False))
    spreads = [float(p.detach().double().std()) for p in net.parameters()]
    for relative, units in (("fan_in", [0.1, 0.1, 1 / 6, 1 / 6]), ("spread", spreads)):
        bnn = bayesian(net, "normal", prior("hierarchical", scale=0.5, loc_scale=3.0, relative=relative))
        found = [latent.options.prior.values for latent in bnn.latents.values()]
        assert [v["scale"] for v in found] == pytest.approx([0.5 * u for u in units])
        assert [v["loc_scale"] for v in found] == pytest.approx([3.0 * u for u in units])
        net = bnn.to_module()


def test_what_only_a_network_fills_in_is_refused_elsewhere():
    q = posterior("normal", loc=torch.zeros(2), scale=torch.ones(2))
    with pytest.raises(ParameterError, match="relative to 'fan_in', which only a network fills in"):
        kl_divergence(q, prior("hierarchical", relative="fan_in"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: prior("hierarchical", scale="learned"), "a network does not learn it"),
        (lambda: prior("hierarchical", relative="fanin"), "there is no such unit. Use 'fan_in' or 'spread'"),
        (lambda: prior("gamma", relative="fan_in"), "none of its parameters is the size of a weight"),
        (lambda: prior("normal", scale="learned", relative="fan_in"), "is found by the network, and has no unit"),
        (
            lambda: bayesian(nn.Linear(2, 1), prior=prior("hierarchical", scale=torch.tensor(0.1, requires_grad=True))),
            "would fit them to the posterior",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ParameterError, match=message):
        make()
