"""How the means t = mean_i tau(xi_i) over M draws are distributed: a core is known, the rest follows by regression.

Theorem M: a surrogate with the mean and the covariance of t gives the estimate of the KL and its whole
gradient their own mean and covariance, at every parameter. So what has no known distribution is completed as
    t_rest = E_rest + B (t_core - E_core) + L Z / sqrt(M),  B = C_rc C_cc^{-1},  L L^T = C_rr - B C_cr,
with C the covariance of tau(xi) for one draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mcrepar.distributions.quadrature import Vector
from mcrepar.distributions.random import Source
from mcrepar.distributions.statistics import Monomial

if TYPE_CHECKING:
    from mcrepar.distributions.noise import Noise

FIRST_TWO = (Monomial(1.0), Monomial(2.0))


Draw = Callable[[Source, int, int], list[Tensor]]  # source, draws, size -> one tensor (size,) per statistic


@dataclass(frozen=True)
class MeansDistribution:
    """Where the mean of M statistics comes from in `stats`."""

    kind: str  # "exact" (their own distribution), "matched" (exact mean and covariance) or "drawn" (M draws, averaged)
    from_draws: int  # the smallest M for which this distribution is used; below it the noise is drawn and averaged
    note: str  # one clause for `explain`
    taus: tuple[Monomial, ...] = ()  # the statistics whose means are drawn at once
    core: Draw | None = None  # which draws them; None where the noise is drawn and averaged
    completion: Completion | None = None  # how other statistics follow from them; None where there are no others
    order: tuple[int, ...] | None = None  # where each statistic asked for is among all of these; None: in order

    def draw(self, source: Source, draws: int, size: int) -> list[Tensor]:
        """One tensor (size,) per statistic."""
        assert draws >= self.from_draws, (draws, self.from_draws, self.note)
        assert self.core is not None, self.note
        means = self.core(source, draws, size)
        if self.completion is not None:
            means += self.completion.draw(means, draws, source)
        return self.ordered(means)

    def ordered(self, means: Sequence[Tensor]) -> list[Tensor]:
        """The means of all statistics as they were asked for."""
        return list(means) if self.order is None else [means[k] for k in self.order]


def _held(x: float) -> float:
    """A ratio of moments, or the error that they leave float64."""
    if math.isnan(x):
        raise OverflowError("a moment of the noise is out of range")
    return x


def symmetric_core(m2: float, m4: float, kind: str = "matched") -> MeansDistribution:
    """(mean xi, mean xi^2) of symmetric noise: t1 normal, t2 = t1^2 + Gamma; exact for Normal noise."""

    def draw(source: Source, draws: int, size: int) -> list[Tensor]:
        mean = m2 * (1 - 1 / draws)
        variance = (m4 - m2 * m2) / draws - 2 * m2 * m2 / draws**2
        t1 = source.normal(size, std=math.sqrt(m2 / draws))
        t2 = source.gamma(mean * mean / variance, size, scale=variance / mean, normal_from=15)
        return [t1, t2.addcmul_(t1, t1)]

    first = max(2, math.floor(_held(2 * m2 * m2 / (m4 - m2 * m2))) + 1)  # variance > 0
    note = "mean xi normal, mean xi^2 = (mean xi)^2 + Gamma"
    return MeansDistribution(kind, first, note, FIRST_TWO, draw)


def gamma_core(tau: Monomial, shape: float, factor: float) -> MeansDistribution:
    """The distribution mean tau(xi) = factor * Gamma(shape M) / M, for tau(xi) = factor * Gamma(shape)."""

    def draw(source: Source, draws: int, size: int) -> list[Tensor]:
        return [source.gamma(shape * draws, size, scale=factor / draws, normal_from=1e3)]

    return MeansDistribution("exact", 1, f"mean {tau.text('xi')} ~ Gamma({shape:g} M)", (tau,), draw)


def tweedie_core(concentration: float) -> MeansDistribution:
    """(mean xi, mean 1/xi) of IG(1, phi): x ~ IG(1, M phi) and 1/x + chi^2_{M-1} / (phi M), independent."""

    def draw(source: Source, draws: int, size: int) -> list[Tensor]:
        mean = source.inverse_gaussian(concentration * draws, size)
        rest = source.gamma((draws - 1) / 2, size, scale=2 / (concentration * draws), normal_from=1e3)
        return [mean, rest.add_(mean.reciprocal())]

    note = "mean xi inverse Gaussian, mean 1/xi = 1/mean xi + chi^2 (Tweedie)"
    return MeansDistribution("exact", 2, note, (Monomial(1.0), Monomial(-1.0)), draw)


@dataclass(frozen=True)
class Completion:
    """How the statistics outside the core follow from it."""

    core_means: Vector  # E_core
    means: Vector  # E_rest
    slopes: Vector  # B, one row per statistic of the rest
    root: Vector  # L

    def draw(self, core: Sequence[Tensor], draws: int, source: Source) -> list[Tensor]:
        """One tensor per statistic of the rest."""
        size = core[0].numel()
        centred = [t - m for t, m in zip(core, self.core_means.tolist(), strict=True)]
        normals = [source.normal(size, std=1 / math.sqrt(draws)) for _ in self.means]
        out = []
        for mean, coefficients in zip(self.means.tolist(), np.hstack([self.slopes, self.root]), strict=True):
            t = torch.full_like(core[0], mean)
            for coefficient, part in zip(coefficients.tolist(), centred + normals, strict=True):
                if coefficient:
                    t.add_(part, alpha=coefficient)
            out.append(t)
        return out


def _complete(noise: Noise, taus: Sequence[Monomial], known: int) -> Completion:
    """The regression of the statistics from position `known` on upon those before it."""
    means = np.array([noise.moment(tau) for tau in taus])
    covariance = np.array([[_mean_product(noise, a, b) for b in taus] for a in taus]) - np.outer(means, means)
    slopes = np.linalg.solve(covariance[:known, :known], covariance[:known, known:]).T
    residual = covariance[known:, known:] - slopes @ covariance[:known, known:]
    values, vectors = np.linalg.eigh(residual)  # rather than Cholesky: statistics may depend on one another
    return Completion(means[:known], means[known:], slopes, vectors * np.sqrt(np.maximum(values, 0.0)))


@lru_cache(maxsize=1024)
def means_distribution(noise: Noise, taus: tuple[Monomial, ...]) -> MeansDistribution:
    """The core of the noise, and the completion of what it lacks."""
    unknown = "no distribution of these means is known: the noise is drawn and averaged"
    drawn = MeansDistribution("drawn", 2**62, unknown)
    core = noise._core(taus)
    if core is None:
        return drawn
    every, order = list(core.taus), []
    for tau in taus:
        order.append(next((i for i, other in enumerate(every) if _same(noise, tau, other)), len(every)))
        if order[-1] == len(every):
            every.append(tau)
    known = len(core.taus)
    rest = every[known:]
    if not rest:
        return replace(core, order=tuple(order))
    if noise.joint or not all(noise.finite(2 * tau.power) for tau in rest):
        return drawn
    first = [30, core.from_draws]
    for tau in rest:  # the mean of a positive quantity comes out negative only beyond 5 standard deviations
        if not noise.odd(tau) and tau.log % 2 == 0:
            first.append(math.ceil(_held(25 * (_mean_product(noise, tau, tau) / noise.moment(tau) ** 2 - 1))))
    note = f"{core.note}; mean {', '.join(tau.text('xi') for tau in rest)} by regression"
    completion = _complete(noise, every, known)
    return MeansDistribution("matched", max(first), note, core.taus, core.core, completion, tuple(order))


def _same(noise: Noise, a: Monomial, b: Monomial) -> bool:
    """Whether two statistics are one: |xi|^2 and xi^2, or powers that differ by rounding (1 / (1 / 49))."""
    close = math.isclose(a.power, b.power, rel_tol=1e-12) and a.log == b.log
    return close and (a.absolute == b.absolute or noise.positive or (a.even and b.even))


def _mean_product(noise: Noise, a: Monomial, b: Monomial) -> float:
    if noise.odd(a) != noise.odd(b):
        return 0.0
    return noise.moment(Monomial(a.power + b.power, a.log + b.log, absolute=not noise.positive))
