"""METRICS: one row per number, with what it means and how it is computed; report, console and app read it.

A new metric is a function in one of the files beside this one, and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mcrepar.metrics.classification import accuracy, adaptive_ece, auc, brier, ece, nll
from mcrepar.metrics.detection import aupr, auroc, fpr_at_recall
from mcrepar.metrics.inputs import Floats, Ints, classes, numbers, probabilities
from mcrepar.metrics.regression import interval_coverage, log_likelihood, rmse
from mcrepar.metrics.segmentation import VoxelCounts
from mcrepar.metrics.selective import augrc, aurc, coverage_at_risk, risk_at_coverage

LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals in the table


@dataclass(frozen=True)
class MetricRow:
    """A metric.

    Args:
        title: its name for people.
        meaning: one line that says what it measures.
        better: "higher", "lower", or "" where neither is good in itself.
        compute: from the predictions of its task; None where these do not have what it needs.
        percent: whether it is a share, shown in percent.
    """

    title: str
    meaning: str
    better: str
    compute: Callable[[Any], float | None]
    percent: bool = False


@dataclass(frozen=True)
class Classes:
    """Predicted classes."""

    probs: Floats
    y: Ints
    label: Ints
    entropy: Floats | None
    mutual_information: Floats | None

    @property
    def ranking(self) -> tuple[Floats, Any]:
        """The largest mean probability, and whether its class is wrong."""
        return self.probs.max(1), self.probs.argmax(1) != self.y


@dataclass(frozen=True)
class Numbers:
    """Predicted numbers."""

    mean: ArrayLike
    y: ArrayLike
    intervals: Mapping[float, tuple[ArrayLike, ArrayLike]]
    means: ArrayLike | None
    variances: ArrayLike | None


Scores = tuple[ArrayLike, ArrayLike]  # in-distribution, out-of-distribution


def _auc(c: Classes) -> float | None:
    """Where a class is absent, nothing can be ranked above or below it."""
    return auc(c.probs, c.y) if len(np.unique(c.y)) == c.probs.shape[1] else None


def _mean(values: Floats | None) -> float | None:
    return None if values is None else float(values.mean())


def _confident_half(c: Classes) -> float:
    score, wrong = c.ranking
    return 1 - risk_at_coverage(score, wrong, 0.5)


def _log_likelihood(n: Numbers) -> float | None:
    return None if n.means is None or n.variances is None else log_likelihood(n.means, n.variances, n.y)


def _coverage(level: float) -> MetricRow:
    def compute(n: Numbers) -> float | None:
        return interval_coverage(*n.intervals[level], n.y) if level in n.intervals else None

    percent = round(100 * level)
    meaning = f"share of true values inside; {percent} % if the intervals are calibrated"
    return MetricRow(f"Coverage of {percent} % intervals", meaning, "", compute, True)


def _width(n: Numbers) -> float | None:
    if 0.9 not in n.intervals:
        return None
    low, high = (np.asarray(bound, np.float64) for bound in n.intervals[0.9])
    return float((high - low).mean())


CLASSIFICATION: Mapping[str, MetricRow] = {
    "accuracy": MetricRow(
        "Accuracy", "share of right answers, each the class that most draws vote for", "higher",
        lambda c: accuracy(c.label, c.y), True),
    "accuracy_by_probability": MetricRow(
        "Accuracy by probability", "the same when the answer is the class of the largest mean probability", "higher",
        lambda c: accuracy(c.probs.argmax(1), c.y), True),
    "auc": MetricRow("AUC", "chance that examples of a class rank above the others, mean over classes", "higher", _auc),
    "nll": MetricRow("NLL", "surprise at the right answer, in nats: -log of its mean probability", "lower",
                     lambda c: nll(c.probs, c.y)),
    "brier": MetricRow("Brier score", "squared distance between the probabilities and the truth, 0 to 2", "lower",
                       lambda c: brier(c.probs, c.y)),
    "ece": MetricRow("ECE", "gap between confidence and accuracy, in 15 bins of equal width", "lower",
                     lambda c: ece(c.probs, c.y)),
    "adaptive_ece": MetricRow("Adaptive ECE", "the same gap in 15 bins of equally many examples", "lower",
                              lambda c: adaptive_ece(c.probs, c.y)),
    "aurc": MetricRow("AURC", "mean error rate over all coverages, most confident examples first", "lower",
                      lambda c: aurc(*c.ranking)),
    "augrc": MetricRow("AUGRC", "mean share of examples that is accepted and wrong, over all coverages", "lower",
                       lambda c: augrc(*c.ranking)),
    "coverage_at_5_risk": MetricRow(
        "Coverage at 5 % risk", "share of examples it can answer with at most 5 % errors", "higher",
        lambda c: coverage_at_risk(*c.ranking), True),
    "risk_at_80_coverage": MetricRow(
        "Risk at 80 % coverage", "error rate on the most confident 80 % of the examples", "lower",
        lambda c: risk_at_coverage(*c.ranking), True),
    "accuracy_at_50_coverage": MetricRow(
        "Accuracy at 50 % coverage", "share of right answers on the most confident half of the examples", "higher",
        _confident_half, True),
    "entropy": MetricRow("Mean entropy", "whole uncertainty of an answer, in nats", "", lambda c: _mean(c.entropy)),
    "mutual_information": MetricRow(
        "Mean mutual information", "part of it that is doubt about the weights, in nats: what more data would remove",
        "", lambda c: _mean(c.mutual_information)),
}  # fmt: skip
DETECTION: Mapping[str, MetricRow] = {
    "auroc": MetricRow(
        "AUROC", "chance that an out-of-distribution image looks more uncertain than an in-distribution one", "higher",
        lambda scores: auroc(*scores)),
    "aupr": MetricRow("AUPR", "average precision with which out-of-distribution images are found", "higher",
                      lambda scores: aupr(*scores)),
    "fpr95": MetricRow("FPR95", "share of false alarms when 95 % of the out-of-distribution images are found", "lower",
                       lambda scores: fpr_at_recall(*scores), True),
}  # fmt: skip
REGRESSION: Mapping[str, MetricRow] = {
    "rmse": MetricRow("RMSE", "typical error, in the units of the target", "lower", lambda n: rmse(n.mean, n.y)),
    "log_likelihood": MetricRow(
        "Log likelihood", "mean log density of the true values, in nats", "higher", _log_likelihood
    ),
    **{f"coverage_{round(100 * level)}": _coverage(level) for level in LEVELS},
    "width_90": MetricRow("Width of 90 % intervals", "mean width, in the units of the target", "lower", _width),
}
SEGMENTATION: Mapping[str, MetricRow] = {
    "dice": MetricRow("Dice", "overlap of structures and segmentations, mean over images and structures", "higher",
                      lambda v: v.dice),
    "voxel_accuracy": MetricRow("Voxel accuracy", "share of voxels whose class is right, background included", "higher",
                                lambda v: v.accuracy, True),
    "nll": CLASSIFICATION["nll"],
    "ece": CLASSIFICATION["ece"],
    "structure_ece": MetricRow(
        "ECE of structures", "gap between probability and frequency of a structure, where it has at least 1 %", "lower",
        lambda v: v.structure_ece),
    "error_auroc": MetricRow(
        "AUROC of errors", "chance that a wrong voxel has a larger entropy than a right one", "higher",
        lambda v: v.orders["entropy"].auroc),
    "error_auroc_foreground": MetricRow(
        "AUROC of errors, structures", "the same among voxels that are, or are taken for, a structure", "higher",
        lambda v: v.orders["foreground"].auroc),
    "error_auroc_mutual_information": MetricRow(
        "AUROC by mutual information", "chance that a wrong voxel has the larger mutual information", "higher",
        lambda v: v.orders["mutual_information"].auroc),
    "error_at_95_coverage": MetricRow(
        "Errors at 95 % coverage", "share of wrong voxels among the most certain 95 %", "lower",
        lambda v: v.at_coverage("error", 0.95), True),
    "entropy": CLASSIFICATION["entropy"],
    "mutual_information": CLASSIFICATION["mutual_information"],
}  # fmt: skip
METRICS: Mapping[str, MetricRow] = {**SEGMENTATION, **CLASSIFICATION, **DETECTION, **REGRESSION}
_OF_VOXELS: Mapping[str, Callable[[VoxelCounts], float | None]] = {  # rows that classes share with voxels
    "nll": lambda v: v.nll / v.voxels,
    "ece": lambda v: v.ece_of(v.classes),
    "entropy": lambda v: v.entropy / v.voxels,
    "mutual_information": lambda v: v.mutual_information / v.voxels,
}


def _computed(rows: Mapping[str, MetricRow], predictions: Classes | Scores | Numbers) -> dict[str, float]:
    values = {name: row.compute(predictions) for name, row in rows.items()}
    return {name: value for name, value in values.items() if value is not None}


def classification(
    probs: ArrayLike,
    y: ArrayLike,
    label: ArrayLike | None = None,
    entropy: ArrayLike | None = None,
    mutual_information: ArrayLike | None = None,
) -> dict[str, float]:
    """Every metric of classes; the most confident examples are those of the largest mean probability.

    Args:
        probs: mean probabilities, (examples, classes).
        y: the right classes, (examples,).
        label: the answers, by vote; None takes the most probable class.
        entropy: of each answer; None leaves its mean out.
        mutual_information: likewise.

    >>> scores = classification([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 1, 0])
    >>> round(scores["accuracy"], 3), scores["auc"], round(scores["risk_at_80_coverage"], 3)
    (0.667, 1.0, 0.333)
    """
    p, y = probabilities("classification(probs, y)", probs, y)
    answers = p.argmax(1) if label is None else classes("classification(label)", label, p.shape[1], "label")
    means = [
        None if values is None else numbers("classification", **{name: values})[0]
        for name, values in (("entropy", entropy), ("mutual_information", mutual_information))
    ]
    return _computed(CLASSIFICATION, Classes(p, y, answers, *means))


def segmentation(counts: VoxelCounts) -> dict[str, float]:
    """Every metric of segmented images.

    Args:
        counts: to which all images were added.

    >>> counts = VoxelCounts(2)
    >>> counts.add([[0.9, 0.4], [0.1, 0.6]], [0, 1], [0.33, 0.67], [0.0, 0.1])
    >>> segmentation(counts)["dice"]
    1.0
    """
    rows = {**{name: row.compute for name, row in SEGMENTATION.items()}, **_OF_VOXELS}
    values = {name: rows[name](counts) for name in SEGMENTATION}
    return {name: value for name, value in values.items() if value is not None}


def detection(inside: ArrayLike, outside: ArrayLike) -> dict[str, float]:
    """How well a score separates in-distribution from out-of-distribution examples.

    Args:
        inside: scores of in-distribution examples; larger means out-of-distribution.
        outside: scores of out-of-distribution examples.

    >>> detection([0.1, 0.2], [0.7, 0.9])
    {'auroc': 1.0, 'aupr': 1.0, 'fpr95': 0.0}
    """
    return _computed(DETECTION, (inside, outside))


def regression(
    mean: ArrayLike,
    y: ArrayLike,
    intervals: Mapping[float, tuple[ArrayLike, ArrayLike]],
    means: ArrayLike | None = None,
    variances: ArrayLike | None = None,
) -> dict[str, float]:
    """Every metric of a regression.

    Args:
        mean: predicted, (examples,).
        y: true.
        intervals: lower and upper bounds by their level; those of `LEVELS` are counted.
        means: of every draw, (draws, examples), for the log likelihood; None leaves it out.
        variances: of y for every draw.

    >>> scores = regression([0.0, 1.0], [0.5, 1.0], {0.9: ([-1, 0], [1, 0.5])})
    >>> scores["coverage_90"], scores["width_90"]
    (0.5, 1.25)
    """
    return _computed(REGRESSION, Numbers(mean, y, intervals, means, variances))
