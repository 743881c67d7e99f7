"""Means and deviations over replications, and what they tell: differences with intervals, ratios of variances."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.experiment import Row

# Beyond it the ratio of two variances of n replications each is called larger: by chance once in 20.
VARIANCES = {3: 19.0, 4: 9.28, 5: 6.39, 6: 5.05, 8: 3.79, 10: 3.18}
# Student's 97.5 % points by degrees of freedom; scipy is no dependency.
STUDENT = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
    15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980, 1000: 1.962,
}  # fmt: skip
LEAST = 3  # replications from which anything is judged
HOW_JUDGED = (
    "A difference is judged by its 95 % Student interval (degrees of freedom: the fewer replications minus one). At "
    "all thresholds it is higher where none is lower and the interval of their mean is above 0 (those with three "
    "replications, and the error of one of them, for they share their data), and not where one interval is below 0; "
    "a ratio of variances by the 5 % points of the F distribution on both sides; `inconclusive` is whatever chance "
    "may have made, or fewer than three replications."
)


@dataclass(frozen=True)
class Spread:
    """The mean and the deviation of replications; None where there are too few numbers."""

    mean: float | None
    deviation: float | None
    count: int

    def percent(self) -> str:
        """As the paper prints it: mean and deviation in percent."""
        if self.mean is None:
            return "empty"
        return f"{100 * self.mean:.2f}" + ("" if self.deviation is None else f" ± {100 * self.deviation:.2f}")

    def text(self, digits: str) -> str:
        """Mean and deviation in a format.

        >>> Spread(0.5, 0.125, 3).text(".2f")
        '0.50 ± 0.12'
        """
        if self.mean is None:
            return "not known"
        return f"{self.mean:{digits}}" + ("" if self.deviation is None else f" ± {self.deviation:{digits}}")


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
        freedom = self.count - 1
        return math.inf if freedom < 1 else self.error * STUDENT[max(n for n in STUDENT if n <= freedom)]

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
    if first.mean is None or second.mean is None or first.deviation is None or second.deviation is None:
        return None
    error = math.sqrt(first.deviation**2 / first.count + second.deviation**2 / second.count)
    return Difference(first.mean - second.mean, error, min(first.count, second.count))


def told(difference: Difference | None, unit: float = 100.0) -> str:
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
    """Whether the whole interval is above 0, False where it is below; None where chance may have made either.

    >>> higher(Difference(0.05, 0.01, 3)), higher(Difference(-0.05, 0.01, 3)), higher(Difference(-0.03, 0.01, 3))
    (True, False, None)
    """
    if difference is None or difference.count < LEAST:
        return None
    return True if difference.low > 0 else False if difference.high < 0 else None


def all_higher(differences: Sequence[Difference | None]) -> bool | None:
    """Whether every difference is above 0, False where one is surely below; None where chance may have made either.

    >>> up, down = Difference(0.05, 0.01, 3), Difference(-0.05, 0.01, 3)
    >>> all_higher([up, up]), all_higher([up, down]), all_higher([up, Difference(-0.01, 0.01, 3)])
    (True, False, None)
    """
    found = [higher(d) for d in differences] + [higher(mean_of(differences))]
    lowest = min((d.value for d in differences if d is not None), default=0.0)
    return False if False in found else True if found[-1] and lowest > 0 else None


def similar(difference: Difference | None, margin: float) -> bool | None:
    """Whether the whole interval is within the margin on both sides of 0, False where it is wholly outside; else None.

    >>> similar(Difference(0.0, 0.004, 3), 0.02), similar(Difference(0.1, 0.004, 3), 0.02)
    (True, False)
    >>> similar(Difference(0.0, 0.1, 3), 0.02)  # noise tells nothing
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
        """What chance explains, for so many replications or the next smaller number in the table."""
        return VARIANCES[max(n for n in VARIANCES if n <= self.count)]

    def larger(self) -> bool | None:
        """Whether the first variance is larger, False where it is smaller; None where chance may have made either.

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
            f"{self.count} replications tell nothing"
            if self.count < LEAST
            else f"chance explains {1 / self.bound:.2g} to {self.bound:.2g}, {self.count} replications that ended"
        )
        return f"the ratio of the variances is {self.value:.2g} ({explained})"


def ratio(first: Spread, second: Spread) -> Ratio:
    """The ratio of two variances, of independent replications."""
    value = (first.deviation / second.deviation) ** 2 if first.deviation and second.deviation else None
    return Ratio(value, min(first.count, second.count))
