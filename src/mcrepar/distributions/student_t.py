"""Student's t as noise: heavy tails, and the moments below its degrees of freedom."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mcrepar.distributions.noise import Noise
from mcrepar.distributions.quadrature import Grid
from mcrepar.distributions.random import Source
from mcrepar.distributions.special import HALF_NORMAL, GammaProduct


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
