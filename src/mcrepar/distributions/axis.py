"""The variable over which a noise is integrated, and where its mass lies on it.

The variable t is xi itself where its density is smooth (`Noise.linear`), else log |xi|, once for each sign, which
spreads heavy tails and what happens near 0 alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from mcrepar.distributions.noise import Noise
from mcrepar.distributions.quadrature import Vector

DEPTH = 45.0  # nats below the largest weight at which a range ends: e^-45 = 3e-20
FAR = 690.0  # the same under an exponential outer map, which moves the mass of e^v far into the tail
LEVELS = (8.0, 45.0, 150.0, 400.0)  # nats below the largest weight at which the range is cut into panels
LINEAR, LOG = (-745.0, 745.0), (-700.0, 345.0)  # beyond, |xi|^2 or 1 / |xi| leave float64


@dataclass(frozen=True)
class Axis:
    """Where t must be looked at.

    Args:
        edges: the ends of the panels, ascending.
        signs: 1, or 1 and -1 where t = log |xi| and xi has both.
        capped: whether the range ends, low or high, because float64 does, not because there is no more mass.
        log_mass: of the density over the range; it is 0 but for the rounding of large normalising constants.
    """

    edges: tuple[float, ...]
    signs: tuple[int, ...]
    capped: tuple[bool, bool]
    log_mass: float


@lru_cache(maxsize=1024)
def axis(noise: Noise, growth: float, pole: float, far: bool) -> Axis:
    """The panels on which E g(xi) is computed, for a g that grows as |xi|^growth and as |xi|^-pole at 0.

    >>> from mcrepar.distributions.noises import Normal
    >>> [round(t, 1) for t in axis(Normal(), 2.0, 0.0, False).edges]
    [-10.0, -4.0, 0.0, 4.0, 10.0]
    """
    domain, depth = LINEAR if noise.linear else LOG, FAR if far else DEPTH

    def log_weight(t: Vector, power: float = 0.0) -> Vector:
        weight: Vector = noise.log_weight(torch.tensor(t)).numpy()
        if power:
            with np.errstate(divide="ignore"):
                weight = weight + power * (np.log(np.abs(t)) if noise.linear else t)
        return np.nan_to_num(weight, nan=-np.inf, neginf=-np.inf)

    reaches = [_reach(partial(log_weight, power=p), domain, depth) for p in {0.0, growth, -pole}]
    low, high = min(r[0] for r in reaches), max(r[1] for r in reaches)
    inner = [t for level in LEVELS if level < depth for t in _reach(log_weight, domain, level)]
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
