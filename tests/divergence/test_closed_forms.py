"""Closed expectations of statistics without a tuple: |w - m|, the softplus at equal scales, powers of exp, the norm."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
import torch

import mcrepar
from mcrepar import MethodError, posterior, prior
from tests.conftest import example_posterior, integral, scipy_posterior, seeded, z_score

ABS = ("normal", "laplace", "logistic")


def exact(q, p):
    return mcrepar.kl_divergence(q, p, "exact")


def one(name: str, loc: float, scale: float) -> mcrepar.Posterior:
    learned = {"loc": loc, "scale": scale}
    return posterior(
        name, **{n: torch.tensor([v], dtype=torch.float64, requires_grad=True) for n, v in learned.items()}
    )


def mean(q: mcrepar.Posterior, fn, kinks=()) -> float:
    """E fn(W) of one weight, from scipy's density."""
    (distribution,) = scipy_posterior(q)
    middle = distribution.ppf([1e-12, 1e-6, 1e-3, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999, 1 - 1e-6, 1 - 1e-12])

    def integrand(w):
        density = np.exp(distribution.logpdf(w))
        return np.where(density > 0, density * np.where(density > 0, fn(w), 0.0), 0.0)

    with np.errstate(all="ignore"):
        return integral(integrand, [q.row.support.lower, *middle, *kinks, q.row.support.upper])


# ---- a Laplace prior


@pytest.mark.parametrize("name", ABS)
@pytest.mark.parametrize(
    ("loc", "scale", "m"),
    [
        (0.3, 0.3, 0.3),
        (0.7, 0.2, -0.1),
        (-2.0, 1.5, 0.4),
        (1e-8, 1.0, 0.0),
        (0.4, 1e-4, 0.1),
        (0.1, 1e-9, 0.1),
        (5.0, 40.0, 0.0),
    ],
)
def test_mean_distance_is_the_integral(name, loc, scale, m):
    """E |w - m| to 1e-8, with m at the centre, far from it and beside it, and with tiny scales."""
    q, b = one(name, loc, scale), 0.7
    found = exact(q, prior("laplace", loc=m, scale=b)).item()
    entropy = q.noise.entropy() + math.log(scale)
    distance = b * (found + entropy - math.log(2 * b))
    assert distance == pytest.approx(mean(q, lambda w: np.abs(w - m), [m]), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("name", ABS)
@pytest.mark.parametrize(("loc", "scale"), [(0.5, 0.3), (0.2, 0.5), (-1.0, 0.8), (0.2, 1e-3), (0.7, 1e-3)])
def test_mean_distance_gradients(name, loc, scale):
    """Finite differences, with loc = m = 0.2 and small scales among the points; away from m the second ones too."""
    p, q = prior("laplace", loc=0.2, scale=0.7), one(name, loc, scale)

    def divergence(loc, scale_):
        return scale * exact(posterior(name, loc=loc, scale=scale_), p)

    assert torch.autograd.gradcheck(divergence, q.learned, eps=1e-4 * scale, atol=1e-6, rtol=1e-5)
    if scale > 0.1 and loc != 0.2:
        assert torch.autograd.gradgradcheck(divergence, q.learned, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ABS)
def test_mean_distance_gradients_are_those_of_math(name):
    """d/dm and d/dsigma of E |m + sigma xi|, written out for Normal and Laplace (math.md D3)."""
    m, s = 0.4, 0.3
    q = one(name, m, s)
    loc, scale = torch.autograd.grad(exact(q, prior("laplace")), q.learned)
    x = m / s
    expected = {
        "normal": (math.erf(x / math.sqrt(2)), math.sqrt(2 / math.pi) * math.exp(-(x**2) / 2)),
        "laplace": (1 - math.exp(-x), (1 + x) * math.exp(-x)),
        "logistic": (math.tanh(x / 2), 2 * (math.log1p(math.exp(x)) - x / (1 + math.exp(-x)))),
    }[name]
    assert loc.item() == pytest.approx(expected[0], rel=1e-12)
    assert scale.item() == pytest.approx(expected[1] - 1 / s, rel=1e-12)


@pytest.mark.parametrize("name", ABS)
def test_mean_distance_is_flat_at_the_centre(name):
    q = one(name, 0.2, 0.5)
    slope, _ = torch.autograd.grad(exact(q, prior("laplace", loc=0.2, scale=0.7)), q.learned)
    assert slope.item() == 0


@pytest.mark.parametrize("name", ABS)
def test_mean_distance_is_curved_at_the_centre(name):
    """At loc = m the second derivative is that of the density, 2 q(m) / b."""
    q = one(name, 0.2, 0.5)
    value = exact(q, prior("laplace", loc=0.2, scale=0.7))
    (slope,) = torch.autograd.grad(value, q.learned[0], create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), q.learned[0])
    (distribution,) = scipy_posterior(q)
    assert bend.item() == pytest.approx(2 * distribution.pdf(0.2) / 0.7, rel=1e-9)


