"""A plan: the size of the tuple, conditions for a finite KL and a finite variance, refusals, what auto takes."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

import mcrepar
from mcrepar import (
    InfiniteKLError,
    InfiniteVarianceError,
    InfiniteVarianceWarning,
    McreparError,
    MethodError,
    NoFiniteTupleError,
    SupportMismatchError,
    explain,
    kl_divergence,
    posterior,
    prior,
)
from mcrepar.divergence.plan import plan_pair
from tests.conftest import example_posterior, example_prior

METHODS = ("exact", "stats", "repar", "stream", "regen", "quad", "taylor", "direct")
SAMPLED = ("stats", "repar", "stream", "regen", "direct")


# ---- the size of the tuple


@pytest.mark.parametrize("q", ["normal", "laplace", "logistic", "horseshoe", "radial"])
def test_sizes_of_figure_4(q):
    """d_P of location-scale x Normal: 9 for three naive draws, 3 for any number, 9 for Taylor, 2 factored."""
    plan = explain(q, "normal")
    assert plan.d_P_direct(3) == 9
    assert plan.d_P == 3
    assert plan.d_P_taylor(3) == 9
    assert plan.d_P_direct(1, factored=True) == 2
    assert plan.d_P_direct(1000) == 3000
    assert plan.d_P_merged == 3


@pytest.mark.parametrize(
    ("q", "p", "total"),
    [
        ("exponential", prior("exponential"), 2),
        ("gamma", prior("inverse_gaussian"), 3),
        ("gamma", prior("normal", loc=0.3), 3),
        ("gamma", prior("normal"), 2),  # w^2 alone
        ("gamma", prior("lognormal"), 2),
        ("normal", prior("normal"), 4),
        ("laplace", prior("normal", loc=0.3), 4),
        ("loggamma", prior("normal"), 2),
        ("lognormal", prior("pareto", improper=True), 3),
        ("lognormal", prior("lognormal"), 6),
        ("wald", prior("wald"), 3),
        ("rayleigh", prior("rayleigh"), 2),
        ("weibull", prior("weibull"), 2),
    ],
    ids=str,
)
def test_sizes_with_the_entropy(q, p, total):
    """math.md E, function pair_nodes: {log scale} u {scale^p} u {(log scale)^2} and so on."""
    assert explain(q, p).d_P_total == total


@pytest.mark.parametrize(("degree", "q"), list(product((1, 2, 3, 5, 8), ("normal", "gamma"))))
def test_sizes_of_taylor_polynomials(degree, q):
    """binom(K + S, S) - 1."""
    plan = explain(q, "logistic" if q == "normal" else "gamma")
    learned = 2 if q == "normal" else 1
    assert plan.d_P_taylor(degree) == math.comb(degree + learned, learned) - 1


def test_sizes_are_unknown_without_a_tuple():
    plan = explain("normal", "laplace")
    assert plan.d_P is None
    assert plan.d_P_total is None
    assert plan.d_P_merged is None
    assert plan.d_P_direct(3) is None
    assert plan.d_P_direct(3, factored=True) == 6


def test_statistics_are_the_printed_tuple():
    assert explain("gamma", "inverse_gaussian").statistics == (
        ("log scale", "1"),
        ("1", "mean log xi"),
        ("scale", "mean xi"),
        ("scale^-1", "mean xi^-1"),
    )
    assert explain("normal", "normal").statistics == (
        ("loc^2", "1"),
        ("2 loc scale", "mean xi"),
        ("scale^2", "mean xi^2"),
    )


# ---- when the KL is finite, and when Monte Carlo has a variance (math.md C.1)

POWERS = {  # the highest and the lowest power of the weight in every prior on the half-line
    "exponential": (1, 0),
    "wald": (1, -1),
    "inverse_gaussian": (1, -1),
    "rayleigh": (2, 0),
    "chi_squared": (1, 0),
    "gamma": (1, 0),
    "erlang": (1, 0),
    "inverse_gamma": (0, -1),
    "weibull": (1.5, 0),
    "lognormal": (0, 0),
    "normal": (2, 0),
    "error": (1.5, 0),
    "laplace": (1, 0),
}
EDGES = {  # where E xi^p ends: p > -lower(k), p < upper(k)
    "gamma": (lambda k: k, lambda k: math.inf),
    "weibull": (lambda k: k, lambda k: math.inf),
    "inverse_gamma": (lambda k: math.inf, lambda k: k),
    "erlang": (lambda k: k, lambda k: math.inf),
}
SHAPES = {
    "gamma": (0.4, 0.5, 0.9, 1.0, 1.1, 1.9, 2.0, 2.1, 3.5),
    "weibull": (0.4, 0.5, 0.9, 1.0, 1.1, 1.6, 2.0, 2.1),
    "erlang": (1, 2, 3),
    "inverse_gamma": (0.5, 1.0, 1.1, 1.5, 1.6, 2.0, 2.1, 3.0, 3.1, 4.0, 4.1),
}


@pytest.mark.parametrize("p", POWERS)
@pytest.mark.parametrize("q", SHAPES)
def test_conditions_on_the_shape(q, p):
    """Finite iff every m_p is; Monte Carlo has a variance iff every m_2p is. The shapes lie on and around the edges."""
    high, low = POWERS[p]
    for k in SHAPES[q]:
        below, above = (edge(k) for edge in EDGES[q])
        plan = explain(posterior(q, concentration=k), p)
        finite = high < above and -low < below
        assert plan.finite == finite, (q, p, k)
        assert plan.verdict == (("X" if p == "lognormal" else "T1") if finite else "INF-M")
        if finite:
            assert bool(plan.infinite_variance) == (2 * high >= above or -2 * low >= below), (q, p, k)


@pytest.mark.parametrize(("k", "finite"), [(0.9, False), (1.0, False), (1.1, True)])
def test_gamma_wald_needs_a_shape_above_one(k, finite):
    q = example_posterior("gamma", concentration=k)
    if finite:
        assert math.isfinite(mcrepar.kl_divergence(q, prior("wald")).item())
        return
    for method in ("auto", *METHODS):
        with pytest.raises(InfiniteKLError, match=r"KL\(gamma \|\| wald\).*concentration > 1"):
            mcrepar.kl_divergence(q, prior("wald"), method)


@pytest.mark.parametrize("p", ["normal", "laplace", "logistic", "radial"])
def test_raw_horseshoe_has_no_moments(p):
    with pytest.raises(InfiniteKLError, match=r"horseshoe.*slab"):
        mcrepar.kl_divergence(example_posterior("horseshoe", slab=None), prior(p))
    assert mcrepar.kl_divergence(example_posterior("horseshoe"), prior(p)).isfinite()


@pytest.mark.parametrize("p", ["cauchy", "student_t", "horseshoe"])
def test_raw_horseshoe_has_a_divergence_from_heavy_tails(p):
    plan = explain(posterior("horseshoe", slab=None), p)
    assert plan.verdict == "N"
    assert mcrepar.kl_divergence(example_posterior("horseshoe", slab=None), prior(p), n_mc_iter=10).isfinite()


@pytest.mark.parametrize(("scale", "power"), [(0.99, 1), (1.0, 1), (1.2, 1), (0.49, 2), (0.5, 2)])
def test_expgamma_is_checked_at_every_call(scale, power):
    """E w^p exists iff p * scale < 1; the message gives the largest value, at one bad weight among good ones."""
    q = posterior("expgamma", scale=torch.tensor([0.1, scale, 0.2], dtype=torch.float64))
    p = prior("gamma") if power == 1 else prior("rayleigh")
    if power * scale < 1:
        assert mcrepar.kl_divergence(q, p).isfinite()
        with pytest.raises(InfiniteVarianceError, match="infinite variance"):
            mcrepar.kl_divergence(q, p, "stream", 10)
        return
    for method in ("auto", "exact", "stream"):
        with pytest.raises(InfiniteKLError, match=rf"scale < 1, but the largest is {power * scale:g}"):
            mcrepar.kl_divergence(q, p, method)


# ---- refusals


@pytest.mark.parametrize(
    ("q", "p"), [(q, p) for q, p in product(mcrepar.POSTERIORS, mcrepar.PRIORS) if explain(q, p).verdict == "INF-S"]
)
def test_support_mismatch_names_both_supports(q, p):
    made = example_posterior(q)
    for method in ("auto", "exact", "stream"):
        with pytest.raises(SupportMismatchError) as caught:
            mcrepar.kl_divergence(made, example_prior(p), method)
    message = str(caught.value)
    assert f"KL({q} || {p})" in message
    assert str(made.row.support) in message
    assert ("simplex" if mcrepar.PRIORS[p].simplex else str(example_prior(p).support)) in message


@pytest.mark.parametrize(
    ("q", "p"), [(q, p) for q, p in product(mcrepar.POSTERIORS, mcrepar.PRIORS) if explain(q, p).verdict == "N"]
)
def test_no_finite_tuple_for_stats_and_repar(q, p):
    for method in ("stats", "repar"):
        with pytest.raises(NoFiniteTupleError, match=rf"KL\({q} \|\| {p}\).*Use "):
            mcrepar.kl_divergence(example_posterior(q), example_prior(p), method, 10)


@pytest.mark.parametrize("method", SAMPLED)
def test_infinite_variance_must_be_forced(method):
    q, p = example_posterior("rayleigh", 50), prior("wald")
    with pytest.raises(InfiniteVarianceError, match=r"KL\(rayleigh \|\| wald\) by .*infinite variance.*'exact'"):
        mcrepar.kl_divergence(q, p, method, 10)
    with pytest.warns(InfiniteVarianceWarning, match="infinite variance"):
        assert mcrepar.kl_divergence(q, p, method, 10, force=True).isfinite()


def test_auto_takes_exact_where_monte_carlo_has_no_variance():
    q, p = example_posterior("rayleigh"), prior("wald")
    expected = mcrepar.kl_divergence(q, p, "exact")
    assert torch.equal(mcrepar.kl_divergence(q, p), expected)
    assert torch.equal(mcrepar.kl_divergence(q, p, n_mc_iter=10), expected)


@pytest.mark.parametrize(("q", "p"), list(product(mcrepar.POSTERIORS, mcrepar.PRIORS)))
def test_every_refusal_has_three_parts_and_every_method_an_answer(q, p):
    """A method that the plan lists runs; one that it does not list raises the plan's own refusal."""
    plan = explain(q, p)
    assert set(plan.methods) | set(plan.refusals) == set(METHODS)
    for method, error in plan.refusals.items():
        assert method not in plan.methods
        assert isinstance(error, McreparError)
        assert f"KL({q} || {p})" in error.asked
        assert error.why
        assert error.instead
    assert str(plan).startswith(f"KL({q} || {p}): {plan.verdict}")
    assert "Why: " in str(plan)


