"""The paper's fallback: right coefficients, the bias that D3 predicts, and refusals.

|z| < 5 raises a false alarm with probability 6e-7 for another seed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special
from scipy.integrate import quad as scipy_quad

import mcrepar
from mcrepar import (
    InfiniteVarianceError,
    McreparError,
    MethodError,
    ParameterError,
    TaylorWarning,
    posterior,
    prior,
)
from mcrepar.distributions.forms import EXP, Form
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.taylor import polynomial
from tests.conftest import example_posterior, seeded, z_score

LINE, HALF_LINE = Form(learned_loc=True), Form(learned_loc=False)
SOFTPLUS = [math.log(2), -1 / 2, 1 / 8, 0.0, -1 / 192, 0.0, 1 / 2880, 0.0, -17 / 645120]


def coefficients(term, form, degree, point=None, positive=False) -> list[float]:
    """Those of (x - c)^k, with the term's own coefficient."""
    parts = polynomial(term, form, degree, point, positive, False)
    assert [part.statistic for part in parts] == [Monomial(float(k)) for k in range(len(parts))]
    return [float(part.coefficient) for part in parts]


def test_log_about_one():
    """(-1)^(k+1) / k, without a constant: not the 1/k! of the paper."""
    log, _ = prior("gamma", concentration=2.0).density.terms
    found = coefficients(log, HALF_LINE, 6, positive=True)
    assert found == pytest.approx([0.0] + [(-1) ** (k + 1) / k for k in range(1, 7)], abs=1e-15)


@pytest.mark.parametrize("point", [0.5, 2.0])
def test_log_about_another_point(point):
    log, _ = prior("gamma", concentration=2.0).density.terms
    found = coefficients(log, HALF_LINE, 5, point, positive=True)
    expected = [math.log(point)] + [(-1) ** (k + 1) / (k * point**k) for k in range(1, 6)]
    assert found == pytest.approx(expected, rel=1e-13)


def test_softplus_about_zero():
    """log 2, -1/2, 1/8, 0, -1/192: the paper's 1/4 is 1/8, and there is no cubic term."""
    _, softplus = prior("logistic").density.terms
    found = coefficients(softplus, LINE, 8)
    assert found == pytest.approx([-2 * a for a in SOFTPLUS], abs=1e-14)


@pytest.mark.parametrize(
    "name", ["cauchy", "student_t", "mixture", "horseshoe", "error", "weibull", "lognormal", "wald"]
)
def test_polynomials_are_close_near_their_point(name):
    """The remainder of degree 6 at distance 0.05 of the centre is that of a Taylor polynomial, for every term."""
    p = (
        prior("mixture", scale2=0.5)
        if name == "mixture"
        else prior("horseshoe", softening=0.5)
        if name == "horseshoe"
        else prior(name)
    )
    positive = p.support.lower == 0
    form, point = (HALF_LINE, 1.0) if positive else (LINE, 0.6)
    for term in p.density.terms:
        parts = polynomial(term, form, 6, point, positive, False)
        w = torch.tensor([point - 0.05, point, point + 0.05], dtype=torch.float64)
        found = sum(part(w) for part in parts)
        torch.testing.assert_close(found, term(w), rtol=1e-6, atol=1e-7)


def test_polynomials_under_an_exponential_map_are_in_the_log():
    """w = e^v about v = 0: 1 / k!."""
    (term,) = prior("exponential").density.terms
    found = coefficients(term, Form(True, EXP), 5, positive=True)
    assert found == pytest.approx([-1 / math.factorial(k) for k in range(6)], rel=1e-12)
    _, square = prior("lognormal").density.terms
    (kept,) = polynomial(square, Form(True, EXP), 5, None, True, False)
    assert kept.statistic == Monomial(2.0), "(log w)^2 is a polynomial already"


def test_polynomials_are_kept_as_they_are():
    (term,) = prior("normal", loc=0.3).density.terms
    (kept,) = polynomial(term, LINE, 7, None, False, False)
    assert (kept.statistic, kept.center) == (Monomial(2.0), 0.3)


def bias(b: float, degree: int) -> float:
    """E of the polynomial of log(1 + e^-(b xi)) under N(0, 1), less the true value."""
    _, softplus = prior("logistic").density.terms
    found = coefficients(softplus, LINE, degree)
    moments = [0.0 if k % 2 else float(special.factorial2(k - 1)) if k else 1.0 for k in range(degree + 1)]
    polynomial_mean = sum(a * b**k * m for k, (a, m) in enumerate(zip(found, moments, strict=True))) / -2
    true, _ = scipy_quad(lambda z: np.logaddexp(0, -b * z) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi), -12, 12)
    return abs(polynomial_mean - true)


def test_bias_falls_and_rises_with_the_degree():
    """math.md D3: at b = 1 degree 8 is good to 2e-3; at b = 2 no degree is better than 0.12, and 8 is the worst."""
    narrow = [bias(1.0, degree) for degree in (2, 4, 6, 8)]
    assert narrow == sorted(narrow, reverse=True)
    assert narrow[-1] < 2e-3
    wide = [bias(2.0, degree) for degree in (2, 4, 6, 8)]
    assert min(wide) > 0.1
    assert wide[3] > wide[2] > wide[1]
    tiny = [bias(0.3, degree) for degree in (2, 4, 6, 8)]
    assert tiny[-1] < 1e-7


