"""Telling data outside from data inside, against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from mcrepar import ParameterError
from mcrepar.metrics import aupr, auroc, fpr_at_recall

SCORES = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0]), min_size=1, max_size=10)


def sklearn_fpr(y, score, recall):
    fpr, tpr, _ = roc_curve(y, score, drop_intermediate=False)
    return fpr[np.argmax(tpr >= recall - 1e-12)]


@pytest.mark.parametrize("digits", [12, 1], ids=["no ties", "ties"])
@pytest.mark.parametrize(("n", "m"), [(200, 100), (50, 400), (1, 1)])
def test_scikit_learn_agrees(n, m, digits):
    rng = np.random.default_rng(n)
    inside, outside = rng.normal(0, 1, n).round(digits), rng.normal(1, 1, m).round(digits)
    y, score = np.repeat([0, 1], [n, m]), np.concatenate([inside, outside])
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(y, score), rel=1e-12)
    assert aupr(inside, outside) == pytest.approx(average_precision_score(y, score), rel=1e-12)
    for recall in (0.5, 0.8, 0.95, 1.0):
        assert fpr_at_recall(inside, outside, recall) == pytest.approx(sklearn_fpr(y, score, recall), abs=1e-12)


def test_perfect_useless_and_reversed():
    known, foreign = np.arange(10.0), np.arange(10.0) + 20
    assert (auroc(known, foreign), aupr(known, foreign), fpr_at_recall(known, foreign)) == (1, 1, 0)
    assert (auroc(foreign, known), fpr_at_recall(foreign, known)) == (0, 1)
    assert (auroc(known, known), auroc([1, 1], [1])) == (0.5, 0.5)


@settings(max_examples=60)
@given(SCORES, SCORES, st.randoms(use_true_random=False))
def test_bounds_order_and_symmetry(inside, outside, random):
    before = auroc(inside, outside), aupr(inside, outside), fpr_at_recall(inside, outside)
    assert all(0 <= value <= 1 for value in before)
    assert auroc(outside, inside) == pytest.approx(1 - before[0])
    random.shuffle(inside)
    random.shuffle(outside)
    assert (auroc(inside, outside), aupr(inside, outside), fpr_at_recall(inside, outside)) == pytest.approx(before)


@pytest.mark.parametrize("metric", [auroc, aupr, fpr_at_recall], ids=lambda m: m.__name__)
@pytest.mark.parametrize(
    ("inside", "outside", "why"),
    [
        ([], [1], "inside is empty"),
        ([1], [], "outside is empty"),
        ([np.inf], [1], "inside is inf"),
        ([[1]], [1], "inside has the shape (1, 1)"),
    ],
)
def test_bad_input_is_refused(metric, inside, outside, why):
    with pytest.raises(ParameterError) as error:
        metric(inside, outside)
    assert why in str(error.value)


def test_a_recall_is_a_share():
    with pytest.raises(ParameterError, match="recall=95 is no share"):
        fpr_at_recall([0.1], [0.2], 95)
