"""The inverse Gaussian noise of the Wald posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mcrepar.distributions import sample_means
from mcrepar.distributions.noise import Noise, Terms, require_positive
from mcrepar.distributions.quadrature import Grid
from mcrepar.distributions.random import Source
from mcrepar.distributions.statistics import Monomial

_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class InverseGaussian(Noise):
    """IG(1, phi), the Wald distribution: log q0 = log(phi/2pi)/2 - (3/2) log xi - phi (xi - 1)^2 / (2 xi).

    Args:
        concentration: phi.

    >>> InverseGaussian(2.0).means_distribution((Monomial(1), Monomial(-1))).kind
    'exact'
    """

    positive: ClassVar[bool] = True
    symmetric: ClassVar[bool] = False

    concentration: float

    def __post_init__(self) -> None:
        require_positive("concentration", self.concentration)

    def _label(self) -> str:
        return f"IG(1, {self.concentration:g})"

    def _sample(self, source: Source, draws: int, size: int, radius: Tensor | None) -> Tensor:
        return source.inverse_gaussian(self.concentration, draws, size)

    @property
    def _density(self) -> tuple[float, Terms]:
        phi = self.concentration
        terms = (-1.5, Monomial(0.0, log=1)), (-phi / 2, Monomial(1.0)), (-phi / 2, Monomial(-1.0))
        return (math.log(phi) - _LOG_2PI) / 2 + phi, terms

    @property
    def _grid(self) -> Grid:
        reach = math.log(3 + 800 / self.concentration)
        return Grid(-reach, reach, min(0.1, 0.4 / math.sqrt(self.concentration)))

    def _core(self, taus: tuple[Monomial, ...]) -> sample_means.MeansDistribution:
        return sample_means.tweedie_core(self.concentration)
