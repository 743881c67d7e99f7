"""Rules of quadrature, the axis over which a noise is integrated, and smooth functions read from a grid.

A rule is nodes x_n and weights omega_n with sum_n omega_n g(x_n) = E g(xi), in numpy float64. The variable t of an axis
is xi itself where its density is smooth (`Noise.linear`), else log |xi|, once for each sign, which spreads heavy tails
and what happens near 0 alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from mcrepar.distributions.noise import Noise

Vector = NDArray[np.float64]
Rule = tuple[Vector, Vector]

RULE_DEPTH = 80.0  # nats below the largest weight at which a rule ends: e^-80 leaves room for powers of x
_TINY = float(np.finfo(np.float64).tiny)
RANGE_DEPTH = 45.0  # nats below the largest weight at which a range ends: e^-45 = 3e-20
FAR = 690.0  # the same under an exponential outer map, which moves the mass of e^v far into the tail
CUTS = (8.0, 45.0, 150.0, 400.0)  # nats below the largest weight at which the range is cut into panels
LINEAR_DOMAIN, LOG_DOMAIN = (-745.0, 745.0), (-700.0, 345.0)  # beyond, |xi|^2 or 1 / |xi| leave float64
POINTS = 8  # through which a curve's polynomial goes


def _rule(x: Vector, log_weights: Vector) -> Rule:
    keep = log_weights > log_weights.max() - RULE_DEPTH
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


@lru_cache(maxsize=8)
def normal_nodes(count: int) -> tuple[tuple[float, float], ...]:
    """The same as numbers: pairs of a node and its weight."""
    x, weights = hermite(count)
    return tuple(zip(x.tolist(), weights.tolist(), strict=True))


@dataclass(frozen=True)
class Axis:
    """Where t must be looked at."""

    edges: tuple[float, ...]  # the ends of the panels, ascending
    signs: tuple[int, ...]  # 1, or 1 and -1 where t = log |xi| and xi has both
    # whether the range ends, low or high, because float64 does, not because there is no more mass
    capped: tuple[bool, bool]
    log_mass: float  # of the density over the range; it is 0 but for the rounding of large normalising constants


@lru_cache(maxsize=1024)
def axis(noise: Noise, growth: float, pole: float, far: bool) -> Axis:
    """The panels on which E g(xi) is computed, for a g that grows as |xi|^growth and as |xi|^-pole at 0.

    >>> from mcrepar.distributions.noises import Normal
    >>> [round(t, 1) for t in axis(Normal(), 2.0, 0.0, False).edges]
    [-10.0, -4.0, 0.0, 4.0, 10.0]
    """
    domain, depth = LINEAR_DOMAIN if noise.linear else LOG_DOMAIN, FAR if far else RANGE_DEPTH

    def log_weight(t: Vector, power: float = 0.0) -> Vector:
        weight: Vector = noise.log_weight(torch.tensor(t)).numpy()
        if power:
            with np.errstate(divide="ignore"):
                weight = weight + power * (np.log(np.abs(t)) if noise.linear else t)
        return np.nan_to_num(weight, nan=-np.inf, neginf=-np.inf)

    reaches = [_reach(partial(log_weight, power=p), domain, depth) for p in {0.0, growth, -pole}]
    low, high = min(r[0] for r in reaches), max(r[1] for r in reaches)
    inner = [t for level in CUTS if level < depth for t in _reach(log_weight, domain, level)]
    middle = [0.0] if noise.linear else []
    edges = sorted({low, high, *middle, *(t for t in inner if low < t < high)})
    signs = (1, -1) if noise.symmetric and not noise.linear else (1,)
    log_mass = math.log(len(signs) * _integral(log_weight, edges))
    return Axis(tuple(edges), signs, (low <= domain[0], high >= domain[1]), log_mass)


def _reach(log_weight: Callable[[Vector], Vector], domain: tuple[float, float], depth: float) -> tuple[float, float]:
    """Where a function with one hill rises above its top less `depth`: a grid that closes in on the hill."""
    low, high = domain
    for _ in range(12):
        t = np.linspace(low, high, 2001)
        height = log_weight(t)
        above = t[height > height.max() - depth]
        step, before = t[1] - t[0], high - low
        low, high = max(above[0] - step, domain[0]), min(above[-1] + step, domain[1])
        if high - low > before / 4:
            break
    return float(low), float(high)


def _integral(log_weight: Callable[[Vector], Vector], edges: list[float]) -> float:
    """The mass between the edges, by 8 x 60 Gauss-Legendre nodes in each panel."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    ends = np.concatenate([np.linspace(a, b, 9)[:-1] for a, b in itertools.pairwise(edges)] + [edges[-1:]])
    half = np.diff(ends) / 2
    t = ends[:-1] + half + half * nodes[:, None]
    return float((half * np.exp(log_weight(t.ravel()).reshape(t.shape)) * weights[:, None]).sum())