@pytest.mark.parametrize(("q", "p"), [("normal", "cauchy"), ("radial", "laplace"), ("gamma", "student_t")])
def test_exact_refuses_what_is_not_closed(q, p):
    with pytest.raises(MethodError, match=rf"KL\({q} \|\| {p}\) by exact.*Use"):
        mcrepar.kl_divergence(example_posterior(q), example_prior(p), "exact")


# ---- what auto takes (math.md H)


@pytest.mark.parametrize(
    ("q", "p", "plain", "drawn"),
    [
        ("normal", "normal", "exact", "stats"),
        ("radial", "normal", "exact", "stats"),
        ("gamma", "inverse_gaussian", "exact", "stats"),
        ("normal", "laplace", "exact", "stream"),
        ("normal", "logistic", "quad", "stream"),
        ("logistic", "logistic", "quad", "stream"),
        ("normal", "horseshoe", "quad", "stream"),
        ("radial", "laplace", "quad", "stream"),
        ("normal", "radial", "stream", "stream"),
        ("radial", "radial", "stream", "stream"),
        ("lognormal", "gamma", "exact", "stream"),
        ("horseshoe", "cauchy", "quad", "stream"),
    ],
)
def test_auto_follows_the_dispatch_rules(q, p, plain, drawn):
    from mcrepar.divergence.methods import Estimator

    plan = explain(q, p)
    assert plan.method == plain
    assert plan.decide(Estimator(n_mc_iter=1000)).method == drawn
    assert f"Default: {plain}" in str(plan)


