"""`exact` against integrals of scipy's densities, torch's own KL, finite differences and known optima, over all pairs.

A new row of either table is tested by being there. Seeds are fixed; |z| < 5 raises a false alarm with probability
6e-7 for another seed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.distributions as td

import mcrepar
from mcrepar import POSTERIORS, PRIORS, MethodError
from tests.conftest import (
    example_posterior,
    example_prior,
    integral,
    pairs_with,
    scipy_posterior,
    scipy_prior,
    seeded,
    variance_penalty,
    z_score,
)

EXACT = pairs_with("exact")
ELEMENTWISE = [(q, p) for q, p in EXACT if not mcrepar.posterior(q).noise.joint]
KERNELS = [(q, p) for q in POSTERIORS for p, row in PRIORS.items() if row.kernel and POSTERIORS[q].support.lower >= 0]


def over(pairs=EXACT):
    return pytest.mark.parametrize(("q_name", "p_name"), pairs)


def exact(q: mcrepar.Posterior, p: object) -> torch.Tensor:
    return mcrepar.kl_divergence(q, p, "exact")


def fitting(q: mcrepar.Posterior, p_name: str, seed: int | None, **given) -> mcrepar.Prior:
    """A prior for which the pair has a closed form.

    A random location off 0 may cost it; and where it holds for some values only, the prior is the posterior itself.
    """
    p = example_prior(p_name, seed=seed, **given)
    if "exact" not in mcrepar.explain(q, p).methods:
        p = example_prior(p_name, seed=seed, loc=0.0, **given)
    try:
        exact(q, p)
    except MethodError:  # closed at some values only
        other, parameters = q.row.same_prior(q)
        assert other == p_name
        p = mcrepar.prior(other, **parameters)
    return p


def integrated(q: mcrepar.Posterior, p: mcrepar.Prior) -> float:
    """The sum over weights of the integral of q (log q - log p), from scipy's densities wherever it has them."""
    distributions = scipy_posterior(q)
    total = 0.0
    for i in range(q.numel):
        loc = float(q.loc if isinstance(q.loc, float) else q.loc.detach().flatten()[i])
        scale = float(q.scale.detach().flatten()[i])
        if distributions:
            levels = [1e-9, 1e-3, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999, 1 - 1e-9]
            log_q, middle = distributions[i].logpdf, [*distributions[i].ppf(levels)]
        else:  # a distribution that scipy lacks; tests/distributions/test_posteriors.py integrates it

            def log_q(w, loc=loc, scale=scale):
                xi = torch.as_tensor((w - loc) / scale)
                return (q.noise.log_density(xi) - math.log(scale)).numpy()

            middle = [loc + scale * x for x in (-30.0, -5.0, -1.0, -0.1, 0.0, 0.1, 1.0, 5.0, 30.0)]
        values = {n: v if isinstance(v, float) else float(torch.as_tensor(v).flatten()[i]) for n, v in p.values.items()}
        single = mcrepar.prior(p.name, **values, improper=p.improper)
        distribution = None if p.improper else scipy_prior(single)

        def log_p(w, distribution=distribution, single=single):
            return distribution.logpdf(w) if distribution else single.log_prob(torch.as_tensor(w)).numpy()

        def integrand(w, log_q=log_q, log_p=log_p):
            density = np.exp(log_q(w))
            return np.where(density > 0, density * np.where(density > 0, log_q(w) - log_p(w), 0.0), 0.0)

        support = q.row.support
        cuts = [support.lower, *middle, loc, values.get("loc", 0.0), support.upper]
        with np.errstate(all="ignore"):
            total += integral(integrand, [x for x in cuts if support.lower <= x <= support.upper])
    return total + float(variance_penalty(q, p))


# ---- values


@pytest.mark.parametrize("seed", [None, 1])
@over(ELEMENTWISE)
def test_exact_is_the_integral(q_name, p_name, seed):
    """With the defaults, and with random parameters, to 1e-7 of the value."""
    q = example_posterior(q_name, 2, seed=seed or 0, vary=seed is not None)
    p = fitting(q, p_name, seed)
    assert exact(q, p).item() == pytest.approx(integrated(q, p), rel=1e-7, abs=1e-8)


