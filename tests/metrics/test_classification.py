"""Metrics of classes against scikit-learn, torchmetrics and numbers worked out by hand."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from mcrepar import ParameterError
from mcrepar.metrics import accuracy, adaptive_ece, auc, brier, ece, nll, reliability

METRICS = (nll, brier, ece, adaptive_ece, auc)


def example(n=400, classes=5, seed=0, sharpness=2.0):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 1 / sharpness), n)
    y = np.array([rng.choice(classes, p=0.7 * p + 0.3 / classes) for p in probs])
    return probs, y


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 5])
def test_scikit_learn_agrees(classes, seed):
    probs, y = example(classes=classes, seed=seed)
    labels = list(range(classes))
    assert accuracy(probs.argmax(1), y) == accuracy_score(y, probs.argmax(1))
    assert nll(probs, y) == pytest.approx(log_loss(y, probs, labels=labels), rel=1e-12)
    oracle = brier_score_loss(y, probs, labels=labels, scale_by_half=False)
    assert brier(probs, y) == pytest.approx(oracle, rel=1e-12)
    coarse = probs.round(1) + 0.1  # many ties
    coarse /= coarse.sum(1, keepdims=True)
    for p in (probs, coarse):
        oracle = roc_auc_score(y, p[:, 1] if classes == 2 else p, multi_class="ovr", average="macro")
        assert auc(p, y) == pytest.approx(oracle, rel=1e-12)


@pytest.mark.parametrize("bins", [5, 15, 30])
def test_torchmetrics_agrees_on_the_calibration_error(bins):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchmetrics.functional.classification import multiclass_calibration_error
    probs, y = example(n=2000)
    oracle = multiclass_calibration_error(torch.tensor(probs), torch.tensor(y), num_classes=5, n_bins=bins)
    assert ece(probs, y, bins) == pytest.approx(float(oracle), rel=1e-6)


def test_the_adaptive_error_is_that_of_equal_parts_of_the_sorted_data():
    probs, y = example(n=300)
    order = probs.max(1).argsort()[::-1]
    top, right = probs.max(1)[order], (probs.argmax(1) == y)[order]
    by_hand = sum(abs(top[k : k + 20].mean() - right[k : k + 20].mean()) * 20 / 300 for k in range(0, 300, 20))
    assert adaptive_ece(probs, y, bins=15) == pytest.approx(by_hand, rel=1e-12)
    assert (reliability(probs, y, bins=15, adaptive=True).count == 20).all()


def test_bins_of_equal_width_hold_their_upper_edge():
    probs = np.array([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0], [0.74, 0.26]])
    r = reliability(probs, [0, 1, 0, 0], bins=4)
    np.testing.assert_array_equal(r.lower, [0.25, 0.5, 0.75])
    np.testing.assert_array_equal(r.upper, [0.5, 0.75, 1.0])
    np.testing.assert_array_equal(r.count, [1, 2, 1])
    np.testing.assert_array_equal(r.accuracy, [1, 0.5, 1])
    assert r.ece == pytest.approx((0.5 + 2 * abs(0.745 - 0.5) + 0) / 4)


def test_a_calibrated_predictor_has_no_error_and_an_overconfident_one_has():
    probs = np.repeat([[0.8, 0.2]], 10, 0)
    honest, proud = np.repeat([0, 1], [8, 2]), np.repeat([0, 1], [5, 5])
    for error in (ece, adaptive_ece):
        assert error(probs, honest) == pytest.approx(0, abs=1e-12)
        assert error(probs, proud) == pytest.approx(0.3)


def test_more_bins_than_data_are_no_problem():
    assert adaptive_ece([[0.9, 0.1], [0.2, 0.8]], [0, 1], bins=15) == pytest.approx(0.15)


def test_a_probability_of_zero_costs_what_float32_can_tell():
    assert nll([[1.0, 0.0]], [1]) == pytest.approx(-math.log(np.finfo(np.float32).tiny))


@st.composite
def predictions(draw):
    n, classes = draw(st.integers(1, 12)), draw(st.integers(2, 4))
    raw = draw(arrays(np.int64, (n, classes), elements=st.integers(0, 4)))
    raw[:, 0] += raw.sum(1) == 0
    return raw / raw.sum(1, keepdims=True), draw(arrays(np.int64, n, elements=st.integers(0, classes - 1)))


@settings(max_examples=60)
@given(predictions(), st.randoms(use_true_random=False))
def test_bounds_and_no_dependence_on_the_order(case, random):
    probs, y = case
    order = list(range(len(y)))
    random.shuffle(order)
    for metric, most in ((nll, 90.0), (brier, 2.0), (ece, 1.0), (adaptive_ece, 1.0)):
        value = metric(probs, y)
        assert 0 <= value <= most + 1e-12
        assert metric(probs[order], y[order]) == pytest.approx(value, abs=1e-12)


BAD = {
    "NaN": ([[math.nan, 1.0], [0.5, 0.5]], [0, 1], "nan at"),
    "sum": ([[0.5, 0.6], [0.5, 0.5]], [0, 1], "row 0 of probs has the sum 1.1"),
    "negative": ([[0.5, 0.5], [-0.5, 1.5]], [0, 1], "least value -0.5"),
    "logits": ([[3.0, -1.0], [0.5, 0.5]], [0, 1], "row 0"),
    "label": ([[0.5, 0.5], [0.5, 0.5]], [0, 2], "y[1] is 2"),
    "unlabelled": ([[0.5, 0.5], [0.5, 0.5]], [-1, -1], "y[0] is -1"),
    "half a label": ([[0.5, 0.5], [0.5, 0.5]], [0, 0.5], "y[1] is 0.5"),
    "empty": (np.zeros((0, 2)), [], "empty"),
    "lengths": ([[0.5, 0.5]], [0, 1], "lengths differ"),
    "flat": ([0.5, 0.5], [0, 1], "shape (2,)"),
    "one class": ([[1.0], [1.0]], [0, 0], "shape (2, 1)"),
    "ragged": ([[0.5, 0.5], [1.0]], [0, 1], "different lengths"),
    "text": ([["a", "b"]], [0], "dtype"),
    "y of rows": ([[0.5, 0.5]], [[0]], "y has the shape (1, 1)"),
}


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name, metric):
    probs, y, why = BAD[name]
    with pytest.raises(ParameterError) as error:
        metric(probs, y)
    assert why in str(error.value)
    assert error.value.instead


def test_other_refusals():
    with pytest.raises(ParameterError, match="there is no bin"):
        ece([[0.5, 0.5]], [0], bins=0)
    with pytest.raises(ParameterError, match="no example is of class 2"):
        auc([[0.2, 0.3, 0.5]] * 2, [0, 1])
    with pytest.raises(ParameterError, match="no example is of class 0"):
        auc([[0.2, 0.8]], [1])
    with pytest.raises(ParameterError, match="lengths differ: label 2, y 1"):
        accuracy([0, 1], [0])
