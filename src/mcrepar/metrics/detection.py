"""Out-of-distribution detection: how well a score separates in-distribution from out-of-distribution examples.

Those out of distribution are the positives, and a larger score means out of distribution, as an entropy does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mcrepar.metrics.inputs import Floats, numbers, ranked, share


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """The probability that an out-of-distribution example has the larger score, ties counting half.

    P(s_out > s_in) + P(s_out = s_in) / 2

    Args:
        inside: scores of in-distribution examples.
        outside: scores of out-of-distribution examples.

    >>> auroc([0.1, 0.2, 0.3], [0.3, 0.9])
    0.9166666666666666
    """
    (low,), (high,) = numbers("auroc", inside=inside), numbers("auroc", outside=outside)
    low = np.sort(low)
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / (2 * len(low)))


def aupr(inside: ArrayLike, outside: ArrayLike) -> float:
    """The average precision with which out-of-distribution examples are found: the area under precision-recall steps.

    sum_t (recall_t - recall_(t-1)) precision_t over the thresholds t, from the largest score down

    Args:
        inside: scores of in-distribution examples.
        outside: scores of out-of-distribution examples.

    >>> aupr([0.1, 0.2], [0.3, 0.15])
    0.8333333333333333
    """
    found, size = _found(*numbers("aupr", inside=inside), *numbers("aupr", outside=outside))
    steps = np.diff(found, prepend=0.0)
    return float(steps @ (found / size) / found[-1])


def fpr_at_recall(inside: ArrayLike, outside: ArrayLike, recall: float = 0.95) -> float:
    """The share of false alarms when this share of the out-of-distribution examples is found; FPR95 at 0.95.

    min_t P(s_in >= t) such that P(s_out >= t) >= recall

    Args:
        inside: scores of in-distribution examples.
        outside: scores of out-of-distribution examples.
        recall: the share of out-of-distribution examples that must be found.

    >>> fpr_at_recall([0.1, 0.2, 0.3, 0.4], [0.25, 0.5])
    0.5
    """
    share("fpr_at_recall", "recall", recall)
    (low,), (high,) = numbers("fpr_at_recall", inside=inside), numbers("fpr_at_recall", outside=outside)
    found, size = _found(low, high)
    first = int(np.argmax(found >= recall * len(high) - 1e-9))
    return float((size[first] - found[first]) / len(low))


def _found(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """At every threshold from the largest score down: how many of those outside pass it, and how many of all."""
    is_outside = np.repeat([0.0, 1.0], [len(inside), len(outside)])
    value, ends = ranked(np.concatenate([inside, outside]), is_outside)
    return np.round(np.cumsum(value)[ends - 1]), ends.astype(np.float64)
