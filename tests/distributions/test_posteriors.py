"""Every row of POSTERIORS against scipy or its own integral: density, entropy, draws, moments, and itself as a prior.

A new row is tested by being in the table: without an entry in conftest's SCIPY_POSTERIORS its density must
integrate to 1 and its draws must follow that density. Seeds are fixed; for another seed a Kolmogorov-Smirnov test
raises a false alarm with probability 1e-4, |z| < 5 with 6e-7.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

import mcrepar
from mcrepar import POSTERIORS
from tests.conftest import example_posterior, integral, scipy_posterior, seeded, z_score

ELEMENTWISE = [name for name in POSTERIORS if not mcrepar.posterior(name).noise.joint]
JOINT = [name for name in POSTERIORS if name not in ELEMENTWISE]
VARIANTS = [(name, {}) for name in ELEMENTWISE] + [
    ("horseshoe", {"slab": None}),
    ("horseshoe", {"slab": 4.0}),
    ("gamma", {"concentration": 0.4}),
    ("inverse_gamma", {"concentration": 0.8}),
    ("weibull", {"concentration": 0.7}),
    ("wald", {"concentration": 5.0}),
    ("error", {"power": 4.0, "loc": -1.5}),
    ("error", {"power": 0.6}),
    ("expgamma", {"concentration": 2.5}),
    ("loggamma", {"concentration": 0.6}),
]
LEVELS = np.array([1e-4, 0.02, 0.2, 0.5, 0.8, 0.98, 1 - 1e-4])


def over(variants=VARIANTS):
    return pytest.mark.parametrize(("name", "fixed"), variants, ids=str)


def log_density(q: mcrepar.Posterior):
    """log q of one weight, numpy to numpy: scipy's where there is one, else the library's own."""
    distributions = scipy_posterior(q)
    return distributions[0].logpdf if distributions else lambda w: q.log_prob(torch.as_tensor(w)).numpy()


def cuts(q: mcrepar.Posterior) -> list[float]:
    """Where an integral over the distribution of one weight is cut: its ends, its middle, and around it."""
    distributions, support = scipy_posterior(q), q.row.support
    if distributions:
        return [support.lower, *distributions[0].ppf([1e-9, *LEVELS, 1 - 1e-9]), support.upper]
    steps = np.array([-1e3, -30.0, -5.0, -1.0, -0.1, 0.0, 0.1, 1.0, 5.0, 30.0, 1e3])
    middle = q.loc.item() + q.scale.item() * steps if support.lower < 0 else q.scale.item() * np.exp(steps / 30)
    return [support.lower, *middle, support.upper]


def expectation(q: mcrepar.Posterior, fn) -> float:
    """E fn(W) for one weight, by quadrature."""
    log_q = log_density(q)

    def integrand(w):
        density = np.exp(log_q(w))
        return np.where(density > 0, density * np.where(density > 0, fn(w), 0.0), 0.0)

    with np.errstate(all="ignore"):
        return integral(integrand, cuts(q))


def numeric_cdf(q: mcrepar.Posterior, w: np.ndarray) -> np.ndarray:
    """The distribution function of one weight on the line, by the trapezoid rule on loc + scale sinh(t)."""
    t = np.linspace(-18, 18, 40_000)
    x = q.loc.item() + q.scale.item() * np.sinh(t)
    density = np.exp(log_density(q)(x)) * q.scale.item() * np.cosh(t)
    steps = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * (t[1] - t[0]))])
    return np.interp(w, x, steps)


@pytest.mark.parametrize("vary", [False, True])
@over([v for v in VARIANTS if scipy_posterior(example_posterior(v[0]))])
def test_log_prob_is_that_of_scipy(name, fixed, vary):
    q = example_posterior(name, 3, seed=int(vary), vary=vary, **fixed)
    distributions = scipy_posterior(q)
    w = np.stack([each.ppf(LEVELS) for each in distributions], axis=1)  # (levels, weights)
    expected = np.stack([each.logpdf(column) for each, column in zip(distributions, w.T, strict=True)], axis=1)
    np.testing.assert_allclose(q.log_prob(torch.from_numpy(w)), expected, rtol=1e-9, atol=1e-9)


@over()
def test_density_integrates_to_one(name, fixed):
    q = example_posterior(name, 1, seed=5, **fixed)

    def density(w):
        return q.log_prob(torch.as_tensor(w)).exp().numpy()

    total = integral(density, cuts(q))
    assert total == pytest.approx(1, abs=2e-9)


@pytest.mark.parametrize("w", [-800.0, 800.0])
def test_loggamma_far_out(w):
    """k w - e^w - log Gamma(k) at scale 1, where e^w is 0 or infinite."""
    q = mcrepar.posterior("loggamma", concentration=2.5, scale=torch.ones(1, dtype=torch.float64))
    expected = 2.5 * w - math.lgamma(2.5) if w < 0 else -math.inf
    assert q.log_prob(torch.tensor([w], dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_radial_density_integrates_to_one(d):
    """In polar coordinates around loc, along five directions: area of the sphere * integral of rho^(d-1) q."""
    q = example_posterior("radial", d, seed=3)
    area = {1: 2.0, 2: 2 * math.pi, 3: 4 * math.pi}[d]
    for row in torch.randn(5, d, generator=seeded(0), dtype=torch.float64):
        direction = row / row.norm()

        def along(rho, direction=direction):
            rho = torch.as_tensor(rho)
            w = q.loc + q.scale * rho.reshape(-1, 1) * direction
            return (q.log_prob(w).exp().reshape(rho.shape) * q.scale.prod() * rho ** (d - 1)).numpy()

        assert area * integral(along, [0, 1, 4, 40]) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("vary", [False, True])
@over()
def test_entropy_is_that_of_quadrature(name, fixed, vary):
    """H0 + log scale + E log f' against -E log q, both expectations by quadrature."""
    q = example_posterior(name, 1, seed=2, vary=vary, **fixed)
    found = q.noise.entropy() + q.log_scale.item()
    if q.form.outer.slope is not None:
        coefficient, statistic = q.form.outer.slope
        found += coefficient * expectation(q, lambda w: statistic(q.form.outer.inverse(torch.as_tensor(w))).numpy())
    assert found == pytest.approx(-expectation(q, log_density(q)), abs=1e-7)


