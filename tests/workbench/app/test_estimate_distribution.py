"""The error's distribution against brute force, scipy, the library's own estimates, and extremes of size."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import mcrepar
from mcrepar.errors import ParameterError
from mcrepar.workbench.app.estimate_distribution import ENTROPIES, MEASURES, NormalPair, draws_grid, variances

PAIRS = [NormalPair(0.3), NormalPair(0.6, 0.4, 0.8), NormalPair(1.5, -0.7, 1.2), NormalPair(0.5, 0.9, 0.5)]
ALMOST_NEVER = 1e-6  # the p-value under which a distribution is called wrong; the seeds are fixed


def brute_force(pair: NormalPair, weights: int, draws: int, count: int, entropy: str) -> np.ndarray:
    """log q - log p of really drawn weights, with scipy's densities, minus the KL."""
    rng = np.random.default_rng(7)
    q, p = stats.norm(pair.distance, pair.scale), stats.norm(0, pair.prior_scale)
    w = q.rvs((count, draws, weights), random_state=rng)
    log_q = q.logpdf(w) if entropy == "mc" else np.full_like(w, -q.entropy())
    return (log_q - p.logpdf(w)).mean(1).sum(1) - pair.kl(weights)


@pytest.mark.parametrize("entropy", ENTROPIES)
@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize(("weights", "draws"), [(1, 1), (1, 2), (3, 4), (10, 7)])
def test_errors_have_the_distribution_of_really_drawn_ones(pair, weights, draws, entropy):
    real = brute_force(pair, weights, draws, 20_000, entropy)
    ours = pair.errors(weights, draws, 20_000, np.random.default_rng(1), entropy)
    assert stats.ks_2samp(real, ours).pvalue > ALMOST_NEVER
    assert math.isclose(real.std(), pair.std(weights, draws, entropy), rel_tol=0.06)


@pytest.mark.parametrize("entropy", ENTROPIES)
@pytest.mark.parametrize("pair", PAIRS[:3], ids=str)
@pytest.mark.parametrize(("weights", "draws"), [(1, 1), (3, 4)])
def test_the_tails_are_those_of_really_drawn_errors(pair, weights, draws, entropy):
    """A kurtosis of 400,000 errors as skewed as these is off by some 3 %."""
    real = brute_force(pair, weights, draws, 400_000, entropy)
    assert 3 + pair.excess(weights, draws, entropy) == pytest.approx(stats.kurtosis(real, fisher=False), rel=0.1)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_closed_form_is_the_library_s(pair):
    q = mcrepar.posterior(
        "normal",
        loc=torch.full((5,), pair.distance, dtype=torch.float64),
        scale=torch.full((5,), pair.scale, dtype=torch.float64),
    )
    exact = mcrepar.kl_divergence(q, mcrepar.prior("normal", scale=pair.prior_scale), method="exact")
    assert math.isclose(exact.item(), pair.kl(5), rel_tol=1e-12, abs_tol=1e-14)


@pytest.mark.parametrize("entropy", ENTROPIES)
def test_the_library_s_estimates_have_this_distribution(entropy):
    pair, weights, draws = NormalPair(0.4, 0.3, 0.9), 6, 5
    q = mcrepar.posterior(
        "normal",
        loc=torch.full((weights,), pair.distance, dtype=torch.float64),
        scale=torch.full((weights,), pair.scale, dtype=torch.float64),
    )
    p, generator = mcrepar.prior("normal", scale=pair.prior_scale), torch.Generator().manual_seed(3)
    theirs = [
        mcrepar.kl_divergence(q, p, method="repar", n_mc_iter=draws, entropy=entropy, generator=generator).item()
        for _ in range(1500)
    ]
    ours = pair.errors(weights, draws, 20_000, np.random.default_rng(2), entropy)
    assert stats.ks_2samp(np.array(theirs) - pair.kl(weights), ours).pvalue > ALMOST_NEVER


def test_gradients_are_the_library_s():
    pair, draws = NormalPair(0.4, 0.3, 0.9), 5
    loc = torch.full((4000,), pair.distance, dtype=torch.float64, requires_grad=True)  # as many gradients at once
    scale = torch.full((4000,), pair.scale, dtype=torch.float64, requires_grad=True)
    q, p = mcrepar.posterior("normal", loc=loc, scale=scale), mcrepar.prior("normal", scale=pair.prior_scale)
    generator = torch.Generator().manual_seed(5)
    mcrepar.kl_divergence(q, p, method="repar", n_mc_iter=draws, generator=generator).backward()
    simulated = pair.gradient_errors(draws, 4000, np.random.default_rng(6))
    for tensor, exact, errors, std in zip(
        (loc, scale), pair.gradient(), simulated, pair.gradient_std(draws), strict=True
    ):
        theirs = tensor.grad.numpy() - exact
        assert stats.ks_2samp(theirs, errors).pvalue > ALMOST_NEVER
        assert abs(theirs.mean()) < 5 * std / math.sqrt(4000)  # by chance: 6e-7
        assert math.isclose(theirs.std(), std, rel_tol=0.08)


