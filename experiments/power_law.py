"""With which power of x does y change, and is that the power of a law?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.experiment import CHANCE

_BETWEEN = 0.25  # half the distance of the powers that laws have: 0, 1/2, 1


@dataclass(frozen=True)
class Power:
    """A fitted power.

    Args:
        exponent: of x.
        error: its standard error.
    """

    exponent: float
    error: float

    def __str__(self) -> str:
        return f"{self.exponent:.2f} +- {self.error:.1g}"

    def agrees(self, exponent: float) -> bool | None:
        """Whether it is this one; None where it may be, but its error would not tell it from its neighbours."""
        if abs(self.exponent - exponent) > CHANCE * self.error:
            return False
        return True if CHANCE * self.error < _BETWEEN else None

    def exceeds(self, exponent: float) -> bool | None:
        """Whether it is larger; None where the difference may be chance."""
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