@over()
def test_draws_follow_the_density(name, fixed):
    q = example_posterior(name, 1, seed=1, **fixed)
    w = q.draw(20_000, generator=seeded(7)).flatten().numpy()
    distributions = scipy_posterior(q)
    distribution = distributions[0].cdf if distributions else lambda x: numeric_cdf(q, x)
    assert stats.kstest(w, distribution).pvalue > 1e-4


@pytest.mark.parametrize("d", [1, 2, 5, 400])
def test_radial_draws_have_a_normal_radius_and_a_uniform_direction(d):
    q = example_posterior("radial", d, seed=1)
    xi = (q.draw(20_000, generator=seeded(11)) - q.loc) / q.scale
    radius = xi.norm(dim=1)
    assert stats.kstest(radius.numpy(), stats.halfnorm.cdf).pvalue > 1e-4
    share = (xi[:, 0] / radius) ** 2
    if d > 1:
        assert stats.kstest(share.numpy(), stats.beta(0.5, (d - 1) / 2).cdf).pvalue > 1e-4
        assert abs(stats.spearmanr(radius.numpy(), share.numpy()).statistic) < 5 / math.sqrt(len(xi))
    assert abs(z_score(torch.sign(xi[:, 0]), 0.0)) < 5


@pytest.mark.parametrize("slab", [1.0, 2.0, None, 8.0])
def test_horseshoe_slab_moments(slab):
    """m2 = c^2 / (1 + c), m4 = 3 c^4 (2 + c) / (2 (1 + c)^2); for the default slab the std is `scale`."""
    fixed = {} if slab is None else {"slab": slab}
    q = example_posterior("horseshoe", 1, **fixed)
    c = q.fixed["slab"]
    second = expectation(q, lambda w: (w - q.loc.item()) ** 2) / q.scale.item() ** 2
    fourth = expectation(q, lambda w: (w - q.loc.item()) ** 4) / q.scale.item() ** 4
    assert second == pytest.approx(c**2 / (1 + c), rel=1e-8)
    assert fourth == pytest.approx(3 * c**4 * (2 + c) / (2 * (1 + c) ** 2), rel=1e-8)
    assert q.stddev.item() == pytest.approx(q.scale.item() * math.sqrt(second), rel=1e-8)
    if slab is None:
        assert second == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("vary", [False, True])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_mean_and_standard_deviation_are_those_of_quadrature(name, vary):
    q = example_posterior(name, 1, seed=4, vary=vary)
    mean = expectation(q, lambda w: w)
    assert q.mean.item() == pytest.approx(mean, rel=1e-7, abs=1e-9)
    std = math.sqrt(expectation(q, lambda w: (w - mean) ** 2))
    assert q.stddev.item() == pytest.approx(std, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "fixed", "mean", "std"),
    [
        ("horseshoe", {"slab": None}, False, False),
        ("inverse_gamma", {"concentration": 1.5}, True, False),
        ("inverse_gamma", {"concentration": 0.8}, False, False),
        ("inverse_gamma", {"concentration": 2.5}, True, True),
    ],
    ids=str,
)
def test_moments_that_do_not_exist_are_infinite(name, fixed, mean, std):
    q = example_posterior(name, **fixed)
    assert bool(q.mean.isfinite().all()) == mean
    assert bool(q.stddev.isfinite().all()) == std
    if not mean:
        assert bool(q.mean.isinf().all())
    if not std:
        assert bool(q.stddev.isinf().all())


