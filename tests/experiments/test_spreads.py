import numpy as np
import pytest
from scipy import stats

from experiments.spreads import (
    STUDENT,
    VARIANCES,
    Difference,
    Ratio,
    Spread,
    all_higher,
    difference,
    higher,
    mean_of,
    ratio,
    similar,
    spread,
    told,
)


def test_the_bounds_are_those_of_the_distributions():
    for count, bound in VARIANCES.items():
        assert bound == pytest.approx(stats.f.ppf(0.95, count - 1, count - 1), rel=2e-3)
    for freedom, bound in STUDENT.items():
        assert bound == pytest.approx(stats.t.ppf(0.975, freedom), abs=6e-4)


def test_a_difference_is_welchs():
    first, second = [0.5, 0.6, 0.8], [0.4, 0.5, 0.4]
    gap = difference(spread(first), spread(second))
    assert gap.value / gap.error == pytest.approx(stats.ttest_ind(first, second, equal_var=False).statistic)
    assert difference(spread([0.5]), spread(second)) is None


def test_the_interval_is_students():
    values = [0.01, 0.02, 0.06, 0.03]
    gap = Difference(np.mean(values), stats.sem(values), len(values))
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert (gap.low, gap.high) == pytest.approx((expected.low, expected.high), abs=1e-5)
    wide = Difference(0.1, 0.01, 1)
    assert (wide.low, wide.high) == (-np.inf, np.inf), "one replication bounds nothing"
    assert Difference(0.1, 0.01, 12).low == pytest.approx(0.1 - 0.01 * STUDENT[10]), "the next smaller in the table"


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
    ("deviation", "count", "held"),
    [(5.0, 3, True), (2.0, 3, None), (0.9, 3, None), (0.2, 3, False), (50.0, 2, None), (2.6, 7, True)],
)
def test_a_ratio_of_variances(deviation, count, held):
    found = ratio(Spread(0.0, deviation, count), Spread(0.0, 1.0, count + 1))
    assert found == Ratio(pytest.approx(deviation**2), count)
    assert found.larger() is held
    assert f"{found.value:.2g} (" in str(found)
    assert f"{count} replications" in str(found)


def test_nothing_is_known_of_one_replication():
    found = ratio(spread([1.0]), spread([2.0]))
    assert found.larger() is None
    assert str(found) == "the ratio of the variances is not known"
    assert spread([None]).percent() == "empty"
    assert told(None) == "not known"


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
    ("values", "told"),
    [
        ([0.05, 0.05, 0.05], True),
        ([0.1, 0.1, 0.1, 0.1, 0.1, -0.1], False),  # though their mean is surely above 0
        ([0.1, 0.1, -0.005], None),
        ([0.01, 0.01, 0.01], None),
        ([-0.05, -0.05], False),
        ([0.05, None], True),  # a set that is empty in one of both tells nothing
        ([None, None], None),
        ([], None),
    ],
)
def test_higher_at_every_threshold(values, told):
    gains = [None if value is None else Difference(value, 0.01, 3) for value in values]
    assert all_higher(gains) is told