@over(KERNELS)
def test_kernels_are_the_integral_of_their_powers(q_name, p_name):
    q = example_posterior(q_name, 2, seed=3, vary=True)
    p = example_prior(p_name, seed=3, improper=True)
    assert exact(q, p).item() == pytest.approx(integrated(q, p), rel=1e-7, abs=1e-8)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [name for name, row in POSTERIORS.items() if row.same_prior])
def test_no_divergence_from_oneself(name, seed):
    """KL(q || q) = 0 for every family that is also a prior: 1e-12 a weight in closed form, 1e-10 by quadrature."""
    fixed = {"concentration": 1.0} if name == "expgamma" else {}  # a Pareto only then
    q = example_posterior(name, (2, 3), seed=seed, vary=True, **fixed)
    other, parameters = q.row.same_prior(q)
    p = mcrepar.prior(other, **parameters)
    value = mcrepar.kl_divergence(q, p)
    assert abs(value.item()) < (6e-12 if "exact" in mcrepar.explain(q, p).methods else 6e-10)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_raw_horseshoe_does_not_diverge_from_its_own_marginal(scale):
    """Its prior is softened, so only Monte Carlo applies: 0 within 5 standard errors, and not so at another scale."""
    learned = {"loc": torch.zeros(500).double(), "scale": torch.full((500,), scale).double()}
    q = mcrepar.posterior("horseshoe", slab=None, **learned)
    rng = seeded(0)

    def z(prior_scale):
        p = mcrepar.prior("horseshoe", scale=prior_scale, softening=1e-9)
        values = [mcrepar.kl_divergence(q, p, "stream", 10, generator=rng) for _ in range(100)]
        return z_score(torch.stack(values), 0.0)

    assert abs(z(scale)) < 5
    assert z(1.5 * scale) > 5


@over()
def test_divergence_is_not_negative(q_name, p_name):
    """1000 random weights together, 5 of them alone: locations to 3, scales over five orders of magnitude."""
    rng, prior = seeded(4), None
    for size in (1000, *[1] * 5):
        q = example_posterior(q_name, size, seed=size)
        spread = torch.randn(size, generator=rng, dtype=torch.float64)
        scale = q.scale * torch.exp(spread.clamp(max=0) if q.form.outer.name == "exp" else 2 * spread)
        learned = {"scale": scale}
        if "loc" in q.row.learned:
            learned["loc"] = 3 * torch.randn(size, generator=rng, dtype=torch.float64)
        q = q.bind(**learned)
        try:
            value = exact(q, prior if prior is not None else example_prior(p_name))
        except MethodError:  # closed at equal scales, or at equal locations
            _, parameters = q.row.same_prior(q)
            moved = parameters["loc"] + 0.5 if p_name == "logistic" else parameters["loc"]
            stretched = parameters["scale"] * (1.7 if p_name == "radial" else 1.0)
            value = exact(q, mcrepar.prior(p_name, loc=moved, scale=stretched))
        assert value.item() > 0
        assert math.isfinite(value.item())


# ---- torch's own KL, where it has the pair

TORCH: dict[str, object] = {
    "normal": lambda q: td.Normal(q.loc, q.scale),
    "laplace": lambda q: td.Laplace(q.loc, q.scale),
    "lognormal": lambda q: td.LogNormal(q.loc, q.scale),
    "exponential": lambda q: td.Exponential(1 / q.scale),
    "gamma": lambda q: td.Gamma(torch.tensor(q.fixed["concentration"]).double(), 1 / q.scale),
    "erlang": lambda q: td.Gamma(torch.tensor(q.fixed["concentration"]).double(), 1 / q.scale),
    "expgamma": lambda q: td.Pareto(torch.tensor(1.0).double(), 1 / q.scale),
}
LIKE = {name: row.like for name, row in PRIORS.items() if row.like} | {"erlang": td.Gamma}


def torch_prior(p: mcrepar.Prior) -> td.Distribution:
    return LIKE[p.name](**{n: torch.as_tensor(v, dtype=torch.float64) for n, v in p.values.items()})


