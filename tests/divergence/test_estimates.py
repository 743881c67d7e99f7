"""Where t comes from: `stats` has the variance of `repar` and the mean of `exact`; the distributions of math.md D4.

The weights of a tensor are equal where possible, so that one call gives many independent gradients. Statistical tests
fix their seeds; false alarms, for another seed: 6e-7 per |z| < 5 (3e-5 where z is of 30 values), 1e-4 per
Kolmogorov-Smirnov test.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats

from mcrepar import POSTERIORS, PRIORS, explain, kl_divergence, posterior, prior
from mcrepar.distributions.noises import GammaPower, Normal
from mcrepar.distributions.radial import Radial
from mcrepar.distributions.statistics import Monomial
from mcrepar.divergence.average import averages, mean_log_density
from mcrepar.divergence.chunks import Chunks
from mcrepar.divergence.estimates import Estimate, Job, drawn_means, moments
from mcrepar.divergence.kl import _combined_log_density
from mcrepar.divergence.methods import DEFAULT_BYTES, Estimator
from tests.conftest import example_posterior, example_prior, seeded, z_score

CPU = torch.device("cpu")
ONE, TWO = Monomial(1.0), Monomial(2.0)
MOST = 260  # draws: above every from_draws of the tables


def distributions() -> list[tuple[str, str, bool]]:
    """Every pair whose statistics `stats` draws from a distribution, kernels included."""
    out = []
    for q in POSTERIORS:
        for p, row in PRIORS.items():
            for improper in (False, True) if row.kernel else (False,):
                plan = explain(example_posterior(q), example_prior(p, **({"improper": True} if improper else {})))
                if "stats" in plan.methods and not plan.infinite_variance:
                    assert plan.means_distribution is None or plan.means_distribution.from_draws <= MOST
                    out.append((q, p, improper))
    return out


PAIRS = distributions()
over_pairs = pytest.mark.parametrize(
    ("q_name", "p_name", "improper"), PAIRS, ids=[f"{q}-{p}{'*' * i}" for q, p, i in PAIRS]
)


def equal_weights(q_name, size):
    """A posterior of `size` equal weights with the learned leaves."""
    scale = {"expgamma": 0.1}.get(q_name, 0.6)
    learned = {"scale": scale, "loc": 0.4}
    leaves = {
        n: torch.full((size,), x, dtype=torch.float64, requires_grad=True)
        for n, x in learned.items()
        if n in POSTERIORS[q_name].learned
    }
    return posterior(q_name, **leaves)


def kernel(p_name, improper):
    return example_prior(p_name, **({"improper": True} if improper else {}))


def slopes(q, p, method, draws, seed):
    value = kl_divergence(q, p, method, draws, generator=seeded(seed))
    return torch.autograd.grad(value, q.learned)


# ---- F6: stats


@over_pairs
def test_stats_has_the_mean_of_exact_and_the_variance_of_repar(q_name, p_name, improper):
    """Over 4000 equal weights: E gradient = exact, and Var gradient = that of repar, which draws the noise.

    For Radial the coordinates of one tensor are weakly dependent: 4000 of them are still near a sample.
    """
    size = 4000
    q, p = equal_weights(q_name, size), kernel(p_name, improper)
    plan = explain(q, p)
    draws = max(30, plan.means_distribution.from_draws) if plan.means_distribution is not None else 30
    exact = slopes(q, p, "exact", None, 0)
    drawn = slopes(q, p, "stats", draws, 1)
    heavy = not all(q.noise.finite(8 * tau.power) for tau in plan.taus)
    averaged = None if heavy or draws > 60 else slopes(q, p, "repar", draws, 2)
    for k, (mean, sample) in enumerate(zip(exact, drawn, strict=True)):
        if float(sample.std()) < 1e-12 * float(sample.abs().max()):  # a gradient without noise
            torch.testing.assert_close(sample, mean, rtol=1e-12, atol=1e-12)
            continue
        assert abs(z_score(sample, float(mean[0]))) < 5
        if averaged is not None:
            ours, theirs = ((x - mean) ** 2 for x in (sample, averaged[k]))
            error = math.sqrt((float(ours.var()) + float(theirs.var())) / size)
            assert abs(float(ours.mean() - theirs.mean())) < 5 * error


@over_pairs
def test_value_of_stats_is_exact_in_the_mean(q_name, p_name, improper):
    """30 values of 100 weights each."""
    q, p = equal_weights(q_name, 100), kernel(p_name, improper)
    exact = kl_divergence(q, p, "exact").detach()
    generator = seeded(9)
    values = torch.stack([kl_divergence(q, p, "stats", MOST, generator=generator).detach() for _ in range(30)])
    assert float(values.std()) > 0
    assert abs(z_score(values, exact)) < 5


@pytest.mark.parametrize("q_name", ["normal", "laplace", "logistic", "horseshoe", "error", "radial"])
def test_distribution_shrinks_with_the_draws(q_name):
    """Var of the gradient falls as 1 / M up to M = 10^6: the variance of 4000 weights to 5 %, far below 100."""
    q, p = equal_weights(q_name, 4000), prior("normal")
    few, many = (slopes(q, p, "stats", m, 3)[-1].var() for m in (100, 10**6))
    assert abs(float(few / many) / 1e4 - 1) < 0.5


def test_too_few_draws_are_drawn_and_averaged():
    """Below from_draws stats is repar, drawn from the very seed that repar would take."""
    q, p = example_posterior("radial", 6), prior("normal")
    assert explain(q, p).means_distribution.from_draws == 30
    for draws in (1, 2, 29):
        pair = [kl_divergence(q, p, m, draws, generator=seeded(4)) for m in ("stats", "repar")]
        assert pair[0] == pair[1]
    assert kl_divergence(q, p, "stats", 30, generator=seeded(4)) != kl_divergence(
        q, p, "repar", 30, generator=seeded(4)
    )


@pytest.mark.parametrize("q_name", ["laplace", "error", "rayleigh", "gamma", "erlang", "wald"])
def test_a_sampled_entropy_asks_for_the_draws_of_its_own_statistics(q_name):
    """The statistics of log q may need more draws than those of the prior, down to a single one."""
    for p in map(prior, ("normal", "hierarchical", "exponential", "laplace")):
        q = example_posterior(q_name, 3)
        if "stats" not in explain(q, p).methods:
            continue
        for draws in (1, 10, 31, 100, MOST):
            decision = explain(q, p).decide(Estimator(n_mc_iter=draws, entropy="mc"))
            for method in ("auto", "stats"):
                value = kl_divergence(q, p, method, draws, entropy="mc", generator=seeded(4))
                chosen = kl_divergence(q, p, decision.method, draws, entropy="mc", generator=seeded(4))
                assert value == chosen
                assert value.isfinite()


def test_a_sampled_entropy_says_how_many_draws_it_needs():
    plan = explain("laplace", "normal")
    for entropy, first in (("exact", plan.means_distribution.from_draws), ("mc", 125)):
        below, above = (plan.decide(Estimator("stats", first - k, entropy=entropy)) for k in (1, 0))
        assert (below.method, above.method) == ("repar", "stats")
        assert f"from {first} on" in below.reason


# ---- the functions themselves


def test_moments_are_those_of_the_noise():
    q = example_posterior("gamma", 3)
    found = moments(q, [Monomial(), ONE, TWO])
    assert found[Monomial()] == 1.0
    assert math.isclose(found[ONE], 2.5)
    assert math.isclose(found[TWO], 2.5 * 3.5)


@pytest.mark.parametrize("distribution", [Normal(), GammaPower(2.5), Radial(700)], ids=lambda n: n.label)
@pytest.mark.parametrize("draws", [1, 5, 60])
@pytest.mark.parametrize("max_bytes", [2**16, DEFAULT_BYTES])
def test_averages_are_means_over_the_walk(distribution, draws, max_bytes):
    """t of repar is the mean over the draws of the chunks, one draw at a time, in chunks or in blocks."""
    chunks = Chunks(distribution, draws, 700, torch.float64, CPU, 3, max_bytes)
    taus = [Monomial(), ONE, TWO, Monomial(3.0), *([Monomial(0.0, 1)] if distribution.positive else [])]
    found, xi = averages(taus, chunks), chunks.all()
    assert found[Monomial()] == 1.0
    for tau in taus[1:]:
        torch.testing.assert_close(found[tau], tau(xi).mean(0), rtol=1e-12, atol=1e-14)
        assert not found[tau].requires_grad


def test_drawn_means_keep_constants_and_names():
    q, p = example_posterior("wald", 5), prior("wald")
    job = Job(explain(q, p), q, p, "stats", Estimator("stats", 1000), seeded(1))
    found = drawn_means(job, [Monomial(-1.0), Monomial(), ONE])
    assert found[Monomial()] == 1.0
    assert (found[ONE] * found[Monomial(-1.0)] >= 1).all()  # Cauchy-Schwarz: the two were not mixed up
    assert float((found[ONE] - 1).abs().max()) < 0.25


@pytest.mark.parametrize("q_name", POSTERIORS)
def test_mean_log_density_is_that_of_the_walk(q_name):
    """mean_i log q0(xi_i) of the very draws, by scipy-tested densities; for statistics that are drawn, the same."""
    q = example_posterior(q_name, 6)
    chunks = Chunks(q.noise, 20, 6, torch.float64, CPU, 3, DEFAULT_BYTES)
    expected = q.noise.log_density(chunks.all()).sum() / 20
    torch.testing.assert_close(mean_log_density(q, chunks), expected, rtol=1e-12, atol=1e-12)
    terms = q.noise.density_terms
    if terms is not None:
        found = _combined_log_density(q, Estimate(t=averages([tau for _, tau in terms], chunks)))
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


# ---- F7: the distributions of math.md D4


@cache
def sample(q_name, size, draws, method, entropy, count, b=0.8):
    """`count` values and gradients of a tensor of equal weights, m = 0.4, s = 0.6."""
    q, p, generator = equal_weights(q_name, size), prior("normal", scale=b), seeded(11)
    values, gradients = [], []
    for _ in range(count):
        value = kl_divergence(q, p, method, draws, entropy=entropy, generator=generator)
        values.append(value.detach())
        gradients.append(torch.stack(torch.autograd.grad(value, q.learned)))
    return torch.stack(values), torch.stack(gradients)  # (count,), (count, 2, size)


def variance_score(values, mean, variance):
    """z of the mean square deviation."""
    return float(z_score((values - mean) ** 2, variance))


M, S, B = 0.4, 0.6, 0.8


@pytest.mark.parametrize("method", ["stats", "repar"])
@pytest.mark.parametrize("entropy", ["exact", "mc"])
@pytest.mark.parametrize(("size", "draws"), [(3, 4), (10, 7)])
def test_distribution_of_normal_x_normal(method, entropy, size, draws):
    """The value is a shifted and scaled noncentral chi^2 (D4 i, ii): KS of 400 values, and its variance."""
    values, _ = sample("normal", size, draws, method, entropy, 400)
    n = size * draws
    if entropy == "exact":
        distribution = stats.ncx2(n, n * M**2 / S**2)
        standard = (values - size * (math.log(B / S) - 0.5)) * 2 * B**2 * draws / S**2
        variance = size * (M**2 * S**2 + S**4 / 2) / B**4 / draws
    else:
        a, slope, c = (S**2 / B**2 - 1) / 2, M * S / B**2, M**2 / (2 * B**2)
        distribution = stats.ncx2(n, n * slope**2 / (4 * a**2))
        standard = ((values - size * math.log(B / S)) * draws - n * (c - slope**2 / (4 * a))) / a
        variance = size * (M**2 * S**2 / B**4 + (S**2 / B**2 - 1) ** 2 / 2) / draws
    assert stats.kstest(standard.numpy(), distribution.cdf).pvalue > 1e-4
    mean = size * (math.log(B / S) - 0.5 + (S**2 + M**2) / (2 * B**2))
    assert abs(variance_score(values, mean, variance)) < 5
    assert abs(z_score(values, mean)) < 5


@pytest.mark.parametrize("method", ["stats", "repar"])
@pytest.mark.parametrize("entropy", ["exact", "mc"])
def test_gradient_variance_of_normal_x_normal(method, entropy):
    """Var d/dmu, Var d/dsigma and their covariance (D4) per weight, whatever the entropy."""
    draws = 7
    q, p = equal_weights("normal", 20_000), prior("normal", scale=B)
    value = kl_divergence(q, p, method, draws, entropy=entropy, generator=seeded(2))
    by_loc, by_scale = torch.autograd.grad(value, q.learned)
    errors = by_loc - M / B**2, by_scale - (S / B**2 - 1 / S)
    expected = S**2, M**2 + 2 * S**2, M * S
    for found, value in zip((errors[0] ** 2, errors[1] ** 2, errors[0] * errors[1]), expected, strict=True):
        assert abs(z_score(found, value / B**4 / draws)) < 5


@pytest.mark.parametrize(("method", "draws"), [("stats", 40), ("repar", 40), ("repar", 3)])
@pytest.mark.parametrize("size", [1, 12])
def test_variance_of_radial_x_normal(method, draws, size):
    """D4: for a common s the quadratic part is s^4 / (2M) for the whole tensor, not per weight."""
    values, gradients = sample("radial", size, draws, method, "exact", 400)
    pairs = 6 / (size * (size + 2)) * size * S**4 + 2 * (size - 1) / (size**2 * (size + 2)) * (size * S**2) ** 2
    variance = (M**2 * S**2 + pairs / 4) / (B**4 * draws)
    q, p = equal_weights("radial", size), prior("normal", scale=B)
    value = kl_divergence(q, p, "exact")
    assert abs(z_score(values, value.detach())) < 5
    assert abs(variance_score(values, value.detach(), variance)) < 5
    by_loc, by_scale = (g[0] for g in torch.autograd.grad(value, q.learned))
    moment4 = 9 / (size * (size + 2))
    assert abs(variance_score(gradients[:, 0, 0], by_loc, S**2 / size / (B**4 * draws))) < 5
    spread = M**2 / size + S**2 * (moment4 - 1 / size**2)
    assert abs(variance_score(gradients[:, 1, 0], by_scale, spread / (B**4 * draws))) < 5


@pytest.mark.parametrize("size", [1, 5])
def test_variance_of_radial_x_normal_with_sampled_entropy(size):
    """log q of Radial is -r^2/2 - (d-1) log r: at m = 0, the error is that of (s^2/b^2 - 1) r^2/2 - (d-1) log r."""
    draws = 5
    loc = torch.zeros(size, dtype=torch.float64)
    q, p, generator = posterior("radial", loc=loc, scale=torch.full_like(loc, S)), prior("normal", scale=B), seeded(3)
    values = torch.stack([kl_divergence(q, p, "repar", draws, entropy="mc", generator=generator) for _ in range(500)])
    r = np.random.default_rng(0).standard_normal(200_000)
    one = (S**2 / B**2 - 1) * r**2 / 2 - (size - 1) * np.log(np.abs(r))
    exact = float(kl_divergence(q, p, "exact"))
    assert abs(z_score(values, exact)) < 5
    assert abs(variance_score(values, exact, one.var() / draws)) < 5


@pytest.mark.parametrize("q_name", [q for q in POSTERIORS if example_posterior(q).noise.density_terms])
def test_sampled_entropy_of_stats(q_name):
    """stats with entropy="mc": the mean of exact and the variance of repar with entropy="mc"."""
    p_name = next(p for name, p, improper in PAIRS if name == q_name and not improper)
    q, p = equal_weights(q_name, 40), prior(p_name)
    exact = kl_divergence(q, p, "exact").detach()
    squares = []
    for method in ("stats", "repar"):
        generator = seeded(7)
        values = torch.stack(
            [kl_divergence(q, p, method, 130, entropy="mc", generator=generator).detach() for _ in range(100)]
        )
        assert abs(z_score(values, exact)) < 5
        squares.append((values - exact) ** 2)
    error = math.sqrt(sum(float(x.var()) for x in squares) / 100)
    assert abs(float(squares[0].mean() - squares[1].mean())) < 5 * error
