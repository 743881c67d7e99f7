"""How near predicted numbers are to the true ones, and whether their spread is calibrated."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from mcrepar.errors import ParameterError
from mcrepar.metrics.inputs import numbers


def rmse(mean: ArrayLike, y: ArrayLike) -> float:
    """The root of the mean squared error, in the units of y.

    sqrt(mean_i (mean_i - y_i)^2)

    Args:
        mean: predicted, (examples,).
        y: true.

    >>> rmse([1.0, 2.0], [4.0, 6.0])
    3.5355339059327378
    """
    predicted, true = numbers("rmse(mean, y)", mean=mean, y=y)
    return float(np.sqrt(((predicted - true) ** 2).mean()))


def log_likelihood(means: ArrayLike, variances: ArrayLike, y: ArrayLike) -> float:
    """The mean log density of y under the mixture of all draws, in nats.

    mean_i log mean_k N(y_i; means_ki, variances_ki)

    Args:
        means: of y for every draw of the weights, (draws, examples).
        variances: likewise, positive.
        y: (examples,).

    >>> round(log_likelihood([[0.0], [2.0]], [[1.0], [1.0]], [1.0]), 4)
    -1.4189
    """
    m, v = numbers("log_likelihood", 2, means=means, variances=variances)
    (true,) = numbers("log_likelihood", y=y)
    if m.shape != v.shape or m.shape[1] != len(true):
        shapes = f"means has the shape {m.shape}, variances {v.shape}, y {true.shape}"
        raise ParameterError("log_likelihood", shapes, "(draws, examples) twice, and (examples,)")
    if (v <= 0).any():
        why = f"the least variance is {v.min():g}"
        raise ParameterError("log_likelihood", why, "a likelihood with noise, such as likelihoods.Normal('learned')")
    logs = -0.5 * ((true - m) ** 2 / v + np.log(2 * math.pi * v))
    top = logs.max(0)
    return float((top + np.log(np.exp(logs - top).mean(0))).mean())


def interval_coverage(lower: ArrayLike, upper: ArrayLike, y: ArrayLike) -> float:
    """The share of y inside the intervals; a calibrated 90 % interval holds 90 % of them.

    mean_i [lower_i <= y_i <= upper_i]

    Args:
        lower: where each interval begins, (examples,).
        upper: where it ends.
        y: true.

    >>> interval_coverage([0, 0, 0], [1, 1, 1], [0.5, 1.0, 2.0])
    0.6666666666666666
    """
    low, high, true = numbers("interval_coverage", lower=lower, upper=upper, y=y)
    if (low > high).any():
        first = int(np.argmax(low > high))
        why = f"interval {first} begins at {low[first]:g} and ends at {high[first]:g}"
        raise ParameterError("interval_coverage", why, "lower <= upper")
    return float(((low <= true) & (true <= high)).mean())
