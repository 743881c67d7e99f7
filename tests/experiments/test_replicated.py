import pytest
from scipy import stats

from mcrepar.experiments import convergence, fig8_left, fig8_right, table2
from mcrepar.experiments.experiment import Results
from mcrepar.experiments.replicated import (
    LARGER,
    Difference,
    Spread,
    difference,
    groups,
    higher,
    larger,
    parts,
    ratio_text,
    spread,
)


def test_the_bounds_are_those_of_the_f_distribution():
    for count, bound in LARGER.items():
        assert bound == pytest.approx(stats.f.ppf(0.95, count - 1, count - 1), rel=2e-3)


def test_a_difference_is_welchs():
    first, second = [0.5, 0.6, 0.8], [0.4, 0.5, 0.4]
    gap = difference(spread(first), spread(second))
    assert gap.value / gap.error == pytest.approx(stats.ttest_ind(first, second, equal_var=False).statistic)
    assert difference(spread([0.5]), spread(second)) is None


@pytest.mark.parametrize(
    ("values", "count", "held"),
    [
        ((0.03, 0.04), 3, True),
        ((0.001, 0.002), 3, None),
        ((0.1, -0.001), 3, False),
        ((0.03, 0.04), 2, None),
        ((), 3, None),
    ],
)
def test_higher(values, count, held):
    assert higher([*(Difference(value, 0.01, count) for value in values), None]) is held


@pytest.mark.parametrize(
    ("deviation", "count", "held"), [(5.0, 3, True), (2.0, 3, None), (0.9, 3, False), (50.0, 2, None), (2.6, 7, True)]
)
def test_larger(deviation, count, held):
    ratio, found = larger(Spread(0.0, deviation, count), Spread(0.0, 1.0, count))
    assert ratio == pytest.approx(deviation**2)
    assert found is held
    assert f"{ratio:.2g}" in ratio_text(ratio, count)


def test_nothing_is_known_of_one_replication():
    assert larger(spread([1.0]), spread([2.0])) == (None, None)
    assert spread([None]).percent() == "empty"


def test_runs_that_diverged_are_left_out():
    rows = [{"kind": "a", "draws": 1, "failed": "nan"}, {"kind": "a", "draws": None, "failed": None}]
    assert {label: len(found) for label, found in groups(Results(None, rows), "a").items()} == {"M = 1": 0, "exact": 1}


@pytest.mark.parametrize("scale", ["tiny", "cpu", "paper"])
@pytest.mark.parametrize(("one", "other"), [(fig8_left, convergence), (fig8_right, table2)])
def test_experiments_share_runs(one, other, scale):
    """The same keys give the same seeds; with the same training these are the same runs."""
    first, second = (module.EXPERIMENT.settings[scale] for module in (one, other))
    study = first.studies[0]
    assert study == second.studies[0]
    keys = [part.key for part in parts(first)]
    assert keys == [part.key for part in parts(second)][: len(keys)]