def place(t: Tensor, noise: Noise, sign: Tensor) -> Tensor:
    """xi from the variable of the axis."""
    return t if noise.linear else sign * t.exp()


def locate(xi: Tensor, noise: Noise, sign: int) -> Tensor:
    """The variable of the axis from xi; -inf where xi has the other sign."""
    return xi if noise.linear else (sign * xi).clamp(min=0).log()


def lagrange(at: Tensor, points: int) -> Tensor:
    """The weights of the values at 0, 1, ..., points - 1 in the polynomial through them, at `at`.

    >>> lagrange(torch.tensor([0.5]), 2)
    tensor([[0.5000],
            [0.5000]])
    """
    distances = [at - k for k in range(points)]
    below, above = [torch.ones_like(at)], [torch.ones_like(at)]
    for k in range(points - 1):
        below.append(below[-1] * distances[k])
        above.append(above[-1] * distances[points - 1 - k])
    norms = [math.prod(i - j for j in range(points) if j != i) for i in range(points)]
    weights = torch.stack([b * a for b, a in zip(below, reversed(above), strict=True)])
    return weights / at.new_tensor(norms).reshape(-1, *[1] * at.dim())  # (points, *at.shape)


def window(at: Tensor, count: int, points: int) -> tuple[Tensor, Tensor]:
    """The first of the `points` grid points around `at` (in steps of the grid of `count`), and the weights of all."""
    first = (at.floor() - (points // 2 - 1)).clamp(0, count - points)
    return first.long(), lagrange(at - first, points)


@dataclass(frozen=True, eq=False)
class Curve:
    """A smooth function of one number, -inf outside its grid.

    >>> x = torch.arange(0, 3, 0.05, dtype=torch.float64)
    >>> f"{float(Curve(0.0, 0.05, x.sin())(torch.tensor(1.234, dtype=torch.float64))):.10f}"  # sin(1.234)
    '0.9438182094'
    """

    low: float  # where the grid begins
    step: float  # of the grid
    values: Tensor  # on it

    def __call__(self, t: Tensor) -> Tensor:
        at = (t - self.low) / self.step
        values = self.values.to(t)
        last = len(values) - 1
        first, weights = window(at.clamp(0, last), last + 1, POINTS)
        total = torch.zeros_like(t)
        for k in range(POINTS):
            total.addcmul_(values[first + k], weights[k])
        return torch.where((at < 0) | (at > last), -torch.inf, total)


@dataclass(frozen=True, eq=False)
class Surface:
    """Smooth functions of two numbers, on a grid in both; a dimension of one point is a constant."""

    lows: Sequence[float]  # where the grid begins
    steps: Sequence[float]  # of the grid
    values: Tensor  # on it, (functions, first, second)
    points: int = 6

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """The functions at pairs of numbers inside the grid, (functions, pairs)."""
        across, down = (min(self.points, n) for n in self.values.shape[1:])
        i, along_first = window((first - self.lows[0]) / self.steps[0], self.values.shape[1], across)
        j, along_second = window((second - self.lows[1]) / self.steps[1], self.values.shape[2], down)
        columns = self.values.shape[2]
        total = first.new_zeros(len(self.values), len(first))
        table = self.values.flatten(1)
        for a in range(across):
            row = (i + a) * columns + j
            for b in range(down):
                total.addcmul_(table[:, row + b], along_first[a] * along_second[b])
        return total