@pytest.mark.parametrize("count", [20_003, 10**6, 10**12])
def test_large_sums_have_scipy_s_distribution(count):
    # distance 0, exact entropy and s = b = 1: the error is (chi2(DM) - DM) / (2M)
    errors = NormalPair(1.0).errors(count, 1, 20_000, np.random.default_rng(8))
    assert stats.kstest(2 * errors + count, stats.chi2(count).cdf).pvalue > ALMOST_NEVER


@pytest.mark.parametrize("entropy", ENTROPIES)
@pytest.mark.parametrize(
    "pair", [NormalPair(1e-6), NormalPair(1 + 1e-12), NormalPair(1e-2), NormalPair(1e3, 2.0)], ids=str
)
@pytest.mark.parametrize(("weights", "draws"), [(10**9, 10**6), (10**9, 1), (10**2, 10**6)])
def test_nothing_is_lost_at_extremes(pair, weights, draws, entropy):
    errors = pair.errors(weights, draws, 20_000, np.random.default_rng(9), entropy) / pair.std(weights, draws, entropy)
    assert abs(errors.mean()) < 5 / math.sqrt(20_000)  # by chance: 6e-7
    assert abs(errors.var() - 1) < 5 * math.sqrt(2 / 20_000)  # nearly normal here, so the same


def test_relative_error_and_gradient_noise_do_not_grow_with_the_number_of_weights():
    pair, draws = NormalPair(0.01, 0.1), 100
    small, large = 10**2, 10**8
    assert pair.std(large, draws) == pytest.approx(1e3 * pair.std(small, draws))
    assert pair.std(large, draws) / pair.kl(large) == pytest.approx(1e-3 * pair.std(small, draws) / pair.kl(small))


def test_draws_for_a_tolerance_reach_it():
    pair = NormalPair(0.2, 0.5)
    for entropy in ENTROPIES:
        draws = pair.draws_for(10**6, 3.1, entropy)
        assert pair.std(10**6, math.ceil(draws), entropy) <= 3.1 < pair.std(10**6, math.ceil(draws) - 1, entropy)


def test_measures():
    errors = np.array([-1.0, 1.0, 3.0])
    assert [MEASURES[name].of_sample(errors) for name in ("variance", "std", "error")] == [4.0, 2.0, 5 / 3]


@pytest.mark.parametrize("name", MEASURES)
def test_measures_of_many_errors_are_those_of_their_distribution(name):
    pair, measure = NormalPair(0.3), MEASURES[name]
    errors = pair.errors(10**4, 10, 40_000, np.random.default_rng(11))
    # each is a mean over 40,000, or a root of one: five standard errors are below 0.036
    assert measure.of_sample(errors) == pytest.approx(measure.expected(pair.std(10**4, 10)), rel=0.036)


def test_the_grid_ends_where_it_was_asked_to():
    assert draws_grid(1) == [1]
    grid = draws_grid(10**6)
    assert grid[0] == 1
    assert grid[-1] == 10**6
    assert grid == sorted(set(grid))


@pytest.mark.parametrize("wrong", [{"scale": 0.0}, {"scale": math.nan}, {"scale": 1.0, "distance": math.inf},
                                   {"scale": 1.0, "prior_scale": -1.0}], ids=str)  # fmt: skip
def test_a_wrong_pair_is_refused(wrong):
    with pytest.raises(ParameterError, match="finite number"):
        NormalPair(**wrong)


@pytest.mark.parametrize("wrong", [{"weights": 0}, {"draws": -1}, {"simulations": 1.5}, {"draws": True}], ids=str)
def test_a_wrong_count_is_refused(wrong):
    counts = {"weights": 3, "draws": 4, "simulations": 5} | wrong
    with pytest.raises(ParameterError, match="positive whole number"):
        NormalPair(1.0).errors(**counts, rng=np.random.default_rng(0))


def test_an_unknown_entropy_is_refused():
    with pytest.raises(ParameterError, match="no such entropy"):
        NormalPair(1.0).std(3, 4, "sampled")


def test_a_joint_noise_has_no_distribution_of_a_sampled_entropy():
    q = mcrepar.posterior("radial", loc=torch.zeros(4), scale=torch.ones(4))
    with pytest.raises(ParameterError, match=r"radial posterior.*'exact'"):
        variances(q, 1.0, 0.5, 10, "mc")
