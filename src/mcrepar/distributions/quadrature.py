"""Fixed nodes x_n and weights omega_n with sum_n omega_n g(x_n) = E g(xi), in numpy float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Rule = tuple[Vector, Vector]

_DEPTH = 80.0  # nats below the largest weight at which a rule ends: e^-80 leaves room for powers of x
_TINY = float(np.finfo(np.float64).tiny)


def _rule(x: Vector, log_weights: Vector) -> Rule:
    keep = log_weights > log_weights.max() - _DEPTH
    weights = np.exp(log_weights[keep] - log_weights.max())
    return x[keep], weights / weights.sum()


def both_signs(rule: Rule) -> Rule:
    """The rule of s * x with a fair sign s."""
    x, weights = rule
    return np.concatenate([-x[::-1], x]), np.concatenate([weights[::-1], weights]) / 2


@dataclass(frozen=True)
class Grid:
    """Equidistant points from `low` to `high`, for the trapezoid rule (its error falls as e^{-c / step})."""

    low: float
    high: float
    step: float

    def points(self) -> Vector:
        """The points."""
        return np.arange(self.low, self.high + self.step / 2, self.step)


def trapezoid(log_density: Callable[[Vector], Vector], grid: Grid) -> Rule:
    """The density itself as weight on a grid of x."""
    x = grid.points()
    return _rule(x, log_density(x))


def log_trapezoid(log_density: Callable[[Vector], Vector], grid: Grid) -> Rule:
    """The density on x > 0 as weight on a grid of log x."""
    t = grid.points()
    return _rule(np.exp(t), log_density(np.exp(t)) + t)


def gamma_rule(shape: float) -> Rule:
    """Gamma(shape) by the double exponential rule x = exp(t - e^{-t}), finer for larger shapes.

    >>> x, weights = gamma_rule(2.5)
    >>> round(float(weights @ x**2), 10)  # k (k + 1)
    8.75
    """
    t = Grid(-12.0, float(np.log(200 + 3 * shape)), min(0.2, 0.4 / np.sqrt(shape))).points()
    u = t - np.exp(-t)
    return _rule(np.maximum(np.exp(u), _TINY), shape * u - np.exp(u) + np.log1p(np.exp(-t)))


def hermite(count: int) -> Rule:
    """Gauss-Hermite for N(0, 1)."""
    x, weights = np.polynomial.hermite_e.hermegauss(count)
    return x, weights / weights.sum()


def gegenbauer(count: int, size: int) -> Rule:
    """Gauss rule for one coordinate u of a uniform direction in R^size, density ~ (1 - u^2)^{(size-3)/2}."""
    n = np.arange(2.0, count)
    squares = n * (n + size - 3) / ((2 * n + size - 2) * (2 * n + size - 4))
    off = np.sqrt(np.concatenate([[1 / size], squares]))  # Jacobi matrix; the first entry is E u^2
    u, vectors = np.linalg.eigh(np.diag(off, 1) + np.diag(off, -1))
    return u, vectors[0] ** 2


def radial_rule(size: int) -> Rule:
    """One coordinate r u of Radial noise: half a Gauss-Hermite rule times a Gauss-Gegenbauer rule."""
    r, r_weights = hermite(32)
    u, u_weights = gegenbauer(24, size)
    x, weights = np.outer(r[16:], u).ravel(), np.outer(2 * r_weights[16:], u_weights).ravel()
    return x[weights > 0], weights[weights > 0]
