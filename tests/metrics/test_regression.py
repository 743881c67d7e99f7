"""Metrics of numbers against scikit-learn and scipy."""

import numpy as np
import pytest
from scipy import special, stats
from sklearn.metrics import root_mean_squared_error

from mcrepar import ParameterError
from mcrepar.metrics import interval_coverage, log_likelihood, rmse


def test_rmse_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    mean, y = rng.normal(size=(2, 50))
    assert rmse(mean, y) == pytest.approx(root_mean_squared_error(y, mean), rel=1e-12)


def test_the_log_likelihood_is_that_of_the_mixture():
    rng = np.random.default_rng(1)
    means, variances, y = rng.normal(size=(7, 20)), rng.uniform(0.1, 2, size=(7, 20)), rng.normal(size=20)
    logs = stats.norm(means, np.sqrt(variances)).logpdf(y)
    oracle = (special.logsumexp(logs, axis=0) - np.log(7)).mean()
    assert log_likelihood(means, variances, y) == pytest.approx(oracle, rel=1e-12)


def test_a_far_target_does_not_underflow():
    value = log_likelihood([[0.0], [1.0]], [[1.0], [1.0]], [1000.0])
    assert value == pytest.approx(stats.norm(1).logpdf(1000.0) - np.log(2), rel=1e-12)


def test_the_coverage_of_honest_intervals_is_their_level():
    y = np.random.default_rng(2).normal(size=20_000)
    half = np.full_like(y, stats.norm.ppf(0.95))
    error = np.sqrt(0.9 * 0.1 / len(y))
    assert abs(interval_coverage(-half, half, y) - 0.9) < 5 * error  # a false alarm in 1.7 million seeds
    assert interval_coverage([0.0], [0.0], [0.0]) == 1


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: rmse([1.0], [np.nan]), "y is nan at (0,)"),
        (lambda: rmse([1.0, 2.0], [1.0]), "lengths differ"),
        (lambda: rmse([[1.0]], [1.0]), "mean has the shape (1, 1)"),
        (lambda: rmse([], []), "mean is empty"),
        (lambda: log_likelihood([[0.0]], [[0.0]], [1.0]), "least variance is 0"),
        (lambda: log_likelihood([[0.0, 1.0]], [[1.0, 1.0]], [1.0]), "y (1,)"),
        (lambda: interval_coverage([1.0], [0.0], [0.5]), "interval 0 begins at 1 and ends at 0"),
    ],
)
def test_bad_input_is_refused(call, why):
    with pytest.raises(ParameterError) as error:
        call()
    assert why in str(error.value)