def test_auto_draws_where_the_distribution_of_the_means_needs_more():
    from mcrepar.divergence.methods import Estimator

    plan = explain("radial", "normal")
    assert plan.means_distribution.from_draws > 1
    assert plan.decide(Estimator(n_mc_iter=plan.means_distribution.from_draws - 1)).method == "repar"
    assert plan.decide(Estimator(n_mc_iter=plan.means_distribution.from_draws)).method == "stats"


def test_plans_are_cached_on_families_not_on_values():
    one, other = (explain(example_posterior("gamma", 4, seed=s), prior("normal", scale=0.1 + s)) for s in (0, 1))
    assert one == other
    assert plan_pair(*one.sides) is plan_pair(*other.sides)
    assert explain(posterior("gamma", concentration=3.0), "normal") != one


def test_names_and_objects_are_the_same_question():
    assert explain("Gamma", "Inverse-Gaussian") == explain(posterior("gamma"), prior("inverse_gaussian"))
    assert explain("normal", torch.distributions.Normal(0.0, 1.0)).verdict == "T2"


@pytest.mark.parametrize(
    ("q", "p", "verdict"),
    [
        (posterior("error"), prior("error"), "T1"),  # the centres agree
        (posterior("error", loc=0.25), prior("error", power=4.0), "T2"),
        (posterior("error", loc=0.25), prior("error", power=3.0), "N"),
        (posterior("loggamma"), prior("error", power=2.0), "X"),
        (posterior("gamma"), prior("error", loc=0.3, power=2.0), "T1"),
        (posterior("gamma"), prior("error", loc=0.3, power=1.5), "N"),
        (posterior("gamma"), prior("laplace", loc=-0.3), "T1"),
        (posterior("gamma"), prior("laplace", loc=0.3), "N"),
        (posterior("expgamma"), prior("pareto", scale=0.5), "C1"),
        (posterior("expgamma"), prior("pareto", scale=1.5), "INF-S"),
    ],
)
def test_verdicts_that_depend_on_values(q, p, verdict):
    assert explain(q, p).verdict == verdict


