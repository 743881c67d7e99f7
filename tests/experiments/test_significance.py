import math

import numpy as np
import pytest
from scipy import stats

from experiments.significance import (
    IMAGES,
    Difference,
    Power,
    Ratio,
    Spread,
    all_higher,
    difference,
    higher,
    interval_text,
    mean_of,
    power,
    ratio,
    rises,
    similar,
    spread,
    spread_error,
    step_error,
)
from experiments.training_runs import TAUS


def test_a_difference_is_welchs():
    first, second = [0.5, 0.6, 0.8], [0.4, 0.5, 0.4]
    gap = difference(spread(first), spread(second))
    assert gap.value / gap.error == pytest.approx(stats.ttest_ind(first, second, equal_var=False).statistic)
    assert difference(spread([0.5]), spread(second)) is None


def test_the_interval_is_students():
    values = [0.01, 0.02, 0.06, 0.03]
    gap = Difference(np.mean(values), stats.sem(values), len(values))
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert (gap.low, gap.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    wide = Difference(0.1, 0.01, 1)
    assert (wide.low, wide.high) == (-np.inf, np.inf), "one replication bounds nothing"


@pytest.mark.parametrize(
    ("values", "count", "held"),
    [
        ((0.04, 0.05), 3, True),
        ((0.03, 0.04), 3, None),
        ((0.1, -0.001), 3, True),
        ((-0.001, -0.002), 3, None),
        ((-0.04, -0.05), 3, False),
        ((0.04, 0.05), 2, None),
        ((), 3, None),
    ],
)
def test_higher(values, count, held):
    assert higher(mean_of([*(Difference(value, 0.01, count) for value in values), None])) is held


@pytest.mark.parametrize(
    ("value", "error", "count", "held"),
    [
        (0.0, 0.001, 3, True),
        (0.0, 0.1, 3, None),
        (0.019, 0.001, 3, None),
        (0.03, 0.001, 3, False),
        (-0.03, 0.001, 3, False),
        (0.0, 0.001, 2, None),
    ],
)
def test_similar(value, error, count, held):
    assert similar(Difference(value, error, count), 0.02) is held
    assert similar(None, 0.02) is None


@pytest.mark.parametrize(
    ("std", "count", "held"),
    [(5.0, 3, True), (2.0, 3, None), (0.9, 3, None), (0.2, 3, False), (50.0, 2, None), (2.6, 7, True)],
)
def test_a_ratio_of_variances(std, count, held):
    found = ratio(Spread(0.0, std, count), Spread(0.0, 1.0, count + 1))
    assert found == Ratio(pytest.approx(std**2), count)
    assert found.larger() is held
    assert found.bound == stats.f.ppf(0.95, count - 1, count - 1)
    assert f"{found.value:.2g} (" in str(found)
    assert f"{count} replications" in str(found)


def test_nothing_is_known_of_one_replication():
    found = ratio(spread([1.0]), spread([2.0]))
    assert found.larger() is None
    assert str(found) == "the ratio of the variances is not known"
    assert spread([None]).percent() == "empty"
    assert interval_text(None) == "not known"


@pytest.mark.parametrize("count", [3, 5])
def test_without_an_effect_chance_is_seldom_judged(count):
    """Of 2,000 studies at most 1 in 20 has a false yes or no, with five standard errors of the simulation above it."""
    studies, bound = 2000, 0.05 + 5 * (0.05 * 0.95 / 2000) ** 0.5
    generator = np.random.default_rng(0)
    runs = generator.normal(size=(studies, 2, count, 1)) + 0.3 * generator.normal(size=(studies, 2, count, 9))
    gains, ratios = [], []
    for few, many in runs.tolist():
        lines = [[spread(values) for values in zip(*side, strict=True)] for side in (few, many)]
        gains.append(higher(mean_of([difference(b, a) for a, b in zip(*lines, strict=True)])))
        ratios.append(ratio(lines[0][0], lines[1][0]).larger())
    for found, least in ((gains, 0.002), (ratios, 0.03)):
        for answer in (True, False):
            assert least < found.count(answer) / studies < bound


def test_an_effect_is_seen():
    generator = np.random.default_rng(1)
    few, many = (spread(generator.normal(mean, 1.0, 3).tolist()) for mean in (0.0, 12.0))
    assert higher(difference(many, few)) is True
    assert higher(difference(few, many)) is False


@pytest.mark.parametrize(
    ("values", "judged"),
    [
        ([0.05, 0.05, 0.05], True),
        ([0.1, 0.1, 0.1, 0.1, 0.1, -0.1], False),  # though their mean is well above 0
        ([0.1, 0.1, -0.005], None),
        ([0.01, 0.01, 0.01], None),
        ([-0.05, -0.05], False),
        ([0.05, None], True),  # a set that is empty in one of both is left out
        ([None, None], None),
        ([], None),
    ],
)
def test_higher_at_every_threshold(values, judged):
    gains = [None if value is None else Difference(value, 0.01, 3) for value in values]
    assert all_higher(gains) is judged


SHELLS = (1000, 1500, 1500, 1500, 1500, 1500, 800, 400, 300)  # images between two thresholds; the last are above all


def row(hits) -> dict:
    """The nested sets of a run, from the right answers in every shell."""
    counts = np.cumsum(SHELLS[::-1])[::-1]
    right = np.cumsum(np.asarray(hits)[::-1])[::-1]
    sets = [{"tau": t, "count": int(n), "accuracy": r / n} for t, n, r in zip(TAUS, counts, right, strict=True)]
    return {"sets": sets}


def drawn(rates, seed: int) -> dict:
    return row(np.random.default_rng(seed).binomial(SHELLS, rates))


def test_the_error_is_that_of_the_sampled_images():
    rng = np.random.default_rng(0)
    inner, shell = 300, 500
    hits = rng.binomial((inner, shell), (0.8, 0.7), (4000, 2))
    steps = hits[:, 0] / inner - hits.sum(1) / (inner + shell)
    outer = {"count": inner + shell, "accuracy": (0.8 * inner + 0.7 * shell) / (inner + shell)}
    error = step_error(outer, {"count": inner, "accuracy": 0.8})
    assert error == pytest.approx(steps.std(), rel=0.05)  # four errors of a standard deviation over 4000


def test_a_few_images_that_are_all_right_are_no_fall():
    outer, inner = {"count": 1000, "accuracy": 990 / 1000}, {"count": 999, "accuracy": 989 / 999}
    assert 0 < outer["accuracy"] - inner["accuracy"] < step_error(outer, inner)


def test_chance_is_not_called_a_fall():
    """True accuracies that hardly rise: eight steps of IMAGES errors are a false alarm in 1 % of runs at most."""
    slow = np.linspace(0.80, 0.83, len(SHELLS))
    told = [rises([drawn(slow, seed)]) for seed in range(300)]
    limit = 300 * 0.01 + 4 * math.sqrt(300 * 0.01)
    assert told.count(False) <= limit
    assert None in told, "a rise as small as chance is inconclusive"
    assert IMAGES == 3


def test_a_rise_and_a_fall_are_told():
    up = np.linspace(0.6, 0.98, len(SHELLS))
    assert all(rises([drawn(up, seed)]) is True for seed in range(20))
    assert all(rises([drawn(up[::-1], seed)]) is False for seed in range(20))
    dent = up.copy()
    dent[-2:] = 0.5
    assert all(rises([drawn(dent, seed)]) is False for seed in range(20)), "only the last sets fall"


def test_replications_share_their_images():
    slow = drawn(np.linspace(0.80, 0.83, len(SHELLS)), 1)
    assert rises([slow] * 100) is rises([slow]), "the same run a hundred times tells no more"


def test_empty_sets_are_left_out():
    full = drawn(np.linspace(0.6, 0.98, len(SHELLS)), 0)
    cut = {"sets": [s if k < 5 else {**s, "count": 0, "accuracy": None} for k, s in enumerate(full["sets"])]}
    assert rises([full, cut]) is True
    alone = {"sets": [s if k < 1 else {**s, "count": 0, "accuracy": None} for k, s in enumerate(full["sets"])]}
    assert rises([full, alone]) is None
    assert rises([]) is None


def test_the_slope_and_its_error():
    """The standard deviation of 4,000 fitted slopes; its relative standard error is 1.1 %, five are 6 %."""
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
def test_what_a_power_answers(found, agrees, exceeds):
    assert found.agrees(-1) is agrees
    assert found.exceeds(-1) is exceeds


def test_the_error_of_a_mean_square():
    """Of 50 squared errors distributed as chi-squared(1) - 1, whose excess kurtosis is 12, 20,000 times."""
    squares = (np.random.default_rng(0).standard_normal((20_000, 50)) ** 2 - 1) ** 2
    means = squares.mean(1) / 2
    assert means.std() == pytest.approx(spread_error(50, 12.0), rel=0.1)
