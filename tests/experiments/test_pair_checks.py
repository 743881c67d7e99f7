import dataclasses

import pytest
from scipy import stats

import mcrepar
from experiments.pair_checks import (
    divergence_ratio,
    example,
    integral,
    outside,
    quadrature_error,
    rank,
    sampled_z,
    tuples,
)
from mcrepar.distributions.prior import LogDensity
from tests.conftest import integral as scipy_integral


def test_the_quadrature_is_that_of_scipy():
    q = example("gamma", 1, concentration=2.5)
    gamma, prior = stats.gamma(2.5, scale=q.scale.item()), stats.rayleigh(scale=1.3)
    expected = scipy_integral(lambda w: gamma.pdf(w) * (gamma.logpdf(w) - prior.logpdf(w)), [1e-12, 1.0, 60.0])
    assert integral(q, mcrepar.prior("rayleigh", scale=1.3), 40.0) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(
    ("q", "p"), [("normal", "normal"), ("radial", "normal"), ("wald", "gamma"), ("error", "normal")]
)
def test_right_pairs_pass(q, p):
    one, several, made = example(q, 1), example(q, 3), mcrepar.prior(p)
    check = tuples(several, made, 0)
    assert max(check.value, check.gradient) < 1e-12
    assert check.bytes_few == check.bytes_many
    assert quadrature_error(one, made) < 1e-9
    assert abs(sampled_z(several, made, 20_000, 0)) < 5


def test_a_wrong_kl_is_noticed(monkeypatch):
    from experiments import pair_checks

    right = pair_checks.kl_divergence
    monkeypatch.setattr(pair_checks, "kl_divergence", lambda *args, **kw: right(*args, **kw) * 1.02 + 0.02)
    q, p = example("radial", 3), mcrepar.prior("normal")
    assert quadrature_error(example("radial", 1), p) > 1e-3
    assert abs(sampled_z(q, p, 200_000, 0)) > 5


@pytest.mark.parametrize(("p", "bound"), [("normal", 3), ("gamma", 3), ("lognormal", 3), ("inverse_gaussian", 4)])
def test_the_rank_of_a_kernel_with_a_tuple(p, bound):
    q = example("normal" if p == "normal" else "gamma", 1)
    made = mcrepar.prior(p, **({"loc": 0.3} if p == "normal" else {}))
    assert [rank(q, made, size, 1) for size in (20, 60)] == [bound, bound]


@pytest.mark.parametrize("p", ["laplace", "logistic", "cauchy"])
def test_the_rank_of_a_kernel_without_one_grows(p):
    few, many = (rank(example("normal", 1), mcrepar.prior(p), size, 1) for size in (20, 60))
    assert 8 < few < many


@pytest.mark.parametrize("q", ["normal", "laplace", "logistic", "radial"])
def test_a_joint_kernel_is_taken_of_two_weights(q):
    """That of -r^2 / 2 - log r grows; without log r it would have 1, and 2 for each weight, products."""
    p = mcrepar.prior("radial")
    few, many = (rank(example(q, 1), p, size, 1) for size in (20, 60))
    assert 8 < few < many
    assert [rank(example(q, 1), without_log(p), size, 1) for size in (20, 60)] == [5, 5]


def without_log(p: mcrepar.Prior) -> mcrepar.Prior:
    """A Radial prior whose joint term is a square."""
    (term,) = p.density.terms
    square = dataclasses.replace(term.statistic, fn=lambda u: -u.square().sum(-1) / 2)
    return dataclasses.replace(p, build=lambda values: LogDensity((dataclasses.replace(term, statistic=square),)))


def test_divergent_and_convergent_integrals():
    diverging = divergence_ratio(example("exponential", 1), mcrepar.prior("inverse_gamma"))
    assert diverging == pytest.approx(1.0, abs=0.01)
    assert divergence_ratio(example("gamma", 1, concentration=2.5), mcrepar.prior("inverse_gamma")) < 0.01
    assert divergence_ratio(example("horseshoe", 1, slab=None), mcrepar.prior("normal")) > 1000


def test_draws_outside_a_support():
    """P(w <= 0) for three weights N(0.4, 0.6^2), N(0.25, 0.75^2), N(0.1, 0.9^2), within 5 standard errors."""
    q = example("normal", 3)
    parts = zip(q.loc.tolist(), q.scale.tolist(), strict=True)
    inside = 1.0
    for loc, scale in parts:
        inside *= 1 - stats.norm(loc, scale).cdf(0)
    share = outside(q, mcrepar.prior("exponential"), 0)
    assert share == pytest.approx(1 - inside, abs=5 * (inside * (1 - inside) / 10_000) ** 0.5)
    assert outside(q, mcrepar.prior("normal"), 0) == 0
    assert outside(example("gamma", 3), mcrepar.prior("dirichlet"), 0) == 1
