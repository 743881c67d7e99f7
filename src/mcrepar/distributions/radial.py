"""The radial distribution of the noise: jointly over all weights of a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from mcrepar.distributions import quadrature, sample_means
from mcrepar.distributions.noise import Noise, normal_means, require_positive
from mcrepar.distributions.quadrature import Curve, Rule
from mcrepar.distributions.random import BITS_STD, Source, total, vector_norm
from mcrepar.distributions.special import HALF_NORMAL, GammaProduct, gamma_ratio, polygamma
from mcrepar.distributions.statistics import Monomial


def log_area(size: int) -> float:
    """The logarithm of the area 2 pi^{d/2} / Gamma(d/2) of the unit sphere in d dimensions."""
    return math.log(2) + size / 2 * math.log(math.pi) - math.lgamma(size / 2)


def norm_statistic(u: Tensor) -> Tensor:
    """-r^2 / 2 - (d - 1) log r, r = |u| over the last dimension: the log density of unit scale without its constant."""
    squares: Tensor = (u**2).sum(-1)
    return -squares / 2 - (u.shape[-1] - 1) / 2 * squares.log()


def log_constant(size: int) -> float:
    """The constant of that log density."""
    return 0.5 * math.log(2 / math.pi) - log_area(size)


@dataclass(frozen=True)
class Radial(Noise):
    """(z / |z|) |r| over d weights: a uniform direction times |N(0, 1)|; for d = 1 it is N(0, 1).

    E xi_j^2 = 1/d, E xi_j^4 = 9 / (d (d + 2)).

    >>> round(Radial(1000).moment(Monomial(2)), 15)
    0.001
    """

    joint: ClassVar[bool] = True
    projects: ClassVar[bool] = True
    joins: ClassVar[bool] = True
    redraws: ClassVar[bool] = True

    size: int  # d

    def __post_init__(self) -> None:
        require_positive("size", self.size)

    def _label(self) -> str:
        return f"(z / |z|) |r| over d = {self.size} weights"

    def _sample(self, source: Source, draws: int, size: int, radius: Tensor | None) -> Tensor:
        z = source.normal(draws, size)
        if radius is None:
            radius = source.normal(draws).abs_()
        norm = vector_norm(z).clamp(min=torch.finfo(source.dtype).tiny)
        return z.mul_((radius / norm).to(source.dtype)[:, None])

    def draw_rows(self, source: Source, draws: int, sizes: Sequence[int], places: Tensor) -> Tensor:
        """(z / |z|) |r| for each of the tensors, whatever the size of this one; the radii r are the last normals."""
        rows = source.normal_rows(draws, sum(sizes) + len(sizes))
        *parts, radii = torch.split_with_sizes(rows, [*sizes, len(sizes)], -1)
        z, least = rows[:, : sum(sizes)], torch.finfo(rows.dtype).tiny
        if draws == 1:  # in few operations, which is what counts for one row
            if z.device.type == "cpu":
                norms = rows.new_zeros(1, len(sizes)).index_add_(1, places, z * z).sqrt_()
            else:  # where many additions to one number would wait for one another
                norms = torch.stack(torch._foreach_norm([part[0] for part in parts]))[None]
            return z.mul_(radii.abs().div_(norms.clamp_(min=least)).index_select(1, places))
        norms = torch.stack([vector_norm(part).to(rows.dtype) for part in parts], -1).clamp_(min=least)
        for part, stretch in zip(parts, radii.abs().div_(norms).unsqueeze(-1).unbind(1), strict=True):
            part.mul_(stretch)
        return z

    def split(self, source: Source, draws: int, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The norms |r| and |r| sqrt(G_b / sum G), G_b ~ chi^2(sizes[b])."""
        precise = replace(source, dtype=torch.float64)
        radius = source.normal(draws).abs_()
        if len(sizes) == 1:
            return radius, radius[:, None]
        whole = sizes[:-1]  # of one size, mostly
        equal = [precise.gamma(whole[0] / 2, draws, len(whole))] if len(set(whole)) == 1 else []
        each = [precise.gamma(d / 2, draws, 1) for d in (sizes[-1:] if equal else sizes)]
        squares = torch.cat([*equal, *each], dim=1)
        shares = (squares / squares.sum(1, keepdim=True)).sqrt_()
        return radius, (radius[:, None] * shares).to(source.dtype)

    def log_density(self, xi: Tensor) -> Tensor:
        """The sum log(2/pi)/2 - rho^2/2 - (d-1) log rho - log A_d, rho = |xi|: O(d log d), hence float64."""
        rho: Tensor = torch.linalg.vector_norm(xi, dim=-1, dtype=torch.float64)
        return log_constant(self.size) - 0.5 * rho * rho - (self.size - 1) * rho.log()

    def log_weight(self, t: Tensor) -> Tensor:
        """Of log |xi_j|, one coordinate: from a table, each value of which is an integral over the direction."""
        return _coordinate_curve(self.size)(t)

    def entropy(self) -> float:
        """Of all d weights: 1/2 + log(pi/2)/2 + (d-1) E log|r| + log A_d, E log|r| = -(gamma + log 2)/2."""
        log_radius = 0.5 * (polygamma(0, 0.5) + math.log(2))
        return 0.5 + 0.5 * math.log(math.pi / 2) + (self.size - 1) * log_radius + log_area(self.size)

    def scale_information(self) -> float:
        """That of a Normal weight with its standard deviation: its own is infinite."""
        return 2.0

    def mean_norm(self, ratio: Tensor) -> Tensor:
        """The mean over j of -s_j^2/2 - (d - 1) log s_j, less (d - 1) E log |N(0, 1)|: s_j is `ratio`.

        Where all s_j are equal, r = s |N(0, 1)|, and this has the value and the gradient of the expectation.
        """
        rest = self.size - 1
        log_radius = -(math.log(2) + 0.5772156649015329) / 2
        return (-(ratio * ratio) / 2 - rest * ratio.log()).mean(dtype=torch.float64) - rest * log_radius

    @property
    def _product(self) -> tuple[GammaProduct, float]:
        direction = (1, 0.5, 0.5), (-1, self.size / 2, 0.5)  # u^2 ~ Beta(1/2, (d-1)/2)
        return (HALF_NORMAL, *direction), math.log(2) / 2

    def _rule(self) -> Rule:
        """One coordinate r u: half a Gauss-Hermite rule times a Gauss-Gegenbauer rule."""
        r, r_weights = quadrature.hermite(32)
        u, u_weights = _gegenbauer(24, self.size)
        x, weights = np.outer(r[16:], u).ravel(), np.outer(2 * r_weights[16:], u_weights).ravel()
        return x[weights > 0], weights[weights > 0]

    def _core(self, taus: tuple[Monomial, ...]) -> sample_means.MeansDistribution:
        """(mean xi, mean xi^2) of all coordinates, with their full covariance.

        t1 = Z / sqrt(dM); t2 = (chi^2_M / M) G / sum G with G_j ~ Gamma(alpha), alpha = (M(d+2) + 2(d-1)) / (6d).
        """

        def draw(source: Source, draws: int, size: int) -> list[Tensor]:
            assert size == self.size, (size, self.size)
            alpha = self._alpha(draws)
            t1 = source.normal(size, std=1 / math.sqrt(size * draws))
            t2 = source.gamma(alpha, size, scale=1 / alpha, normal_from=15)
            square = replace(source, dtype=torch.float64).gamma(draws / 2, 1, scale=2 / draws)
            return [t1, t2.mul_((square / total(t2)).to(t2.dtype))]

        note = "mean xi normal, mean xi^2 = chi^2_M times a Dirichlet vector"
        return sample_means.MeansDistribution("matched", 30, note, sample_means.FIRST_TWO, draw)

    def split_means(self, source: Source, draws: int, sizes: Sequence[int]) -> list[float | None]:
        """The sums of t2 over blocks: chi^2_M / M times the blocks' shares of the Dirichlet vector."""
        precise, alpha = replace(source, dtype=torch.float64), self._alpha(draws)
        parts = torch.cat([precise.gamma(alpha * size, 1, normal_from=1e3) for size in sizes])
        square = precise.gamma(draws / 2, 1, scale=2 / draws, normal_from=1e3)
        shares: list[float | None] = (parts * (square / parts.sum())).tolist()
        return shares

    def draw_means_of_block(
        self, taus: tuple[Monomial, ...], source: Source, draws: int, size: int, share: float | None
    ) -> list[Tensor]:
        """Uniform t1 and t2 with the moments of `_core`, which is matched, not exact; t2 sums to the block's share."""
        assert share is not None
        first, second = 1 / math.sqrt(self.size * draws) / BITS_STD, 1 / math.sqrt(self._alpha(draws)) / BITS_STD
        t1, t2 = source.bits(size).mul_(first).add_(first / 2), source.bits(size)
        stretch = share / (size * (1 + second / 2) + second * t2.sum().item())
        means = t1, t2.mul_(second * stretch).add_(stretch * (1 + second / 2))
        return self.means_distribution(taus).ordered(means)

    def draw_means_rows(
        self, taus: tuple[Monomial, ...], source: Source, draws: int, sizes: Sequence[int], places: Tensor
    ) -> list[Tensor]:
        """Those of `_core` for every tensor, whatever the size of this one, in few operations for all."""
        t1, t2 = source.normal(sum(sizes)), source.normal(sum(sizes))
        first, second = torch.split(t1, list(sizes)), torch.split(t2, list(sizes))
        torch._foreach_mul_(first, [1 / math.sqrt(size * draws) for size in sizes])
        alphas = [Radial(size)._alpha(draws) for size in sizes]
        if min(alphas) >= 15:  # the cube of a normal, as `Source.gamma` takes it
            torch._foreach_mul_(second, [1 / math.sqrt(9 * alpha) for alpha in alphas])
            torch._foreach_add_(second, [1 - 1 / (9 * alpha) for alpha in alphas])
            t2.pow_(3)
        else:
            torch._foreach_mul_([part.fill_(1.0) for part in second], alphas)
            t2.copy_(torch._standard_gamma(t2, source.generator))
        squares = source.gamma(draws / 2, len(sizes), scale=2 / draws, normal_from=1e3)
        means = t1, t2.mul_((squares / torch.stack(torch._foreach_norm(second, 1))).index_select(0, places))
        return self.means_distribution(taus).ordered(means)

    def _alpha(self, draws: int) -> float:
        return (draws * (self.size + 2) + 2 * (self.size - 1)) / (6 * self.size)

    @property
    def stable(self) -> bool:
        """One weight has Normal noise."""
        return self.size == 1

    def project(self, source: Source, *shape: int) -> Tensor:
        """|r| z / sqrt(|z|^2 + chi^2(d - O)) jointly over O outputs (D5).

        >>> zeta = Radial(400).project(Source(torch.float64, "cpu", torch.Generator().manual_seed(0)), 10_000, 3)
        >>> (400 * zeta.square().mean()).round()  # E zeta^2 = 1 / d
        tensor(1., dtype=torch.float64)
        """
        z = source.normal(*shape)
        if self.size == 1:
            return z
        rows, outputs = (*shape[:-1], 1), shape[-1]
        square = z.square().sum(-1, keepdim=True)
        if self.size > outputs:
            square = square + source.gamma((self.size - outputs) / 2, *rows, scale=2.0, normal_from=1e3)
        return z * (source.normal(*rows).abs() / square.sqrt())

    def project_means(self, source: Source, draws: int, *shape: int) -> tuple[Tensor, Tensor]:
        """Z / sqrt(d M), and chi^2_M / M times the outputs' shares of a Dirichlet vector of d coordinates."""
        if self.size == 1:
            return normal_means(source, draws, *shape)
        alpha = self._alpha(draws)
        shares, rows = source.gamma(alpha, *shape, normal_from=15), (*shape[:-1], 1)
        whole = shares.sum(-1, keepdim=True)
        if self.size > shape[-1]:
            whole = whole + source.gamma(alpha * (self.size - shape[-1]), *rows, normal_from=15)
        square = source.gamma(draws / 2, *rows, scale=2 / draws, normal_from=1e3)
        return source.normal(*shape, std=1 / math.sqrt(self.size * draws)), shares * (square / whole)


