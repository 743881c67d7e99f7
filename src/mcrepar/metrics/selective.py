"""What a predictor is worth that may say "I do not know": risk against coverage, and the paper's confidence sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mcrepar.errors import ParameterError
from mcrepar.metrics.inputs import Floats, Ints, numbers, ranked, share

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
SLACK = 1e-6  # confidences are k / draws and may have been float32: 0.9 is 9 of 10 draws
Z95 = 1.959963984540054  # the Normal quantile of a 95 % interval


def risk_coverage(score: ArrayLike, wrong: ArrayLike) -> tuple[Floats, Floats]:
    """The error rate among the k examples of largest score, for k = 1 .. n; ties are averaged over their orders.

    risk(k / n) = mean of wrong over the k most confident examples

    Args:
        score: how confident the prediction is, (examples,); larger is more confident.
        wrong: 1 (or True) for a wrong prediction, else 0.

    >>> risk_coverage([0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1])
    (array([0.25, 0.5 , 0.75, 1.  ]), array([0.        , 0.5       , 0.33333333, 0.5       ]))
    """
    errors, _ = _errors("risk_coverage", score, wrong)
    number = np.arange(1, len(errors) + 1)
    return number / len(errors), np.cumsum(errors) / number


def aurc(score: ArrayLike, wrong: ArrayLike) -> float:
    """The area under the risk-coverage curve: the mean error rate over all coverages.

    mean_k risk(k / n)

    Args:
        score: larger is more confident.
        wrong: 1 for a wrong prediction.

    >>> aurc([0.9, 0.8], [0, 1])
    0.25
    """
    return float(risk_coverage(score, wrong)[1].mean())


def augrc(score: ArrayLike, wrong: ArrayLike) -> float:
    """The area under the generalized curve: the share of examples that is accepted and wrong, against coverage.

    It is (1 - A) a (1 - a) + (1 - a)^2 / 2, with a the accuracy and A the AUROC of right against wrong predictions.

    Args:
        score: larger is more confident.
        wrong: 1 for a wrong prediction.

    >>> augrc([0.9, 0.8], [0, 1])
    0.125
    """
    errors, _ = _errors("augrc", score, wrong)
    silent = np.append(0.0, np.cumsum(errors)) / len(errors)
    return float((silent[1:] + silent[:-1]).mean() / 2)


def coverage_at_risk(score: ArrayLike, wrong: ArrayLike, risk: float = 0.05) -> float:
    """The largest share of examples that a threshold on the score accepts with at most this error rate; 0 if none does.

    Args:
        score: larger is more confident.
        wrong: 1 for a wrong prediction.
        risk: the error rate that is allowed.

    >>> coverage_at_risk([0.9, 0.8, 0.7, 0.6], [0, 0, 1, 0])
    0.5
    """
    share("coverage_at_risk", "risk", risk)
    errors, ends = _errors("coverage_at_risk", score, wrong)
    allowed = ends[np.cumsum(errors)[ends - 1] <= risk * ends + 1e-9]
    return float(allowed[-1] / len(errors)) if len(allowed) else 0.0


def risk_at_coverage(score: ArrayLike, wrong: ArrayLike, coverage: float = 0.8) -> float:
    """The error rate of the strictest threshold on the score that accepts at least this share of the examples.

    Args:
        score: larger is more confident.
        wrong: 1 for a wrong prediction.
        coverage: the share of examples that must be accepted.

    >>> risk_at_coverage([0.9, 0.8, 0.7, 0.6, 0.5], [0, 0, 0, 1, 1])
    0.25
    """
    share("risk_at_coverage", "coverage", coverage)
    errors, ends = _errors("risk_at_coverage", score, wrong)
    end = ends[np.argmax(ends >= coverage * len(errors) - 1e-9)]
    return float(np.cumsum(errors)[end - 1] / end)


@dataclass(frozen=True)
class ConfidenceSet:
    """The examples of which at least a share tau of the draws agree.

    Args:
        tau: the threshold.
        count: how many examples are in the set.
        share: their share of all examples.
        accuracy: the share of them that is right; None for an empty set.
        low: where the 95 % Wilson interval of the accuracy begins.
        high: where it ends.
    """

    tau: float
    count: int
    share: float
    accuracy: float | None
    low: float | None
    high: float | None


def confidence_sets(
    confidence: ArrayLike, right: ArrayLike, thresholds: Sequence[float] | None = THRESHOLDS
) -> list[ConfidenceSet]:
    """The paper's confidence sets {i: confidence_i >= tau}: how large each is, and how often it is right.

    Args:
        confidence: the share of draws that vote for the predicted class, (examples,).
        right: 1 (or True) where the predicted class is the right one.
        thresholds: the values of tau; None takes every value that a confidence has.

    >>> sets = confidence_sets([1.0, 0.9, 0.6, 0.5], [1, 1, 0, 1], thresholds=(0.5, 0.9))
    >>> [(s.tau, s.share, s.accuracy) for s in sets]
    [(0.5, 1.0, 0.75), (0.9, 0.5, 1.0)]
    """
    votes, correct = numbers("confidence_sets", confidence=confidence, right=right)
    _check_binary("confidence_sets", "right", correct)
    if votes.min() < 0 or votes.max() > 1 + SLACK:
        why = f"confidence lies between {votes.min():g} and {votes.max():g}"
        raise ParameterError("confidence_sets", why, "shares of draws, between 0 and 1")
    taus = np.unique(votes) if thresholds is None else [share("confidence_sets", "tau", t) for t in thresholds]
    return [_set(float(tau), votes >= tau - SLACK, correct) for tau in taus]


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share, right for few trials too.

    Args:
        successes: how many trials succeeded.
        trials: how many there were, at least 1.

    >>> [round(bound, 3) for bound in wilson(9, 10)]
    [0.596, 0.982]
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ParameterError(f"wilson({successes}, {trials})", "that is no share", "0 <= successes <= trials")
    p, z2 = successes / trials, Z95**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def _set(tau: float, inside: np.ndarray[tuple[int], np.dtype[np.bool_]], correct: Floats) -> ConfidenceSet:
    count, hits = int(inside.sum()), int(correct[inside].sum())
    if not count:
        return ConfidenceSet(tau, 0, 0.0, None, None, None)
    return ConfidenceSet(tau, count, count / len(correct), hits / count, *wilson(hits, count))


def _errors(asked: str, score: ArrayLike, wrong: ArrayLike) -> tuple[Floats, Ints]:
    """The errors in the order of falling score, ties averaged, and where groups of equal scores end."""
    order, errors = numbers(asked, score=score, wrong=wrong)
    _check_binary(asked, "wrong", errors)
    return ranked(order, errors)


def _check_binary(asked: str, name: str, values: Floats) -> None:
    if not np.isin(values, (0, 1)).all():
        odd = values[~np.isin(values, (0, 1))][0]
        raise ParameterError(asked, f"{name} holds {odd:g}", f"{name} of zeros and ones, for instance label != y")
