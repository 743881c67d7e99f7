"""What is kept of a prediction, and how it is scored: for classes, and for real numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mcrepar import metrics
from mcrepar.prediction import Prediction

Arrays = dict[str, NDArray[Any]]
COVERAGE_LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))  # of the intervals whose coverage is drawn
INTERVAL = 0.9


@dataclass(frozen=True)
class Kind:
    """A kind of prediction.

    Args:
        name: classification or regression.
        answers: the arrays of predictions.npz.
        scores: the metrics of the run's own data.
        details: curves and tables beside them, for metrics.json.
        doubts: uncertainties that may detect out-of-distribution data; the first is the usual one.
    """

    name: str
    answers: Callable[[Prediction], Arrays]
    scores: Callable[[Prediction, Arrays, NDArray[Any]], dict[str, float]]
    details: Callable[[Prediction, Arrays, NDArray[Any]], dict[str, Any]]
    doubts: Mapping[str, Callable[[Arrays], NDArray[Any]]]


def _numpy(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _class_answers(p: Prediction) -> Arrays:
    names = ("probs", "label", "entropy", "expected_entropy", "mutual_information")
    arrays = {name: _numpy(getattr(p, name)) for name in names}
    votes = _numpy(p.votes).astype(np.int32)
    return {**arrays, "votes": votes, "confidence": votes.max(1) / p.draws}  # float64: 9 of 10 draws are 0.9


def _class_scores(_: Prediction, a: Arrays, y: NDArray[Any]) -> dict[str, float]:
    return metrics.classification(a["probs"], y, a["label"], a["entropy"], a["mutual_information"])


def _class_details(_: Prediction, a: Arrays, y: NDArray[Any]) -> dict[str, Any]:
    right = a["label"] == y
    table, curve = (metrics.confidence_sets(a["confidence"], right, t) for t in (metrics.THRESHOLDS, None))
    commonest = float(np.bincount(y).max() / len(y))
    return {
        "commonest_class": commonest,
        "confidence_sets": [asdict(s) for s in table],
        "confidence_curve": [asdict(s) for s in curve],
    }


def _number_answers(p: Prediction) -> Arrays:
    lower, upper = p.interval(INTERVAL)
    columns = {"mean": p.mean, "std": p.std, "aleatoric": p.aleatoric, "epistemic": p.epistemic,
               "lower": lower, "upper": upper}  # fmt: skip
    return {name: _numpy(column).reshape(len(column)) for name, column in columns.items()}


def _number_scores(p: Prediction, a: Arrays, y: NDArray[Any]) -> dict[str, float]:
    bounds = {level: _bounds(p, level) for level in (*metrics.LEVELS, INTERVAL)}
    means = _numpy(p.samples).reshape(p.draws, -1)
    variances = None if p.noise is None else _numpy(p.noise).reshape(p.draws, -1)
    return metrics.regression(a["mean"], y, bounds, means, variances)


def _number_details(p: Prediction, _: Arrays, y: NDArray[Any]) -> dict[str, Any]:
    rows = []
    for level in COVERAGE_LEVELS:
        lower, upper = _bounds(p, level)
        rows.append({"level": level, "coverage": metrics.interval_coverage(lower, upper, y)})
    return {"interval_coverage": rows}


def _bounds(p: Prediction, level: float) -> tuple[NDArray[Any], NDArray[Any]]:
    lower, upper = (_numpy(bound).reshape(len(bound)) for bound in p.interval(level))
    return lower, upper


CLASSES = Kind(
    "classification",
    _class_answers,
    _class_scores,
    _class_details,
    {
        "entropy": lambda a: a["entropy"],
        "mutual_information": lambda a: a["mutual_information"],
        "disagreement": lambda a: 1 - a["confidence"],
    },
)
NUMBERS = Kind(
    "regression",
    _number_answers,
    _number_scores,
    _number_details,
    {"std": lambda a: a["std"], "epistemic": lambda a: a["epistemic"]},
)