def test_laplace_laplace_formula():
    """log(b2 / b1) - 1 + (|D| + b1 e^(-|D| / b1)) / b2."""
    q, b2 = one("laplace", 0.9, 0.3), 0.5
    gap = 0.9 - 0.25
    expected = math.log(b2 / 0.3) - 1 + (gap + 0.3 * math.exp(-gap / 0.3)) / b2
    assert exact(q, prior("laplace", loc=0.25, scale=b2)).item() == pytest.approx(expected, rel=1e-12)


# ---- Logistic x Logistic


@pytest.mark.parametrize("scale", [0.05, 1.0, 3.0])
@pytest.mark.parametrize("gap", [0.0, 1e-9, 1e-5, 1e-4, 0.19, 0.21, 1.0, -1.0, 6.0, -30.0, 500.0])
def test_logistic_at_equal_scales(gap, scale):
    """D + 2 D / (e^D - 1) - 2 to 1e-9, D = (loc - m) / s."""
    q = one("logistic", 0.3 + gap * scale, scale)
    found = exact(q, prior("logistic", loc=0.3, scale=scale)).item()
    ratio = 1 - gap / 2 + gap**2 / 12 if abs(gap) < 1e-3 else gap / math.expm1(gap)
    assert found == pytest.approx(gap + 2 * ratio - 2, rel=1e-9, abs=1e-9)


def test_logistic_is_continuous_where_its_series_begins():
    p = prior("logistic")
    values = [exact(one("logistic", d, 1.0), p).item() for d in (-0.2 - 1e-9, -0.2 + 1e-9, 0.2 - 1e-9, 0.2 + 1e-9)]
    assert values[0] == pytest.approx(values[1], abs=1e-9)
    assert values[2] == pytest.approx(values[3], abs=1e-9)
    assert values[0] == pytest.approx(values[3], rel=1e-8), "the KL is even in D"


@pytest.mark.parametrize("gap", [0.0, 0.05, 1.0, -2.5])
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_logistic_gradient_at_equal_scales(gap, scale):
    """The closed form holds at one scale only, yet its gradient must be that of the KL: against the quadrature's."""
    m = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
    q, p = one("logistic", 0.3 + gap * scale, scale), prior("logistic", loc=m, scale=b)
    inputs = [*q.learned, m, b]
    found, expected = (torch.autograd.grad(mcrepar.kl_divergence(q, p, method), inputs) for method in ("exact", "quad"))
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.reshape(()), other.reshape(()), rtol=1e-6, atol=1e-6)


def test_quadrature_of_logistic_has_the_right_gradient():
    """The oracle of the test above against differences of scipy's integrals."""
    p = prior("logistic", loc=0.3, scale=0.4)
    q = one("logistic", 0.7, 0.4)
    found = torch.autograd.grad(mcrepar.kl_divergence(q, p, "quad"), q.learned)

    def integrated(loc, scale):
        moved = one("logistic", loc, scale)
        softplus = mean(moved, lambda w: np.logaddexp(0, -(w - 0.3) / 0.4))
        return -2 - math.log(scale) + math.log(0.4) + (loc - 0.3) / 0.4 + 2 * softplus

    h = 1e-4
    differences = [
        (integrated(0.7 + h, 0.4) - integrated(0.7 - h, 0.4)) / (2 * h),
        (integrated(0.7, 0.4 + h) - integrated(0.7, 0.4 - h)) / (2 * h),
    ]
    assert [g.item() for g in found] == pytest.approx(differences, rel=1e-6)