@pytest.mark.parametrize("degree", [2, 4])
def test_taylor_is_the_mean_of_its_polynomial(degree):
    """The value over many seeds has the expectation of the polynomial, not that of the KL."""
    q = posterior("normal", loc=torch.zeros(50).double(), scale=torch.ones(50).double())
    p, rng = prior("logistic"), seeded(0)
    with pytest.warns(TaylorWarning, match=f"degree {degree} is biased"):
        drawn = torch.stack(
            [mcrepar.kl_divergence(q, p, "taylor", 50, degree=degree, generator=rng) for _ in range(200)]
        )
    exact = mcrepar.kl_divergence(q, p, "quad").item()
    signs = {2: 1, 4: -1}  # the polynomial of degree 2 lies above the softplus, that of degree 4 below
    assert abs(z_score(drawn, exact + signs[degree] * 2 * 50 * bias(1.0, degree))) < 5
    assert abs(z_score(drawn, exact)) > 5


@pytest.mark.filterwarnings("ignore::mcrepar.errors.TaylorWarning")
def test_taylor_of_a_polynomial_is_repar():
    """The same noise, the same number: for a Normal prior nothing is approximated."""
    q, p = example_posterior("laplace", 5), prior("normal", loc=0.2)
    one, other = (mcrepar.kl_divergence(q, p, m, 30, generator=seeded(4)) for m in ("taylor", "repar"))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore::mcrepar.errors.TaylorWarning")
@pytest.mark.parametrize("p", ["logistic", "cauchy", "student_t"])
def test_taylor_gradients_are_those_of_the_polynomial(p):
    """In the posterior's and in the prior's learned parameters, by finite differences on the same noise."""
    scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    q = example_posterior("normal", 2, requires_grad=True)

    def divergence(loc, sigma, scale):
        made = posterior("normal", loc=loc, scale=sigma)
        return mcrepar.kl_divergence(made, prior(p, scale=scale), "taylor", 5, degree=3, generator=seeded(1))

    assert torch.autograd.gradcheck(divergence, (*q.learned, scale), atol=1e-6)


@pytest.mark.filterwarnings("ignore::mcrepar.errors.TaylorWarning")
def test_taylor_gradients_do_not_change_with_the_number_of_draws_kept():
    q = example_posterior("gamma", 3, requires_grad=True)
    value = mcrepar.kl_divergence(q, prior("lognormal"), "taylor", 4, degree=3, generator=seeded(2))
    (gradient,) = torch.autograd.grad(value, q.learned)
    assert bool(gradient.isfinite().all())


@pytest.mark.filterwarnings("ignore::mcrepar.errors.TaylorWarning")
@pytest.mark.parametrize(
    ("q", "p", "options", "error", "why"),
    [
        ("gamma", "gamma", {"center": -1.0}, ParameterError, "not analytic there.*positive center"),
        ("gamma", "wald", {"center": 0.0}, ParameterError, "not analytic there"),
        ("normal", "logistic", {"degree": 9}, MethodError, "one by one, up to 8"),
        ("normal", "logistic", {"degree": 0}, ParameterError, "degree=0"),
        ("normal", "logistic", {"degree": 2.0}, ParameterError, "degree=2.0.*float"),
        ("normal", "logistic", {"center": math.inf}, ParameterError, "center=inf"),
        ("inverse_gamma", "gamma", {"degree": 2}, InfiniteVarianceError, r"E \|xi\|\^4"),
        ("inverse_gamma", "gamma", {"degree": 4}, MethodError, "moments.*up to 4"),
        ("horseshoe", "cauchy", {"slab": None, "degree": 2}, MethodError, "no mean"),
        ("horseshoe", "cauchy", {"slab": None}, MethodError, "no mean"),
    ],
)
def test_refusals(q, p, options, error, why):
    fixed = {"slab": None} if "slab" in options else {}
    options = {n: v for n, v in options.items() if n != "slab"}
    with pytest.raises(error, match=why):
        mcrepar.kl_divergence(example_posterior(q, **fixed), prior(p), "taylor", 5, **options)


@pytest.mark.parametrize("p", ["laplace", "radial", "error"])
def test_kinks_and_joint_distributions_have_no_series(p):
    """|w|^c has no derivative at its centre, and the norm is no function of one weight."""
    plan = mcrepar.explain("normal", p)
    assert "taylor" not in plan.methods
    with pytest.raises(McreparError, match=r"taylor"):
        mcrepar.kl_divergence(example_posterior("normal"), prior(p), "taylor", 5)


def test_only_taylor_has_a_degree_and_a_center():
    for option in ({"degree": 3}, {"center": 0.5}):
        with pytest.raises(MethodError, match="only taylor has it"):
            mcrepar.kl_divergence(example_posterior("normal"), prior("normal"), "repar", 5, **option)