def _gegenbauer(count: int, size: int) -> Rule:
    """Gauss rule for one coordinate u of a uniform direction in R^size, density ~ (1 - u^2)^{(size-3)/2}."""
    n = np.arange(2.0, count)
    squares = n * (n + size - 3) / ((2 * n + size - 2) * (2 * n + size - 4))
    off = np.sqrt(np.concatenate([[1 / size], squares]))  # Jacobi matrix; the first entry is E u^2
    u, vectors = np.linalg.eigh(np.diag(off, 1) + np.diag(off, -1))
    return u, vectors[0] ** 2


@lru_cache(maxsize=256)
def _coordinate_curve(size: int) -> Curve:
    """The log density of t = log |xi_j|, for each sign, by Gauss-Legendre panels in v.

    xi_j = r u, u = 1 / cosh v having the density C (1 - u^2)^{(d-3)/2}, so
    q(x) = 2 C int_0^inf phi(|x| cosh v) tanh(v)^{d-2} dv, C = Gamma(d/2) / (sqrt(pi) Gamma((d-1)/2)).
    """
    grid = quadrature.Grid(-50.0 - 0.5 * math.log(size), math.log(40.0), 0.05)
    t = grid.points()
    if size == 1:
        return Curve(grid.low, grid.step, torch.tensor(t - 0.5 * np.exp(2 * t) - 0.5 * math.log(2 * math.pi)))
    nodes, weights = np.polynomial.legendre.leggauss(16)
    panel, last = 0.5, 4.5 - grid.low  # cosh(last) exp(t) = 45 at the lowest t
    starts = np.arange(0.0, last, panel)
    v = (starts[:, None] + panel * (nodes + 1) / 2).ravel()
    inner = np.log(np.tile(weights * panel / 2, len(starts))) + (size - 2) * np.log(np.tanh(v))
    log_cosh = v + np.log1p(np.exp(-2 * v)) - math.log(2)
    with np.errstate(over="ignore"):
        heights = inner - 0.5 * np.exp(2 * (t[:, None] + log_cosh))
    top = heights.max(1)
    sums = top + np.log(np.exp(heights - top[:, None]).sum(1))
    constant = 0.5 * math.log(2) - math.log(math.pi) + math.log(gamma_ratio((size - 1) / 2, 0.5))
    return Curve(grid.low, grid.step, torch.tensor(sums + constant + t))