def test_logistic_at_other_scales_is_refused_by_exact_and_done_by_quad():
    q, p = one("logistic", 0.2, 0.5), prior("logistic", scale=0.6)
    with pytest.raises(MethodError, match=r"closed only if.*equal scales.*'quad' or 'stream'"):
        exact(q, p)
    assert mcrepar.kl_divergence(q, p, "quad").item() > 0


# ---- Radial x Radial


@pytest.mark.parametrize(("d", "s"), list(product((1, 2, 7, 1000), (0.5, 1.0, 1.8))))
def test_radial_radial_at_proportional_scales(d, s):
    """(s^2 - 1) / 2 - log s for every d."""
    q = example_posterior("radial", d, seed=d)
    p = prior("radial", loc=q.loc, scale=q.scale / s)
    assert exact(q, p).item() == pytest.approx((s * s - 1) / 2 - math.log(s), rel=1e-9, abs=1e-9)


def test_radial_radial_is_the_mean_of_log_q_minus_log_p():
    q = example_posterior("radial", 6, seed=1)
    p = prior("radial", loc=q.loc, scale=q.scale / 1.4)
    w = q.draw(100_000, generator=seeded(1))
    assert abs(z_score(q.log_prob(w) - p.log_prob(w), exact(q, p).item())) < 5


def test_radial_radial_gradient_is_that_of_monte_carlo():
    """In every scale, |z| < 5 (6e-7 each): the closed form is right to first order around its point."""
    q = example_posterior("radial", 5, requires_grad=True, seed=2)
    p = prior("radial", loc=q.loc.detach(), scale=q.scale.detach() / 1.4)
    (found,) = torch.autograd.grad(exact(q, p), q.free_scale)
    rng = seeded(3)
    drawn = [
        torch.autograd.grad(mcrepar.kl_divergence(q, p, "stream", 50, generator=rng), q.free_scale)[0]
        for _ in range(200)
    ]
    assert float(z_score(torch.stack(drawn), found).abs().max()) < 5


def test_radial_radial_elsewhere_is_refused_by_exact():
    q = example_posterior("radial", 5)
    for p in (prior("radial", loc=0.1, scale=q.scale), prior("radial", loc=q.loc, scale=q.scale**2)):
        with pytest.raises(MethodError, match="equal locations and proportional scales"):
            exact(q, p)


# ---- powers of w = exp(v)


@pytest.mark.parametrize("name", ["lognormal", "expgamma"])
@pytest.mark.parametrize(
    ("p", "fn"),
    [
        (prior("exponential", rate=2.0), lambda w: -2 * w),
        (prior("normal", loc=0.3), lambda w: -((w - 0.3) ** 2) / 2),
        (prior("error", power=4.0, loc=-0.2), lambda w: -((w + 0.2) ** 4)),
        (prior("rayleigh"), lambda w: np.log(w) - w**2 / 2),
        (prior("wald"), lambda w: -1.5 * np.log(w) - w / 2 - 1 / (2 * w)),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_powers_of_exponentials(name, p, fn):
    """E w^p = exp(p loc + p^2 scale^2 / 2), or (1 - p scale)^-k; polynomials around another centre by the binomial."""
    q = example_posterior(name, 1, seed=3)
    (distribution,) = scipy_posterior(q)
    expected = mean(q, distribution.logpdf) - mean(q, fn) - float(p.density.constant)
    assert exact(q, p).item() == pytest.approx(expected, rel=1e-8)


def test_quadrature_does_not_warn():
    """In a process of its own, for the warning comes once."""
    code = """if True:
        import torch, mcrepar
        q = mcrepar.posterior("normal", loc=torch.zeros(2).double(), scale=torch.ones(2).double())
        mcrepar.kl_divergence(q, mcrepar.prior("logistic"), "quad")
    """
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
