"""Risk against coverage and confidence sets, against brute force, scipy and closed forms."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from mcrepar import ParameterError
from mcrepar.metrics import (
    augrc,
    aurc,
    confidence_sets,
    coverage_at_risk,
    risk_at_coverage,
    risk_coverage,
    wilson,
)


def example(n=300, seed=0, digits=10):
    rng = np.random.default_rng(seed)
    score = rng.uniform(size=n).round(digits)
    return score, rng.uniform(size=n) > 0.3 + 0.7 * score


def in_order(errors):
    """The risks of data that are sorted already."""
    return [sum(errors[: k + 1]) / (k + 1) for k in range(len(errors))]


def test_the_curve_by_brute_force():
    score, wrong = example()
    order = np.argsort(-score)
    coverage, risk = risk_coverage(score, wrong)
    np.testing.assert_allclose(risk, in_order(wrong[order].astype(float)), rtol=1e-12)
    np.testing.assert_allclose(coverage, np.arange(1, 301) / 300)
    assert aurc(score, wrong) == pytest.approx(np.mean(in_order(wrong[order])), rel=1e-12)


def test_ties_are_averaged_over_all_their_orders():
    score, wrong = np.array([0.9, 0.5, 0.5, 0.5, 0.5, 0.2]), np.array([0, 1, 0, 0, 1, 1])
    orders = [[0, *middle, 5] for middle in itertools.permutations((1, 2, 3, 4))]
    assert aurc(score, wrong) == pytest.approx(np.mean([in_order(wrong[order]) for order in orders]), rel=1e-12)


@pytest.mark.parametrize("digits", [10, 1], ids=["no ties", "ties"])
@pytest.mark.parametrize("seed", range(3))
def test_the_generalized_area_in_closed_form(seed, digits):
    score, wrong = example(seed=seed, digits=digits)
    right = 1 - wrong.mean()
    ranks = roc_auc_score(~wrong, score)
    assert augrc(score, wrong) == pytest.approx((1 - ranks) * right * (1 - right) + (1 - right) ** 2 / 2, rel=1e-9)


def test_the_best_and_the_worst_order():
    score, n, errors = np.linspace(1, 0, 100), 100, 20
    best, worst = np.arange(n) >= n - errors, np.arange(n) < errors
    harmonic = sum((k - 80) / k for k in range(81, 101)) / 100
    assert aurc(score, best) == pytest.approx(harmonic)
    assert aurc(score, worst) > 0.5
    assert augrc(score, best) == pytest.approx(0.2**2 / 2)
    assert augrc(score, worst) == pytest.approx(0.2 - 0.2**2 / 2)
    assert coverage_at_risk(score, best) == pytest.approx(0.84)  # 4 errors of 84 are 4.76 %, 5 of 85 are 5.88 %
    assert coverage_at_risk(score, worst) == 0
    assert coverage_at_risk(score, np.zeros(n)) == 1
    assert risk_at_coverage(score, best) == 0
    assert risk_at_coverage(score, best, 0.9) == pytest.approx(10 / 90)
    assert risk_at_coverage(score, best, 1.0) == pytest.approx(0.2)


def test_a_threshold_cannot_part_equal_scores():
    score, wrong = [0.9, 0.5, 0.5, 0.5], [0, 0, 0, 1]
    assert coverage_at_risk(score, wrong) == 0.25
    assert risk_at_coverage(score, wrong, 0.5) == 0.25


scores = st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=12)


@settings(max_examples=60)
@given(scores, st.randoms(use_true_random=False))
def test_bounds_and_no_dependence_on_the_order(rows, random):
    mixed = list(rows)
    random.shuffle(mixed)
    columns, shuffled = (tuple(zip(*r, strict=True)) for r in (rows, mixed))
    error = np.mean(columns[1])
    for metric in (aurc, augrc, coverage_at_risk, risk_at_coverage):
        value = metric(*columns)
        assert 0 <= value <= 1
        assert metric(*shuffled) == pytest.approx(value, abs=1e-12)
    assert error**2 / 2 - 1e-12 <= augrc(*columns) <= error - error**2 / 2 + 1e-12
    sets = confidence_sets(columns[0], ~np.array(columns[1]), None)
    assert [s.count for s in sets] == sorted((s.count for s in sets), reverse=True)
    assert sets[0].share == 1
    assert sets[0].accuracy == pytest.approx(1 - error)


@pytest.mark.parametrize(("hits", "trials"), [(0, 5), (5, 5), (9, 10), (870, 1000), (1, 1)])
def test_wilson_is_that_of_scipy(hits, trials):
    oracle = binomtest(hits, trials).proportion_ci(0.95, method="wilson")
    assert wilson(hits, trials) == pytest.approx((oracle.low, oracle.high), abs=1e-12)


def test_confidence_sets_by_hand():
    confidence, right = [1.0, 1.0, 0.9, 0.7, 0.4], [1, 1, 0, 1, 0]
    table = {s.tau: s for s in confidence_sets(confidence, right)}
    assert [s.count for s in table.values()] == [4, 4, 4, 3, 3, 2, 2, 2]
    assert table[0.5].accuracy == 0.75
    assert table[0.9].share == 0.6
    assert table[0.9].accuracy == pytest.approx(2 / 3)
    assert table[1.0].accuracy == 1
    assert (table[1.0].low, table[1.0].high) == pytest.approx(wilson(2, 2))


def test_nine_of_ten_draws_are_a_confidence_of_nine_tenths():
    for votes, draws in ((9, 10), (7, 10), (63, 70), (3, 5)):
        confidence = np.array([votes / draws], np.float32)
        assert confidence_sets(confidence, [1], [round(votes / draws, 10)])[0].count == 1


def test_an_empty_set_has_no_accuracy():
    empty = confidence_sets([0.3, 0.4], [1, 0], [0.9])[0]
    assert (empty.count, empty.share, empty.accuracy, empty.low) == (0, 0.0, None, None)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: aurc([0.1, np.nan], [0, 1]), "score is nan at (1,)"),
        (lambda: aurc([], []), "empty"),
        (lambda: augrc([0.1], [0.5]), "wrong holds 0.5"),
        (lambda: aurc([0.1, 0.2], [0]), "lengths differ"),
        (lambda: coverage_at_risk([0.1], [0], risk=5), "risk=5 is no share"),
        (lambda: coverage_at_risk([0.1], [0], risk="5 %"), "risk='5 %' is no share"),
        (lambda: risk_at_coverage([0.1], [0], coverage=-1), "coverage=-1 is no share"),
        (lambda: confidence_sets([1.5], [1]), "between 1.5 and 1.5"),
        (lambda: confidence_sets([0.5], [2]), "right holds 2"),
        (lambda: confidence_sets([0.5], [1], [90]), "tau=90 is no share"),
        (lambda: wilson(3, 2), "no share"),
    ],
)
def test_bad_input_is_refused(call, why):
    with pytest.raises(ParameterError) as error:
        call()
    assert why in str(error.value)
