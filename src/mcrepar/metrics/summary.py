"""All metrics of one set of predictions, and the table that says what each of them means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mcrepar.metrics.arrays import classes, numbers, probabilities
from mcrepar.metrics.classification import accuracy, adaptive_ece, auc, brier, ece, nll
from mcrepar.metrics.detection import aupr, auroc, fpr_at_recall
from mcrepar.metrics.regression import interval_coverage, log_likelihood, rmse
from mcrepar.metrics.selective import augrc, aurc, coverage_at_risk, risk_at_coverage


@dataclass(frozen=True)
class MetricRow:
    """How a metric is shown.

    Args:
        title: its name for people.
        meaning: one line that says what it tells.
        better: "higher", "lower", or "" where neither is good in itself.
        percent: whether it is a share, shown in percent.
    """

    title: str
    meaning: str
    better: str
    percent: bool = False


METRICS: Mapping[str, MetricRow] = {
    "accuracy": MetricRow(
        "Accuracy", "share of right answers, each the class that most draws vote for", "higher", True
    ),
    "accuracy_by_probability": MetricRow(
        "Accuracy by probability",
        "the same when the answer is the class of the largest mean probability",
        "higher",
        True,
    ),
    "auc": MetricRow("AUC", "chance that data of a class rank above the others, mean over classes", "higher"),
    "nll": MetricRow("NLL", "surprise at the right answer, in nats: -log of its mean probability", "lower"),
    "brier": MetricRow("Brier score", "squared distance between the probabilities and the truth, 0 to 2", "lower"),
    "ece": MetricRow("ECE", "gap between promised and kept accuracy, in 15 bins of equal width", "lower"),
    "adaptive_ece": MetricRow("Adaptive ECE", "the same gap in 15 bins of equally many data", "lower"),
    "aurc": MetricRow("AURC", "mean error rate over all coverages, surest data first", "lower"),
    "augrc": MetricRow("AUGRC", "mean share of data that is accepted and wrong, over all coverages", "lower"),
    "coverage_at_5_risk": MetricRow(
        "Coverage at 5 % risk", "share of data it can answer with at most 5 % errors", "higher", True
    ),
    "risk_at_80_coverage": MetricRow(
        "Risk at 80 % coverage", "error rate on the surest 80 % of the data", "lower", True
    ),
    "entropy": MetricRow("Mean entropy", "whole uncertainty of an answer, in nats", ""),
    "mutual_information": MetricRow(
        "Mean mutual information",
        "part of it that is doubt about the weights, in nats: what more data would remove",
        "",
    ),
    "auroc": MetricRow("AUROC", "chance that a foreign image looks more uncertain than a known one", "higher"),
    "aupr": MetricRow("AUPR", "average precision with which foreign images are found", "higher"),
    "fpr95": MetricRow("FPR95", "share of false alarms when 95 % of the foreign images are found", "lower", True),
    "rmse": MetricRow("RMSE", "typical error, in the units of the target", "lower"),
    "log_likelihood": MetricRow("Log likelihood", "mean log density of the true values, in nats", "higher"),
    "coverage_50": MetricRow("Coverage of 50 % intervals", "share of true values inside; honest is 50 %", "", True),
    "coverage_80": MetricRow("Coverage of 80 % intervals", "share of true values inside; honest is 80 %", "", True),
    "coverage_90": MetricRow("Coverage of 90 % intervals", "share of true values inside; honest is 90 %", "", True),
    "coverage_95": MetricRow("Coverage of 95 % intervals", "share of true values inside; honest is 95 %", "", True),
    "width_90": MetricRow("Width of 90 % intervals", "mean width, in the units of the target", "lower"),
}
LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals in the table


def classification(
    probs: ArrayLike,
    y: ArrayLike,
    label: ArrayLike | None = None,
    entropy: ArrayLike | None = None,
    mutual_information: ArrayLike | None = None,
) -> dict[str, float]:
    """Every metric of classes; the surest data are those of the largest mean probability.

    Args:
        probs: mean probabilities, (data, classes).
        y: the right classes, (data,).
        label: the answers, by vote; None takes the most probable class.
        entropy: of each answer; None leaves its mean out.
        mutual_information: likewise.

    >>> scores = classification([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 1, 0])
    >>> round(scores["accuracy"], 3), scores["auc"], round(scores["risk_at_80_coverage"], 3)
    (0.667, 1.0, 0.333)
    """
    p, y = probabilities("classification(probs, y)", probs, y)
    top, most = p.max(1), p.argmax(1)
    wrong = most != y
    answers = most if label is None else classes("classification(label)", label, p.shape[1], "label")
    scores = {"accuracy": accuracy(answers, y), "accuracy_by_probability": accuracy(most, y)}
    if len(np.unique(y)) == p.shape[1]:  # where a class is absent, nothing can be ranked above or below it
        scores["auc"] = auc(p, y)
    scores |= {"nll": nll(p, y), "brier": brier(p, y), "ece": ece(p, y), "adaptive_ece": adaptive_ece(p, y)}
    scores |= {"aurc": aurc(top, wrong), "augrc": augrc(top, wrong)}
    scores |= {"coverage_at_5_risk": coverage_at_risk(top, wrong), "risk_at_80_coverage": risk_at_coverage(top, wrong)}
    for name, values in (("entropy", entropy), ("mutual_information", mutual_information)):
        if values is not None:
            (each,) = numbers("classification", **{name: values})
            scores[name] = float(each.mean())
    return scores


def detection(inside: ArrayLike, outside: ArrayLike) -> dict[str, float]:
    """How well a score tells foreign data from known data.

    Args:
        inside: scores of known data; larger means foreign.
        outside: scores of foreign data.

    >>> detection([0.1, 0.2], [0.7, 0.9])
    {'auroc': 1.0, 'aupr': 1.0, 'fpr95': 0.0}
    """
    return {
        "auroc": auroc(inside, outside),
        "aupr": aupr(inside, outside),
        "fpr95": fpr_at_recall(inside, outside, 0.95),
    }


def regression(
    mean: ArrayLike,
    y: ArrayLike,
    intervals: Mapping[float, tuple[ArrayLike, ArrayLike]],
    means: ArrayLike | None = None,
    variances: ArrayLike | None = None,
) -> dict[str, float]:
    """Every metric of a regression.

    Args:
        mean: predicted, (data,).
        y: true.
        intervals: lower and upper bounds by their level; those of `LEVELS` are counted.
        means: of every draw, (draws, data), for the log likelihood; None leaves it out.
        variances: of y for every draw.

    >>> scores = regression([0.0, 1.0], [0.5, 1.0], {0.9: ([-1, 0], [1, 0.5])})
    >>> scores["coverage_90"], scores["width_90"]
    (0.5, 1.25)
    """
    scores = {"rmse": rmse(mean, y)}
    if means is not None and variances is not None:
        scores["log_likelihood"] = log_likelihood(means, variances, y)
    for level in LEVELS:
        if level in intervals:
            scores[f"coverage_{round(100 * level)}"] = interval_coverage(*intervals[level], y)
    if 0.9 in intervals:
        low, high = (np.asarray(bound, np.float64) for bound in intervals[0.9])
        scores["width_90"] = float((high - low).mean())
    return scores