def torch_knows(q_name: str, p_name: str) -> bool:
    if q_name not in TORCH or p_name not in LIKE:
        return False
    try:
        td.kl_divergence(TORCH[q_name](example_posterior(q_name)), torch_prior(example_prior(p_name)))
    except NotImplementedError:
        return False
    return True


KNOWN = [pair for pair in EXACT if torch_knows(*pair)]


def test_torch_knows_enough_pairs():
    assert {("normal", "normal"), ("laplace", "laplace"), ("gamma", "gamma"), ("exponential", "gamma")} <= set(KNOWN)
    assert len(KNOWN) >= 12


@pytest.mark.parametrize("seed", [1, 2])
@over(KNOWN)
def test_exact_is_torchs_own_divergence(q_name, p_name, seed):
    """Value and gradients, those of the prior's parameters too."""
    q = example_posterior(q_name, 4, requires_grad=True, seed=seed)
    p = example_prior(p_name, seed=seed, learned=True)
    inputs = [*q.learned, *p.values.values()]
    found, expected = exact(q, p), td.kl_divergence(TORCH[q_name](q), torch_prior(p)).sum()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    ours, theirs = (torch.autograd.grad(v, inputs, allow_unused=True) for v in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            torch.zeros(()).double() if mine is None else mine,
            torch.zeros(()).double() if other is None else other,
            rtol=1e-9,
            atol=1e-9,
        )


@pytest.mark.parametrize("seed", range(5))
def test_normal_normal_formula(seed):
    """log(b / s) - 1/2 + (s^2 + m^2) / (2 b^2) to 1e-12."""
    q, p = example_posterior("normal", 7, seed=seed), example_prior("normal", seed=seed)
    a, b = p.values["loc"], p.values["scale"]
    expected = (b / q.scale).log() - 0.5 + (q.scale**2 + (q.loc - a) ** 2) / (2 * b**2)
    assert exact(q, p).item() == pytest.approx(expected.sum().item(), rel=1e-12, abs=1e-12)


# ---- Radial x Normal


