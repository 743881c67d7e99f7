"""What chance allows: standard deviations over replications, differences with intervals, ratios of variances, powers.

A question is answered by True or False, or by None where chance may have made either.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from experiments.experiment import CHANCE, Row

LEAST = 3  # replications from which anything is judged
IMAGES = 3.0  # standard errors of the test images: a step is wrongly called a fall once in 700 times
_BETWEEN = 0.25  # half the distance of the powers that theory knows: 0, 1/2, 1
HOW_JUDGED = (
    "A difference is judged by its 95 % Student interval (degrees of freedom: the fewer replications minus one). At "
    "all thresholds it is higher where none is lower and the interval of their mean is above 0 (those with three "
    "replications, and the error of one of them, for they share their data), and not where one interval is below 0; "
    "a ratio of variances by the 5 % points of the F distribution on both sides; `inconclusive` is whatever chance "
    "may have made, or fewer than three replications."
)
HOW_RISING = (
    f"The accuracy rises where no step to the next set that is not empty falls by more than {IMAGES:g} standard errors "
    "and all steps together gain more than that, means over replications; the errors are those of the sampling of the "
    "test images, which replications share. It is inconclusive where neither a fall nor the gain is as large."
)


@dataclass(frozen=True)
class Spread:
    """The mean and the standard deviation of replications; None where there are too few numbers."""

    mean: float | None
    std: float | None
    count: int

    def percent(self) -> str:
        """As the paper prints it, in percent."""
        if self.mean is None:
            return "empty"
        return f"{100 * self.mean:.2f}" + ("" if self.std is None else f" ± {100 * self.std:.2f}")

    def text(self, digits: str) -> str:
        """Mean and standard deviation in a format.

        >>> Spread(0.5, 0.125, 3).text(".2f")
        '0.50 ± 0.12'
        """
        if self.mean is None:
            return "not known"
        return f"{self.mean:{digits}}" + ("" if self.std is None else f" ± {self.std:{digits}}")


def spread(values: Sequence[float | None]) -> Spread:
    """Over replications; a set that is empty has no accuracy and is left out.

    >>> spread([0.5, 0.7, None]).percent()
    '60.00 ± 14.14'
    """
    known = [value for value in values if value is not None]
    mean = statistics.fmean(known) if known else None
    return Spread(mean, statistics.stdev(known) if len(known) > 1 else None, len(known))


def over(rows: Sequence[Row], quantity: Callable[[Row], float | None]) -> Spread:
    """The spread of a quantity over replications."""
    return spread([quantity(row) for row in rows])


@dataclass(frozen=True)
class Difference:
    """A mean minus another one, its standard error, and the replications of the mean that has fewer.

    The interval is Student's, 95 % and two-sided, with `count - 1` degrees of freedom: the conservative choice, for
    Welch's lie between it and the sum of both.
    """

    value: float
    error: float
    count: int

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.value - self._half()

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.value + self._half()

    def _half(self) -> float:
        return math.inf if self.count < 2 else self.error * float(stats.t.ppf(0.975, self.count - 1))

    def __str__(self) -> str:
        return f"{100 * self.value:+.2f} ± {100 * self.error:.2f}"

    def interval(self, unit: float = 100.0) -> str:
        """The value and its interval, in points where no other unit is given.

        >>> Difference(0.02, 0.005, 3).interval()
        '+2 (95 % interval -0.151 to +4.15)'
        """
        value, low, high = (f"{unit * x:+.3g}" for x in (self.value, self.low, self.high))
        return f"{value} (95 % interval {low} to {high})"


def difference(first: Spread, second: Spread) -> Difference | None:
    """first - second, of independent replications; None where one of them is not known."""
    if first.mean is None or second.mean is None or first.std is None or second.std is None:
        return None
    error = math.sqrt(first.std**2 / first.count + second.std**2 / second.count)
    return Difference(first.mean - second.mean, error, min(first.count, second.count))


def interval_text(difference: Difference | None, unit: float = 100.0) -> str:
    """The difference and its interval, where it is known."""
    return "not known" if difference is None else difference.interval(unit)


def listed(thresholds: Sequence[float], differences: Sequence[Difference | None]) -> str:
    """The differences by threshold, those that are known.

    >>> listed((0.5, 0.9), [Difference(0.03, 0.01, 3), None])
    'by threshold, with standard errors, 0.5: +3.00 ± 1.00'
    """
    known = [f"{tau:g}: {d}" for tau, d in zip(thresholds, differences, strict=True) if d is not None]
    return f"by threshold, with standard errors, {', '.join(known) or 'not known'}"


def mean_of(differences: Sequence[Difference | None]) -> Difference | None:
    """The mean of differences that share their data, so that its error is taken as that of one of them.

    Those of fewer than three replications are left out.

    >>> mean_of([Difference(0.03, 0.01, 3), Difference(0.05, 0.01, 4), None])
    Difference(value=0.04, error=0.01, count=3)
    """
    known = [d for d in differences if d is not None and d.count >= LEAST]
    if not known:
        return None
    value, error = statistics.fmean(d.value for d in known), statistics.fmean(d.error for d in known)
    return Difference(value, error, min(d.count for d in known))


def higher(difference: Difference | None) -> bool | None:
    """Whether the whole interval is above 0, False where it is below.

    >>> higher(Difference(0.05, 0.01, 3)), higher(Difference(-0.05, 0.01, 3)), higher(Difference(-0.03, 0.01, 3))
    (True, False, None)
    """
    if difference is None or difference.count < LEAST:
        return None
    return True if difference.low > 0 else False if difference.high < 0 else None


def all_higher(differences: Sequence[Difference | None]) -> bool | None:
    """Whether every difference is above 0, False where the interval of one is below.

    >>> up, down = Difference(0.05, 0.01, 3), Difference(-0.05, 0.01, 3)
    >>> all_higher([up, up]), all_higher([up, down]), all_higher([up, Difference(-0.01, 0.01, 3)])
    (True, False, None)
    """
    found = [higher(d) for d in differences] + [higher(mean_of(differences))]
    lowest = min((d.value for d in differences if d is not None), default=0.0)
    return False if False in found else True if found[-1] and lowest > 0 else None


def similar(difference: Difference | None, margin: float) -> bool | None:
    """Whether the whole interval is within the margin on both sides of 0, False where it is wholly outside.

    >>> [similar(Difference(*given, 3), 0.02) for given in ((0.0, 0.004), (0.1, 0.004), (0.0, 0.1))]
    [True, False, None]
    """
    if difference is None or difference.count < LEAST:
        return None
    if -margin <= difference.low and difference.high <= margin:
        return True
    return False if difference.low > margin or difference.high < -margin else None


@dataclass(frozen=True)
class Ratio:
    """The variance of replications over that of others, None where it is not known, and the smaller number of them."""

    value: float | None
    count: int

    @property
    def bound(self) -> float:
        """What chance explains, but for once in 20 times, for so many replications of both."""
        return float(stats.f.ppf(0.95, self.count - 1, self.count - 1))

    def larger(self) -> bool | None:
        """Whether the first variance is larger, False where it is smaller.

        >>> [Ratio(value, 3).larger() for value in (25.0, 0.04, 0.5)]
        [True, False, None]
        """
        if self.value is None or self.count < LEAST:
            return None
        return True if self.value > self.bound else False if self.value < 1 / self.bound else None

    def __str__(self) -> str:
        if self.value is None:
            return "the ratio of the variances is not known"
        explained = (
            f"inconclusive with {self.count} replications"
            if self.count < LEAST
            else f"chance explains {1 / self.bound:.2g} to {self.bound:.2g}, {self.count} replications that ended"
        )
        return f"the ratio of the variances is {self.value:.2g} ({explained})"


def ratio(first: Spread, second: Spread) -> Ratio:
    """The ratio of two variances, of independent replications."""
    value = (first.std / second.std) ** 2 if first.std and second.std else None
    return Ratio(value, min(first.count, second.count))


# ---- does the accuracy of confidence sets rise with the threshold?


def step_error(outer: Row, inner: Row) -> float:
    """The standard error of accuracy(inner) - accuracy(outer), of a set and the larger one in which it is.

    That difference is (n_shell / n_outer) (a_inner - a_shell), and the images of both parts are independent. A part
    that is all right or all wrong has an error too: a hit and a miss are added.

    Args:
        outer: the `count` and `accuracy` of a set.
        inner: those of a set in it.

    >>> round(step_error({"count": 200, "accuracy": 0.5}, {"count": 100, "accuracy": 0.5}), 3)
    0.035
    """
    whole, core = int(outer["count"]), int(inner["count"])
    hits = inner["accuracy"] * core
    parts = (core, hits), (whole - core, outer["accuracy"] * whole - hits)
    rates = [(n, (right + 1) / (n + 2)) for n, right in parts if n]
    return (whole - core) / whole * math.sqrt(sum(p * (1 - p) / n for n, p in rates))


def rises(rows: Sequence[Row]) -> bool | None:
    """Whether the accuracy rises with the threshold; None also where sets are empty.

    Args:
        rows: replications, each with its confidence `sets` by threshold.
    """
    lines = [[s for s in row["sets"] if s["accuracy"] is not None] for row in rows]
    known = [line[: min(map(len, lines))] for line in lines]  # sets are nested: the last ones are those that are empty
    if not known or len(known[0]) < 2:
        return None
    steps = [_step([line[k : k + 2] for line in known]) for k in range(len(known[0]) - 1)]
    gain, error = _step([[line[0], line[-1]] for line in known])
    if gain < -IMAGES * error or any(step < -IMAGES * e for step, e in steps):
        return False
    return True if gain > IMAGES * error else None


def _step(pairs: Sequence[Sequence[Row]]) -> tuple[float, float]:
    """The mean over replications of a step, and its error: that of one of them, for they have the same images."""
    steps = [inner["accuracy"] - outer["accuracy"] for outer, inner in pairs]
    return statistics.fmean(steps), statistics.fmean(step_error(outer, inner) for outer, inner in pairs)


# ---- with which power of x does y change?


@dataclass(frozen=True)
class Power:
    """The fitted exponent of x, and its standard error."""

    exponent: float
    error: float

    def __str__(self) -> str:
        return f"{self.exponent:.2f} +- {self.error:.1g}"

    def agrees(self, exponent: float) -> bool | None:
        """Whether it is this one; None where its error could not separate it from its neighbours."""
        if abs(self.exponent - exponent) > CHANCE * self.error:
            return False
        return True if CHANCE * self.error < _BETWEEN else None

    def exceeds(self, exponent: float) -> bool | None:
        """Whether it is larger."""
        difference = self.exponent - exponent
        return None if abs(difference) < CHANCE * self.error else difference > 0


def power(x: Sequence[float], y: Sequence[float], errors: float | Sequence[float]) -> Power:
    """The slope of the line through log x and log y.

    Args:
        x: where.
        y: what was measured there.
        errors: the relative standard errors of y, independent; a number for one that all have.

    >>> print(power([1, 10, 100], [2.0, 0.2, 0.02], 0.1))
    -1.00 +- 0.03
    """
    place = np.log(x) - np.mean(np.log(x))
    weight = place / (place @ place)
    return Power(float(weight @ np.log(y)), float(np.linalg.norm(weight * np.broadcast_to(errors, len(x)))))


def spread_error(estimates: int, excess: float = 0.0) -> float:
    """The relative standard error of a mean of squared errors, from their number and their excess kurtosis.

    >>> spread_error(200)
    0.1
    """
    return math.sqrt((2 + excess) / estimates)