@pytest.mark.parametrize("name", mcrepar.POSTERIORS)
def test_size_of_a_taylor_polynomial_is_the_binomial_for_every_posterior(name):
    """binom(K + S, S) - 1, with S = 2 learned parameters or 1."""
    learned = len(mcrepar.POSTERIORS[name].learned)
    assert explain(name, "normal").d_P_taylor(3) == math.comb(3 + learned, learned) - 1


# ---- degenerate cases


def test_terms_with_coefficient_0_are_no_terms():
    """chi_squared(2) is an exponential, weibull(1) too: d_P 1; a flat kernel has nothing to estimate."""
    for q, p in (
        ("exponential", prior("chi_squared", df=2)),
        ("gamma", prior("gamma", concentration=1.0)),
        ("wald", prior("weibull", concentration=1.0)),
    ):
        plan, exponential = explain(q, p), explain(q, "exponential")
        assert (plan.d_P, plan.d_P_total, plan.verdict) == (1, exponential.d_P_total, "T1")
    q = posterior("gamma", scale=torch.ones(2))
    flat = prior("dirichlet", concentration=1.0, improper=True)
    assert (explain(q, flat).verdict, explain(q, flat).d_P) == ("T1", 0)
    assert "log p(w) = constant." in str(explain(q, flat))
    entropy = q.noise.entropy() + q.log_scale
    for method in explain(q, flat).methods:
        if method != "taylor":
            assert kl_divergence(q, flat, method).item() == pytest.approx(-float(entropy.sum()), rel=1e-6)


def test_a_mixture_of_equal_scales_is_normal():
    q = posterior("laplace", loc=torch.zeros(3), scale=torch.ones(3))
    same, normal = prior("mixture", mix=0.3, scale1=0.7, scale2=0.7), prior("normal", scale=0.7)
    assert (explain(q, same).verdict, explain(q, same).method) == ("T2", "exact")
    assert kl_divergence(q, same) == kl_divergence(q, normal)
    assert explain("normal", "mixture").verdict == "N"