def radial(d: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> mcrepar.Posterior:
    return example_posterior("radial", d, dtype, requires_grad=True, seed=seed)


@pytest.mark.parametrize("d", [1, 2, 5, 20])
def test_radial_normal_is_the_mean_of_log_q_minus_log_p(d):
    q, p = radial(d), example_prior("normal", seed=5)
    w = q.draw(200_000, generator=seeded(d)).detach()
    sample = q.log_prob(w) - td.Normal(p.values["loc"], p.values["scale"]).log_prob(w).sum(-1)
    assert abs(z_score(sample.detach(), exact(q, p).item())) < 5


def test_radial_of_one_weight_is_the_normal():
    q, p = radial(1), example_prior("normal", seed=5)
    gaussian = mcrepar.posterior("normal", loc=q.loc, scale=q.scale)
    assert exact(q, p).item() == pytest.approx(exact(gaussian, p).item(), abs=1e-12)


@pytest.mark.parametrize("d", [2, 20, 1000])
def test_radial_normal_gradient(d):
    """d KL / d scale = -1 / s + s / (d b^2), d KL / d loc = (loc - a) / b^2, to 1e-12."""
    q, p = radial(d), example_prior("normal", seed=5)
    a, b = p.values["loc"], p.values["scale"]
    loc, scale = torch.autograd.grad(exact(q, p), q.learned)
    s = q.scale.detach()
    torch.testing.assert_close(scale, -1 / s + s / (d * b**2), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loc, (q.loc.detach() - a) / b**2, rtol=1e-12, atol=1e-12)


def test_radial_normal_of_a_million_weights():
    """The constant is of the order d log d: finite, and no gradient feels it, in single and double precision."""
    found = {}
    for dtype in (torch.float32, torch.float64):
        q = radial(10**6, dtype)
        value = exact(q, mcrepar.prior("normal", scale=0.5))
        found[dtype] = (value, *torch.autograd.grad(value, q.learned))
        assert all(bool(t.isfinite().all()) for t in found[dtype])
    for single, double in zip(*found.values(), strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=1e-6)


# ---- gradients


def unconstrained(q_name: str, p_name: str, log_scale: float | None, seed: int):
    """The KL as a function of the free parameters (loc, log_scale), and a point."""
    q = example_posterior(q_name, 2, seed=seed, log_scale=True, requires_grad=True)
    names = ["loc", "log_scale"] if "loc" in q.row.learned else ["log_scale"]
    point = [t.detach().clone().requires_grad_() for t in q.learned]
    if log_scale is not None:
        point[-1] = torch.full_like(point[-1], log_scale, requires_grad=True)
    p = fitting(q.bind(**dict(zip(names, point, strict=True))), p_name, seed)
    p = mcrepar.prior(p.name, **{n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in p.values.items()})

    def divergence(*free):
        return exact(q.bind(**dict(zip(names, free, strict=True))), p)

    return divergence, tuple(point)


CLOSED_AT_POINTS = ("logistic", "radial")  # exact there only, so no finite differences
SMOOTH = [(q, p) for q, p in EXACT if not (q == p and q in CLOSED_AT_POINTS)]


@over(SMOOTH)
def test_first_and_second_derivatives(q_name, p_name):
    """gradcheck and gradgradcheck in the unconstrained parameters."""
    divergence, point = unconstrained(q_name, p_name, None, seed=7)
    assert torch.autograd.gradcheck(divergence, point, atol=1e-6, rtol=1e-5)
    assert torch.autograd.gradgradcheck(divergence, point, atol=1e-5, rtol=1e-4)


@over()
def test_tiny_scales_stay_finite(q_name, p_name):
    """At log_scale = -10: a finite value and gradient, and the gradient is right where finite differences can tell."""
    divergence, point = unconstrained(q_name, p_name, -10.0, seed=8)
    value = divergence(*point)
    assert math.isfinite(value.item())
    gradients = torch.autograd.grad(value, point)
    assert all(bool(g.isfinite().all()) for g in gradients)
    if (q_name, p_name) in SMOOTH:
        size = max(1.0, abs(value.item()))
        assert torch.autograd.gradcheck(lambda *x: divergence(*x) / size, point, atol=1e-5, rtol=1e-4)


# ---- optima


def minimised(divergence, *start: torch.Tensor) -> list[torch.Tensor]:
    free = [t.double().requires_grad_() for t in start]
    optimizer = torch.optim.LBFGS(
        free, max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        value = divergence(*free)
        value.backward()
        return value

    optimizer.step(closure)
    return [t.detach() for t in free]


def test_normal_reaches_its_prior():
    p = mcrepar.prior("normal", loc=0.7, scale=0.2)
    loc, log_scale = minimised(
        lambda m, r: exact(mcrepar.posterior("normal", loc=m, log_scale=r), p), torch.zeros(3), torch.zeros(3)
    )
    torch.testing.assert_close(loc, torch.full_like(loc, 0.7), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(log_scale.exp(), torch.full_like(loc, 0.2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("d", [1, 4, 50])
def test_radial_reaches_a_scale_that_grows_with_its_size(d):
    """scale = b sqrt(d), leaving (gamma + log 2) / 2 = 0.635 nats per weight as d grows."""
    p = mcrepar.prior("normal", loc=-0.4, scale=0.2)
    loc, log_scale = minimised(
        lambda m, r: exact(mcrepar.posterior("radial", loc=m, log_scale=r), p), torch.zeros(d), torch.zeros(d)
    )
    torch.testing.assert_close(loc, torch.full_like(loc, -0.4), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(log_scale.exp(), torch.full_like(loc, 0.2 * math.sqrt(d)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("k", "a", "b"), [(2.5, 2.0, 1.0), (0.7, 3.0, 4.0)])
def test_gamma_reaches_the_mean_of_its_prior(k, a, b):
    """scale = a / (k b), the minimiser of -a log scale + b k scale."""
    p = mcrepar.prior("gamma", concentration=a, rate=b)
    (log_scale,) = minimised(
        lambda r: exact(mcrepar.posterior("gamma", concentration=k, log_scale=r), p), torch.zeros(2)
    )
    torch.testing.assert_close(log_scale.exp(), torch.full_like(log_scale, a / (k * b)), rtol=1e-6, atol=1e-6)
