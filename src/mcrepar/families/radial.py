"""The radial law of the noise: jointly over all weights of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from mcrepar.families import quadrature, sums
from mcrepar.families.noise import Noise, require_positive
from mcrepar.families.quadrature import Rule
from mcrepar.families.special import HALF_NORMAL, GammaProduct, polygamma
from mcrepar.families.statistics import Monomial
from mcrepar.families.variates import Source, vector_norm


@dataclass(frozen=True)
class Radial(Noise):
    """(z / |z|) |r| over d weights: a uniform direction times |N(0, 1)|; for d = 1 it is N(0, 1).

    E xi_j^2 = 1/d, E xi_j^4 = 9 / (d (d + 2)).

    Args:
        size: d.

    >>> round(Radial(1000).moment(Monomial(2)), 15)
    0.001
    """

    joint: ClassVar[bool] = True

    size: int

    def __post_init__(self) -> None:
        require_positive("size", self.size)

    def _label(self) -> str:
        return f"(z / |z|) |r| over d = {self.size} weights"

    def _sample(self, source: Source, draws: int, size: int, radius: Tensor | None) -> Tensor:
        z = source.normal(draws, size)
        if radius is None:
            radius = source.normal(draws).abs_()
        norm = vector_norm(z).clamp_(min=torch.finfo(source.dtype).tiny)
        return z.mul_((radius / norm).to(source.dtype)[:, None])

    def split(
        self,
        draws: int,
        sizes: Sequence[int],
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The norms |r| and |r| sqrt(G_b / sum G), G_b ~ chi^2(sizes[b])."""
        source = Source(dtype, device, generator)
        precise = replace(source, dtype=torch.float64)
        radius = source.normal(draws).abs_()
        if len(sizes) == 1:
            return radius, radius[:, None]
        squares = torch.stack([precise.gamma(d / 2, draws) for d in sizes], dim=1)
        shares = (squares / squares.sum(1, keepdim=True)).sqrt_()
        return radius, (radius[:, None] * shares).to(dtype)

    def log_density(self, xi: Tensor) -> Tensor:
        """The sum log(2/pi)/2 - rho^2/2 - (d-1) log rho - log A_d, rho = |xi|: O(d log d), hence float64."""
        rho: Tensor = torch.linalg.vector_norm(xi, dim=-1, dtype=torch.float64)
        return 0.5 * math.log(2 / math.pi) - self._log_area - 0.5 * rho * rho - (self.size - 1) * rho.log()

    def entropy(self) -> float:
        """Of all d weights: 1/2 + log(pi/2)/2 + (d-1) E log|r| + log A_d, E log|r| = -(gamma + log 2)/2."""
        log_radius = 0.5 * (polygamma(0, 0.5) + math.log(2))
        return 0.5 + 0.5 * math.log(math.pi / 2) + (self.size - 1) * log_radius + self._log_area

    @property
    def _log_area(self) -> float:
        """The area A_d = 2 pi^{d/2} / Gamma(d/2) of the unit sphere."""
        return math.log(2) + self.size / 2 * math.log(math.pi) - math.lgamma(self.size / 2)

    @property
    def _product(self) -> tuple[GammaProduct, float]:
        direction = (1, 0.5, 0.5), (-1, self.size / 2, 0.5)  # u^2 ~ Beta(1/2, (d-1)/2)
        return (HALF_NORMAL, *direction), math.log(2) / 2

    def _rule(self) -> Rule:
        return quadrature.radial_rule(self.size)

    def _core(self, taus: tuple[Monomial, ...]) -> sums.Core:
        return sums.radial_core(self.size)
