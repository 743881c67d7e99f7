"""The densities against scipy and integrals, the estimates against the library, and bounded work."""

import math

import numpy as np
import pytest
import torch

import mcrepar
from mcrepar.divergence.methods import METHODS
from mcrepar.errors import SupportMismatchError
from mcrepar.workbench.app import pair_curves
from mcrepar.workbench.app.pair_curves import MOST_DRAWS, estimates, weight_densities
from mcrepar.workbench.app.taylor_warning import without_taylor_warning
from tests.conftest import example_prior, scipy_posterior, scipy_prior


def equal(name: str, weights: int = 20, loc: float = 0.4, scale: float = 0.3, **fixed: float) -> mcrepar.Posterior:
    start = {"loc": loc, "scale": scale}
    learned = {n: torch.full((weights,), start[n], dtype=torch.float64) for n in mcrepar.POSTERIORS[name].learned}
    return mcrepar.posterior(name, **learned, **fixed)


@pytest.mark.parametrize("name", mcrepar.POSTERIORS)
def test_the_posterior_s_curve_is_a_density(name):
    curve, _ = weight_densities(equal(name), example_prior("normal"), points=2001)
    assert (curve.y >= 0).all()
    assert 0.93 < np.trapezoid(curve.y, curve.x) <= 1.02  # the place holds 99 % of the draws, and then some
    reference = scipy_posterior(equal(name, 1))
    if reference is not None and not curve.drawn:
        np.testing.assert_allclose(curve.y[1:], np.exp(reference[0].logpdf(curve.x[1:])), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", mcrepar.PRIORS)
def test_the_prior_s_curve_is_its_density(name):
    q, p = equal("gamma" if name not in ("normal", "laplace") else "normal"), example_prior(name)
    _, curve = weight_densities(q, p)
    reference = scipy_prior(p)
    if reference is not None:
        np.testing.assert_allclose(curve.y[1:], np.exp(reference.logpdf(curve.x[1:])), rtol=1e-6, atol=1e-9)
    assert curve.drawn == (name == "radial")


def test_a_joint_prior_is_drawn_as_the_posterior_of_its_name():
    q = equal("radial", weights=30, loc=0.0, scale=1.0)
    ours, theirs = weight_densities(q, mcrepar.prior("radial", loc=0.0, scale=1.0))
    assert ours.drawn
    np.testing.assert_allclose(ours.y, theirs.y)  # the same seed, the same distribution


@pytest.mark.parametrize(("loc", "scale"), [(1e6, 1e-6), (-1e6, 1e6), (0.0, 1e-6)])
@pytest.mark.parametrize("name", ["normal", "radial", "lognormal", "horseshoe"])
def test_extreme_places_are_still_drawn(name, loc, scale):
    ours, theirs = weight_densities(equal(name, loc=loc, scale=scale), example_prior("normal"))
    assert np.isfinite(ours.x).all()
    assert (np.diff(ours.x) >= 0).all()
    assert np.isfinite(theirs.y).all()


@pytest.mark.parametrize(("q", "p"), [("radial", "normal"), ("gamma", "inverse_gaussian"), ("normal", "laplace")])
def test_estimates_are_the_library_s(q, p):
    posterior, prior = equal(q), mcrepar.prior(p)
    found = estimates(posterior, prior, up_to=100, seed=3, points=3)
    plan = mcrepar.explain(posterior, prior)
    assert list(found) == list(METHODS)
    assert [m for m, e in found.items() if e.values] == list(plan.methods)
    exact = mcrepar.kl_divergence(posterior, prior, method="exact").item()
    assert found["exact"].values == [exact]
    for place, method in enumerate(METHODS):
        if METHODS[method].samples and method in plan.methods:
            assert found[method].draws == [1, 10, 100]
            generator = torch.Generator().manual_seed(3000 + place)
            with without_taylor_warning():
                first = mcrepar.kl_divergence(posterior, prior, method, 1, generator=generator).item()
            assert found[method].values[0] == first


def test_what_does_not_apply_says_why():
    found = estimates(equal("radial"), mcrepar.prior("exponential"), 10)
    assert all(isinstance(e.refusal, SupportMismatchError) for e in found.values())
    found = estimates(equal("rayleigh"), mcrepar.prior("inverse_gamma"), 10)  # right, but without variance
    assert found["exact"].values
    assert "infinite variance" in found["stats"].refusal.why


@pytest.mark.parametrize("up_to", [10**6, 10**3])
@pytest.mark.parametrize(("name", "fixed"), [("weibull", {"concentration": 0.05}), ("gamma", {}), ("radial", {})])
def test_the_work_is_bounded(name, fixed, up_to, monkeypatch):
    asked = []
    monkeypatch.setattr(
        pair_curves, "_estimate", lambda q, p, method, draws, generator: asked.append((method, draws)) or 1.0
    )
    q, p = equal(name, weights=1000, **fixed), mcrepar.prior("normal")
    estimates(q, p, up_to)
    distribution = mcrepar.explain(q, p).means_distribution
    for method, draws in asked:
        drawn = METHODS[method].samples and (method != "stats" or draws < distribution.from_draws)
        assert not drawn or draws * q.numel <= MOST_DRAWS
    assert name == "weibull" or ("stats", up_to) in asked  # which costs the same for any M


def test_another_seed_is_another_noise():
    q, p = equal("normal"), mcrepar.prior("normal")
    one, same, other = (estimates(q, p, 10, seed)["stats"].values for seed in (0, 0, 1))
    assert one == same
    assert not any(math.isclose(a, b) for a, b in zip(one, other, strict=True))
