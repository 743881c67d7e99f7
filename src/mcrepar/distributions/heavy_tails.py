"""Noise with heavy tails: Student's t, and the horseshoe, raw or held below a slab."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from mcrepar.distributions.noise import Noise, require_positive
from mcrepar.distributions.quadrature import Curve, Grid
from mcrepar.distributions.random import Source
from mcrepar.distributions.special import HALF_NORMAL, GammaProduct, log_scaled_e1


@dataclass(frozen=True)
class StudentT(Noise):
    """N(0, 1) / sqrt(2 G / df) with G ~ Gamma(df / 2)."""

    df: float

    def _label(self) -> str:
        return f"StudentT({self.df:g})"

    def _sample(self, source: Source, draws: int, size: int, radius: Tensor | None) -> Tensor:
        z, g = source.normal(draws, size), source.gamma(self.df / 2, draws, size, scale=2 / self.df)
        return z.div_(g.clamp_(min=torch.finfo(source.dtype).tiny).sqrt_())

    def log_density(self, xi: Tensor) -> Tensor:
        """-(df + 1) / 2 log(1 + xi^2 / df), normalised."""
        norm = math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2) - math.log(math.pi * self.df) / 2
        return norm - (self.df + 1) / 2 * torch.log1p(xi * xi / self.df)

    @property
    def _product(self) -> tuple[GammaProduct, float]:
        return (HALF_NORMAL, (1, self.df / 2, -0.5)), math.log(self.df) / 2

    @property
    def _grid(self) -> Grid:
        return Grid(-42.0, 42.0 / min(1.0, self.df), 0.1)


@dataclass(frozen=True)
class Horseshoe(Noise):
    """z lam with lam a half-Cauchy variate, held below the slab c: lam -> c lam / sqrt(c^2 + lam^2).

    Without a slab it is the raw horseshoe, with density (2 pi^3)^(-1/2) e^y E1(y), y = xi^2/2, and without a mean.

    >>> from mcrepar.distributions.statistics import Monomial
    >>> round(Horseshoe(2.0).moment(Monomial(2)), 12) == round(4 / 3, 12)  # c^2 / (1 + c)
    True
    >>> Horseshoe(None).moment(Monomial(1, absolute=True))
    inf
    """

    slab: float | None  # c

    def __post_init__(self) -> None:
        if self.slab is not None:
            require_positive("slab", self.slab)

    def _label(self) -> str:
        return "Horseshoe, raw" if self.slab is None else f"Horseshoe, slab {self.slab:.4g}"

    def _sample(self, source: Source, draws: int, size: int, radius: Tensor | None) -> Tensor:
        a, b = source.normal(draws, size), source.normal(draws, size)  # lam = a / b
        smallest = math.sqrt(torch.finfo(source.dtype).tiny)
        below = torch.hypot(b, a / self.slab) if self.slab else b.abs_()
        return a.div_(below.clamp_(min=smallest)).mul_(source.normal(draws, size))

    def log_density(self, xi: Tensor) -> Tensor:
        """The logarithm of int (1/pi) sech(v) N(xi; 0, lam(v)^2) dv, v the log of the half-Cauchy variate."""
        if self.slab is None:
            return log_scaled_e1(0.5 * xi * xi) - 0.5 * math.log(2 * math.pi**3)
        if xi.numel() > 4096:  # bounds the memory
            parts = [self.log_density(part) for part in torch.split(xi.reshape(-1), 4096)]
            return torch.cat(parts).view(xi.shape)
        grid = Grid(-45.0, 36.0, 0.15)
        v = torch.tensor(grid.points(), dtype=xi.dtype, device=xi.device)
        log_lam = v - 0.5 * torch.nn.functional.softplus(2 * (v - math.log(self.slab)))
        log_weights = math.log(2 * grid.step / math.pi) - v.abs() - torch.log1p(torch.exp(-2 * v.abs()))
        z = xi[..., None] * torch.exp(-log_lam)
        return torch.logsumexp(log_weights - log_lam - 0.5 * (z * z + math.log(2 * math.pi)), dim=-1)

    def log_weight(self, t: Tensor) -> Tensor:
        """Of log |xi|: under a slab from a table, each value of which is an integral."""
        return super().log_weight(t) if self.slab is None else _slab_curve(self)(t)

    @property
    def _product(self) -> tuple[GammaProduct, float] | None:
        if self.slab is not None:
            return None
        return (HALF_NORMAL, (1, 0.5, 0.5), (1, 0.5, -0.5)), math.log(2) / 2  # |z| and |a / b|

    @property
    def _grid(self) -> Grid:
        if self.slab is None:
            return Grid(-42.0, 42.0, 0.25)
        return Grid(-42.0, math.log(40 * self.slab), 0.15)


@lru_cache(maxsize=64)
def _slab_curve(noise: Horseshoe) -> Curve:
    assert noise.slab is not None
    t = torch.tensor(Grid(-50.0, math.log(40 * noise.slab), 0.05).points())
    return Curve(float(t[0]), 0.05, noise.log_density(t.exp()) + t)
