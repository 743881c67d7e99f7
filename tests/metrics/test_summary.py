"""The summaries hold every metric once, and each has a row that says what it means."""

import numpy as np
import pytest

from mcrepar import ParameterError, metrics
from mcrepar.metrics import METRICS, classification, detection, regression, summary


def example(classes, n=200):
    rng = np.random.default_rng(classes)
    probs = rng.dirichlet(np.ones(classes), n)
    return probs, rng.integers(classes, size=n)


@pytest.mark.parametrize("classes", [2, 3])
def test_classification_calls_every_metric(classes):
    probs, y = example(classes)
    label = np.where(np.arange(200) < 150, y, 0)
    scores = classification(probs, y, label, entropy=np.full(200, 0.5), mutual_information=np.arange(200.0))
    assert scores["accuracy"] == metrics.accuracy(label, y) != scores["accuracy_by_probability"]
    assert scores["accuracy_by_probability"] == metrics.accuracy(probs.argmax(1), y)
    for name in ("nll", "brier", "ece", "adaptive_ece", "auc"):
        assert scores[name] == getattr(metrics, name)(probs, y)
    top, wrong = probs.max(1), probs.argmax(1) != y
    assert scores["aurc"] == metrics.aurc(top, wrong)
    assert scores["augrc"] == metrics.augrc(top, wrong)
    assert scores["coverage_at_5_risk"] == metrics.coverage_at_risk(top, wrong, 0.05)
    assert scores["risk_at_80_coverage"] == metrics.risk_at_coverage(top, wrong, 0.8)
    half = top >= np.sort(top)[::-1][-(-len(top) // 2) - 1]  # the largest half of the probabilities, and ties
    assert scores["accuracy_at_50_coverage"] == pytest.approx(1 - np.mean(wrong[half]))
    assert (scores["entropy"], scores["mutual_information"]) == (0.5, 99.5)
    assert set(scores) <= set(METRICS)


@pytest.mark.parametrize("row", [[0.2, 0.8], [0.2, 0.3, 0.5]], ids=["two classes", "three classes"])
def test_where_a_class_is_absent_there_is_no_auc(row):
    assert "auc" not in classification([row, row], [1, 1])


def test_detection_and_regression():
    assert set(detection([0.1, 0.2], [0.3])) == {"auroc", "aupr", "fpr95"}
    y, mean = np.array([0.0, 1.0, 2.0]), np.array([0.1, 1.1, 2.5])
    bounds = {level: (mean - level, mean + level) for level in (0.5, 0.8, 0.9, 0.95, 0.3)}
    scores = regression(mean, y, bounds, np.stack([mean, mean]), np.ones((2, 3)))
    assert scores["width_90"] == pytest.approx(1.8)
    assert scores["coverage_50"] == 1
    assert {"rmse", "log_likelihood", "coverage_80", "coverage_90", "coverage_95"} <= set(scores) <= set(METRICS)
    assert "log_likelihood" not in regression(mean, y, bounds)


def test_every_row_can_be_read():
    for row in METRICS.values():
        assert row.better in ("higher", "lower", "")
        assert row.title[0].isupper()
        assert not row.meaning.endswith(".")


def test_bad_labels_are_refused():
    with pytest.raises(ParameterError, match=r"label\[0\] is 3"):
        classification([[0.2, 0.8]], [1], label=[3])


def test_a_metric_is_one_row(monkeypatch):
    row = summary.MetricRow("Errors", "how many answers are wrong", "lower", lambda c: float((c.label != c.y).sum()))
    monkeypatch.setattr(summary, "CLASSIFICATION", {**summary.CLASSIFICATION, "errors": row})
    assert summary.classification([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 1, 0])["errors"] == 1.0