@pytest.mark.parametrize(
    ("scale", "mean", "std"),
    [(0.4, True, True), (0.7, True, False), (1.3, False, False)],
)
def test_moments_of_expgamma_end_with_its_scale(scale, mean, std):
    """E w^p exists iff p * scale < 1."""
    q = mcrepar.posterior("expgamma", scale=torch.tensor([scale], dtype=torch.float64))
    assert (math.isfinite(q.mean.item()), math.isfinite(q.stddev.item())) == (mean, std)
    assert not (q.mean.isnan() | q.stddev.isnan()).any()


def test_radial_moments():
    """E xi_j^2 = 1 / d, so the standard deviation of a weight is scale / sqrt(d)."""
    q = example_posterior("radial", (4, 5))
    torch.testing.assert_close(q.stddev, q.scale / math.sqrt(20), rtol=1e-12, atol=0)
    torch.testing.assert_close(q.mean, q.loc, rtol=0, atol=0)


@pytest.mark.parametrize("name", [name for name, row in POSTERIORS.items() if row.same_prior])
def test_same_prior_names_a_prior_of_the_same_density(name):
    q = example_posterior(name, (2, 3), seed=8)
    other, parameters = q.row.same_prior(q)
    w = q.draw(50, generator=seeded(1))
    p = mcrepar.prior(other, **parameters)
    torch.testing.assert_close(p.log_prob(w), q.log_prob(w), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", POSTERIORS)
def test_scale_and_log_scale_are_one_parameter(name):
    q, other = (example_posterior(name, (2, 2), seed=9, log_scale=flag) for flag in (False, True))
    w = q.draw(4, generator=seeded(2))
    torch.testing.assert_close(other.draw(4, generator=seeded(2)), w)
    torch.testing.assert_close(other.log_prob(w), q.log_prob(w))
    assert [t.shape for t in q.learned] == [torch.Size((2, 2))] * len(q.row.learned)


@pytest.mark.parametrize("name", POSTERIORS)
def test_draws_are_differentiable_and_repeatable(name):
    """dW / dtheta by autograd is that of finite differences on the same noise."""
    q = example_posterior(name, 2, requires_grad=True, seed=6)

    def drawn(*learned):
        return q.bind(**dict(zip(q.row.learned, learned, strict=True))).draw(3, generator=seeded(5))

    assert torch.autograd.gradcheck(drawn, q.learned)
    assert drawn(*q.learned).shape == (3, 2)
    torch.testing.assert_close(drawn(*q.learned)[0], q.draw(3, generator=seeded(5))[0], rtol=0, atol=0)
    assert q.draw().shape == (2,)
    assert not torch.equal(q.draw(), q.draw()), "fresh noise at every draw"


@pytest.mark.parametrize("name", POSTERIORS)
def test_log_prob_gradient(name):
    q = example_posterior(name, 2, requires_grad=True, seed=10)
    w = q.draw(3, generator=seeded(3)).detach().requires_grad_()

    def density(w, *learned):
        return q.bind(**dict(zip(q.row.learned, learned, strict=True))).log_prob(w)

    assert torch.autograd.gradcheck(density, (w, *q.learned))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", POSTERIORS)
def test_everything_keeps_dtype_and_shape(name, dtype):
    q = example_posterior(name, (3, 2), dtype)
    assert (q.dtype, q.shape, q.numel, q.device.type) == (dtype, (3, 2), 6, "cpu")
    w = q.draw(4)
    assert (w.dtype, w.shape) == (dtype, (4, 3, 2))
    assert q.mean.dtype == q.stddev.dtype == dtype
    assert q.log_prob(w).shape == ((4,) if q.noise.joint else (4, 3, 2))
    assert bool(w.isfinite().all())


@pytest.mark.parametrize("name", POSTERIORS)
def test_draws_lie_in_the_support(name):
    q = example_posterior(name, 500, seed=12)
    w, support = q.draw(20, generator=seeded(0)), q.row.support
    assert support.lower <= w.min()
    assert w.max() <= support.upper
    if support.lower < 0:
        assert w.min() < 0


@pytest.mark.parametrize("name", ["exponential", "gamma", "wald", "lognormal", "expgamma", "rayleigh"])
def test_log_prob_outside_the_support_is_minus_infinity(name):
    q = example_posterior(name, 1)
    below = torch.tensor([POSTERIORS[name].support.lower - 0.5], dtype=torch.float64)
    assert q.log_prob(below).item() == -math.inf


def test_template_has_no_tensor_but_its_family():
    q = mcrepar.posterior("gamma", concentration=1.5)
    assert q.learned == ()
    with pytest.raises(mcrepar.MethodError, match=r"gamma template.*without learned parameters.*scale=tensor"):
        q.draw()
    bound = q.bind(scale=torch.ones(2))
    assert bound.fixed == {"concentration": 1.5}
    assert bound.mean.tolist() == [1.5, 1.5]


def test_radial_counts_the_weights_of_its_tensor():
    assert example_posterior("radial", (3, 5)).noise.size == 15
    with pytest.raises(AttributeError):
        _ = example_posterior("normal").noise.size


def test_raw_horseshoe_density_is_that_of_its_integral():
    """(2 pi^3)^(-1/2) e^y E1(y) with scipy's E1, at points where it neither over- nor underflows."""
    q = mcrepar.posterior("horseshoe", slab=None, loc=torch.zeros(1).double(), scale=torch.ones(1).double())
    x = torch.tensor([[1e-6], [1e-3], [0.3], [1.0], [3.0], [20.0]], dtype=torch.float64)
    y = (x**2 / 2).numpy()
    expected = np.log(np.exp(y) * special.exp1(y)) - 0.5 * math.log(2 * math.pi**3)
    np.testing.assert_allclose(q.log_prob(x), expected, rtol=1e-11, atol=1e-11)