@pytest.mark.parametrize("name", ["normal", "laplace", "radial", "gamma"])
def test_a_radial_prior_over_one_weight_is_normal(name):
    learned = {n: torch.full((1,), 0.6, dtype=torch.float64) for n in mcrepar.POSTERIORS[name].learned}
    one, p = posterior(name, **learned), prior("radial", loc=0.2, scale=0.5)
    assert explain(one, p).verdict == explain(one, prior("normal", loc=0.2, scale=0.5)).verdict
    assert explain(one, p).method == "exact"
    expected = kl_divergence(one, prior("normal", loc=0.2, scale=0.5))
    assert kl_divergence(one, p) == expected
    two = posterior(name, **{n: x.expand(2).clone() for n, x in learned.items()})
    assert explain(two, p).verdict == "N"


def test_an_error_posterior_at_the_prior_s_location_is_theorem_1():
    assert explain("error", "normal").verdict == "T1"
    assert explain("error", prior("normal", loc=0.3)).verdict == "T2"
    assert explain(posterior("error", loc=0.3), prior("normal", loc=0.3)).verdict == "T1"
    assert explain("normal", "normal").verdict == "T2"


def test_a_plan_decides_on_the_tensors_that_it_was_asked_for_with():
    """exp(v) of v near 90 overflows in single precision: the plan refuses to draw it, as the call does."""
    from mcrepar.divergence.methods import Estimator

    q, p = posterior("lognormal", loc=torch.full((3,), 90.0), scale=torch.ones(3)), prior("gamma")
    for method in ("stream", "regen", "direct"):
        with pytest.raises(mcrepar.ParameterError, match="drawing exp") as planned:
            explain(q, p).decide(Estimator(method))
        with pytest.raises(mcrepar.ParameterError, match="drawing exp") as called:
            kl_divergence(q, p, method)
        assert str(planned.value) == str(called.value)
    assert "with n_mc_iter=1000: none, because v lies in" in str(explain(q, p))
    everywhere = explain(q, lambda w: w.cos())
    assert everywhere.method is None
    assert "Default: None, because v lies in" in str(everywhere)
    assert explain("lognormal", "gamma").decide(Estimator("stream")).method == "stream"


# ---- plans that are kept


def test_errors_of_a_kept_plan_are_raised_as_copies():
    """Else every raise would add to one traceback, which keeps the tensors of all its callers."""
    for q, p, method in (("normal", "gamma", "auto"), ("normal", "cauchy", "repar"), ("normal", "cauchy", "exact")):
        q, p = example_posterior(q, 3), example_prior(p)
        plan = plan_pair(q, p)
        found = []
        for _ in range(3):
            with pytest.raises(McreparError) as caught:
                kl_divergence(q, p, method)
            found.append(caught.value)
        kept = next(iter(plan.refusals.values())) if method == "auto" else plan.refusals[method]
        assert kept.__traceback__ is None
        assert len({id(error) for error in found}) == 3
        assert {(type(error), str(error)) for error in found} == {(type(kept), str(kept))}
        assert explain(q, p).method == (None if method == "auto" else "quad")
        assert kept.__traceback__ is None  # the default is found without an error


def test_methods_that_are_added_later_are_asked():
    """A row that is added or replaced counts for pairs that were planned before, and is forgotten after."""
    from unittest.mock import patch

    from mcrepar.divergence import methods

    def refusal(plan, name):
        return None if plan.q.noise.symmetric else MethodError(f"{plan.pair} by {name}", "no symmetry", "'stream'")

    before = {q: explain(q, "lognormal" if q == "gamma" else "normal") for q in ("normal", "gamma")}
    row = methods.Method("as stream", methods.METHODS["stream"].run, refusal)
    for rows in ({"mirrored": row}, {"stream": row}):
        name = next(iter(rows))
        with patch.dict(methods.METHODS, rows):
            assert name in explain("normal", "normal").methods
            assert name not in explain("gamma", "lognormal").methods
            assert methods.METHODS[name].samples
            with pytest.raises(MethodError, match="no symmetry"):
                kl_divergence(example_posterior("gamma", 3), prior("lognormal"), name, 5)
            infinite = explain("normal", "gamma")
            assert name in infinite.refusals
    assert "mirrored" not in methods.METHODS
    assert before == {q: explain(q, "lognormal" if q == "gamma" else "normal") for q in ("normal", "gamma")}
