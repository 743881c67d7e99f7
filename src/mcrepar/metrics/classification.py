"""How accurate and how calibrated the probabilities of classes are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mcrepar.errors import ParameterError
from mcrepar.metrics.detection import auroc
from mcrepar.metrics.inputs import Floats, Ints, numbers, probabilities, ranked

LEAST = float(np.finfo(np.float32).tiny)  # what a probability of 0 counts as, 87.3 nats: float32 underflows


def accuracy(label: ArrayLike, y: ArrayLike) -> float:
    """The share of examples whose predicted class is the right one.

    mean_i [label_i = y_i]

    Args:
        label: the predicted classes, (examples,).
        y: the right ones.

    >>> accuracy([0, 1, 1, 2], [0, 1, 2, 2])
    0.75
    """
    predicted, right = numbers("accuracy(label, y)", label=label, y=y)
    return float((predicted == right).mean())


def nll(probs: ArrayLike, y: ArrayLike) -> float:
    """The mean negative log probability of the right class, in nats; a probability of 0 counts as 1.2e-38.

    -mean_i log p_i[y_i]

    Args:
        probs: (examples, classes).
        y: (examples,).

    >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
    0.4904
    """
    p, y = probabilities("nll(probs, y)", probs, y)
    return float(-np.log(np.maximum(_of(p, y), LEAST)).mean())


def brier(probs: ArrayLike, y: ArrayLike) -> float:
    """The squared distance between the probabilities and the truth, from 0 to 2.

    mean_i sum_c (p_i[c] - [y_i = c])^2

    Args:
        probs: (examples, classes).
        y: (examples,).

    >>> brier([[0.5, 0.5], [0.0, 1.0]], [0, 1])
    0.25
    """
    p, y = probabilities("brier(probs, y)", probs, y)
    return float(((p - np.eye(p.shape[1])[y]) ** 2).sum(1).mean())


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence and accuracy, bin by bin; empty bins are left out.

    Args:
        lower: where each bin begins.
        upper: where it ends.
        confidence: the mean of the largest probability in the bin.
        accuracy: the share of right predictions in the bin.
        count: how many examples are in it.
    """

    lower: Floats
    upper: Floats
    confidence: Floats
    accuracy: Floats
    count: Ints

    @property
    def ece(self) -> float:
        """The expected calibration error: sum_b count_b / n |accuracy_b - confidence_b|."""
        return float(np.abs(self.accuracy - self.confidence) @ self.count / self.count.sum())


def reliability(probs: ArrayLike, y: ArrayLike, bins: int = 15, adaptive: bool = False) -> Reliability:
    """Confidence (the largest probability) against accuracy, in bins of equal width or of equally many examples.

    Args:
        probs: (examples, classes).
        y: (examples,).
        bins: how many; bins of equal width are (k / bins, (k + 1) / bins].
        adaptive: bins of equally many examples instead; equal confidences share their accuracy.

    >>> r = reliability([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 1, 0], bins=2)
    >>> r.count, r.accuracy.round(3), r.confidence.round(3)
    (array([3]), array([0.667]), array([0.767]))
    """
    p, y = probabilities("reliability(probs, y)", probs, y)
    if bins < 1:
        raise ParameterError(f"reliability(bins={bins})", "there is no bin", "bins=15")
    top, right = p.max(1), (p.argmax(1) == y).astype(np.float64)
    if adaptive:
        right, _ = ranked(top, right)
        top = -np.sort(-top)
        place = np.arange(len(top)) * min(bins, len(top)) // len(top)
    else:
        place = np.searchsorted(np.linspace(0, 1, bins + 1), top, side="left") - 1
    used, place, count = np.unique(place, return_inverse=True, return_counts=True)
    confidence, accuracies = (np.bincount(place, v) / count for v in (top, right))
    if adaptive:
        lower, upper = (np.array([end(top[place == k]) for k in range(len(used))]) for end in (np.min, np.max))
    else:
        lower, upper = used / bins, (used + 1) / bins
    return Reliability(lower, upper, confidence, accuracies, count.astype(np.int64))


def ece(probs: ArrayLike, y: ArrayLike, bins: int = 15) -> float:
    """The expected calibration error in bins of equal width: how far confidence and accuracy are apart.

    sum_b n_b / n |accuracy_b - confidence_b|

    Args:
        probs: (examples, classes).
        y: (examples,).
        bins: how many.

    >>> round(ece([[0.9, 0.1], [0.2, 0.8]], [0, 1]), 3)
    0.15
    """
    return reliability(probs, y, bins).ece


def adaptive_ece(probs: ArrayLike, y: ArrayLike, bins: int = 15) -> float:
    """The same in bins of equally many examples, which no bin of few examples can spoil.

    Args:
        probs: (examples, classes).
        y: (examples,).
        bins: how many.

    >>> round(adaptive_ece([[0.9, 0.1], [0.2, 0.8]], [0, 1], bins=1), 3)
    0.15
    """
    return reliability(probs, y, bins, adaptive=True).ece


def auc(probs: ArrayLike, y: ArrayLike) -> float:
    """The probability that an example of a class gets more of it than one of another, the mean over the classes.

    mean_c P(p_i[c] > p_j[c]) + P(p_i[c] = p_j[c]) / 2 for y_i = c, y_j != c; of two classes, c = 1 alone

    Args:
        probs: (examples, classes).
        y: (examples,), with examples of every class.

    >>> auc([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]], [0, 1, 0])
    0.5
    """
    p, y = probabilities("auc(probs, y)", probs, y)
    absent = np.setdiff1d(np.arange(p.shape[1]), y)
    if len(absent):
        why = f"no example is of class {absent[0]}"
        raise ParameterError("auc(probs, y)", why, "examples of every class, or accuracy")
    first = 1 if p.shape[1] == 2 else 0  # class 0 of two says the same again
    return float(np.mean([auroc(p[y != c, c], p[y == c, c]) for c in range(first, p.shape[1])]))


def _of(p: Floats, y: Ints) -> Floats:
    """p_i[y_i]."""
    return np.take_along_axis(p, y[:, None], 1)[:, 0]
