import numpy as np
import pytest

from experiments.power_law import Power, power, spread_error


def test_the_slope_and_its_error():
    """The deviation of 4,000 fitted slopes; it has a relative standard error of 1.1 %, five of them are 6 %."""
    rng, x, errors = np.random.default_rng(0), np.array([1.0, 2.0, 4.0, 30.0]), np.array([0.01, 0.03, 0.02, 0.05])
    fits = [power(x, 3 * x**-0.5 * np.exp(errors * rng.standard_normal(4)), errors) for _ in range(4000)]
    exponents = [fit.exponent for fit in fits]
    assert np.mean(exponents) == pytest.approx(-0.5, abs=5 * fits[0].error / 4000**0.5)
    assert np.std(exponents) == pytest.approx(fits[0].error, rel=0.06)
    assert power(x, x**2, 0.1) == power(x, x**2, [0.1] * 4)


@pytest.mark.parametrize(
    ("found", "agrees", "exceeds"),
    [
        (Power(-1.02, 0.01), True, None),
        (Power(-0.86, 0.012), False, True),
        (Power(-1.2, 0.012), False, False),
        (Power(-1.16, 0.115), None, None),  # forty draws of a shared noise
        (Power(0.98, 0.07), False, True),
    ],
    ids=str,
)
def test_what_a_power_tells(found, agrees, exceeds):
    assert found.agrees(-1) is agrees
    assert found.exceeds(-1) is exceeds


def test_the_error_of_a_mean_square():
    """Of 50 squared errors with the law of chi-squared(1) - 1, whose excess kurtosis is 12, 20,000 times."""
    squares = (np.random.default_rng(0).standard_normal((20_000, 50)) ** 2 - 1) ** 2
    means = squares.mean(1) / 2
    assert means.std() == pytest.approx(spread_error(50, 12.0), rel=0.1)
