"""What every distribution of the noise xi can do, and what follows for it from little."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from mcrepar.distributions import quadrature, sample_means
from mcrepar.distributions.quadrature import Grid, Rule, Vector
from mcrepar.distributions.random import Source
from mcrepar.distributions.sample_means import MeansDistribution
from mcrepar.distributions.special import GammaProduct, gamma_product_moment
from mcrepar.distributions.statistics import Monomial
from mcrepar.errors import ParameterError

Terms = tuple[tuple[float, Monomial], ...]


@dataclass(frozen=True)
class Noise(ABC):
    """The distribution of xi, elementwise (or, if `joint`, of a whole vector).

    A new distribution is a frozen dataclass with `_label`, `_sample`, its density (`_density`, or `log_density`) and
    its moments (`_product`, or `_grid`, over which the density is integrated). All else has a default, and
    closed forms can be added one by one.
    """

    positive: ClassVar[bool] = False  # whether xi > 0
    symmetric: ClassVar[bool] = True  # whether xi and -xi have one distribution
    joint: ClassVar[bool] = False  # whether the coordinates of xi depend on one another
    projects: ClassVar[bool] = False  # whether `project` and `project_means` exist
    joins: ClassVar[bool] = False  # whether `draw_rows` draws for several tensors at once, although the noise is joint
    redraws: ClassVar[bool] = False  # whether to draw means of a block again costs less than to keep them

    # ---- what a distribution says of itself

    @abstractmethod
    def _label(self) -> str: ...

    @abstractmethod
    def _sample(self, source: Source, draws: int, size: int, radius: Tensor | None) -> Tensor: ...

    @property
    def _density(self) -> tuple[float, Terms] | None:
        """The constant and the (coefficient, tau) with log q0(xi) = constant + sum coefficient * tau(xi)."""
        return None

    @property
    def _product(self) -> tuple[GammaProduct, float] | None:
        """The gamma functions and the log of the factor that make up E|xi|^p."""
        return None

    @property
    def _grid(self) -> Grid:
        """The points of log |xi| over which the density is integrated."""
        raise self._lacks("_grid", "a distribution without `_rule`")

    def _lacks(self, member: str, kind: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} has no {member}, which {kind} needs: define it in its class")

    def _rule(self) -> Rule:
        return quadrature.both_signs(_half_line(self)) if self.symmetric else _half_line(self)

    def _core(self, taus: tuple[Monomial, ...]) -> MeansDistribution | None:
        """The statistics whose distribution of means is known, where `taus` are asked for."""
        if not (self.symmetric and self.finite(4.0)):
            return None
        return sample_means.symmetric_core(self.moment(Monomial(2.0)), self.moment(Monomial(4.0)))

    @property
    def linear(self) -> bool:
        """Whether a quadrature goes over xi itself, its density being smooth, and not over log |xi|."""
        return False

    def log_weight(self, t: Tensor) -> Tensor:
        """The log density of the variable of a quadrature: of t = xi if `linear`, of t = log |xi| for each sign if not.

        One weight of a joint distribution has a distribution of its own, and this is its density.
        """
        return self.log_density(t) if self.linear else self.log_density(t.exp()) + t

    # ---- what follows

    @property
    def label(self) -> str:
        """How the distribution is printed."""
        return self._label()

    def draw(
        self,
        draws: int,
        size: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        generator: torch.Generator | None = None,
        radius: Tensor | None = None,
    ) -> Tensor:
        """Independent draws of xi for `size` weights, one per row.

        `radius` is the norm of every row, for blocks of one joint draw (`split`); others ignore it.
        """
        return self._sample(Source(dtype, device, generator), draws, size, radius)  # (draws, size)

    def draw_rows(self, source: Source, draws: int, sizes: Sequence[int], places: Tensor) -> Tensor:
        """Draws for several tensors of one family, one tensor after the other in each row: (draws, sum of sizes).

        The rows are the same whether they are drawn together or one after the other.

        Args:
            source: of random numbers.
            draws: number of rows.
            sizes: of the tensors.
            places: the number of the tensor that a weight of a row belongs to.
        """
        assert not self.joint, "joint noise with joins = True defines draw_rows"
        return torch.cat([self._sample(source, 1, sum(sizes), None) for _ in range(draws)])

    def split(self, source: Source, draws: int, sizes: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """The norms (draws,) and (draws, blocks) with which blocks drawn apart are one joint draw, if it is joint."""
        return None

    def log_density(self, xi: Tensor) -> Tensor:
        """The log density q0(xi), elementwise; over the last dimension if the distribution is joint."""
        assert self._density is not None
        constant, terms = self._density
        out = torch.full_like(xi, constant)
        for coefficient, tau in terms:
            out = out + coefficient * tau(xi)
        return out

    def log_density_of_log(self, log_xi: Tensor) -> Tensor:
        """The same from log xi, for positive noise whose density is made of monomials."""
        assert self._density is not None
        constant, terms = self._density
        out = torch.full_like(log_xi, constant)
        for coefficient, tau in terms:
            out = out + coefficient * (tau.power * log_xi).exp() * log_xi**tau.log
        return out

    @property
    def density_terms(self) -> Terms | None:
        """The (coefficient, tau) with log q0(xi) = constant + sum coefficient * tau(xi), or None."""
        return None if self._density is None else self._density[1]

    def entropy(self) -> float:
        """H0 = -E log q0(xi): of one weight, or of the whole vector if the distribution is joint."""
        if self._density is None:
            return _numerical_entropy(self)
        constant, terms = self._density
        return -constant - sum(coefficient * self.moment(tau) for coefficient, tau in terms)

    def scale_information(self) -> float:
        """The Fisher information of log scale, E (1 + xi d log q0 / d xi)^2: 2 for Normal, 1 for Laplace noise."""
        return _scale_information(self)

    def finite(self, power: float) -> bool:
        """Whether E|xi|^power is finite."""
        if self._product is None:
            return self.positive or power > -1
        return all(a + r * power > 0 for _, a, r in self._product[0])

    def odd(self, tau: Monomial) -> bool:
        """Whether tau changes its sign with xi, under a symmetric distribution."""
        return self.symmetric and not tau.absolute and tau.power % 2 == 1

    def moment(self, tau: Monomial) -> float:
        """E tau(xi): infinite where E|tau(xi)| is, 0 for odd powers of symmetric noise."""
        return _moment(self, tau)

    def nodes(self) -> Rule:
        """Nodes x and weights omega with sum omega g(x) = E g(xi) for one weight; read-only."""
        return _nodes(self)

    # ---- closed expectations, None where there is none

    def mean_abs(self, u: Tensor, scale: Tensor) -> Tensor | None:
        """E|u + scale xi|."""
        return None

    def mean_softplus(self, u: Tensor, ratio: Tensor) -> Tensor | None:
        """E log(1 + exp(-(u + ratio xi))), to first order around ratio = 1."""
        return None

    def mean_norm(self, ratio: Tensor) -> Tensor | None:
        """E (-r^2 / 2 - (d - 1) log r), r = |ratio xi| over all weights of joint noise, around equal ratios."""
        return None

    def log_mgf(self, s: Tensor) -> Tensor | None:
        """The logarithm of E exp(s xi), for s < mgf_limit."""
        return None

    @property
    def mgf_limit(self) -> float:
        """The s below which `log_mgf` is finite; 0 where it is None."""
        return 0.0

    # ---- the distribution of sums

    def means_distribution(self, taus: tuple[Monomial, ...]) -> MeansDistribution:
        """Where the means of tau(xi) over M draws come from."""
        return sample_means.means_distribution(self, taus)

    def draw_means(
        self,
        taus: tuple[Monomial, ...],
        draws: int,
        size: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
        generator: torch.Generator | None = None,
    ) -> list[Tensor]:
        """One draw of mean_i tau(xi_i) over i = 1..draws for every weight, in a time independent of `draws`.

        Arguments are those of `draw`, with `draws` at least `means_distribution(taus).from_draws`.
        """
        return self.means_distribution(taus).draw(Source(dtype, device, generator), draws, size)  # (size,) each

    def draw_means_rows(
        self, taus: tuple[Monomial, ...], source: Source, draws: int, sizes: Sequence[int], places: Tensor
    ) -> list[Tensor]:
        """The same for several tensors of one family, one tensor after the other; arguments as of `draw_rows`."""
        return self.means_distribution(taus).draw(source, draws, sum(sizes))  # (sum of sizes,) each

    def split_means(self, source: Source, draws: int, sizes: Sequence[int]) -> list[float | None]:
        """What `draw_means_of_block` needs to know of each of the blocks of a tensor: nothing, unless it is joint."""
        return [None] * len(sizes)

    def draw_means_of_block(
        self, taus: tuple[Monomial, ...], source: Source, draws: int, size: int, share: float | None
    ) -> list[Tensor]:
        """One draw of the means for a block of weights of a tensor, with its share from `split_means`."""
        return self.means_distribution(taus).draw(source, draws, size)

    # ---- projections onto orthogonal unit vectors: the noise that a dense layer's weights put on its outputs

    @property
    def stable(self) -> bool:
        """Whether a sum of independent projections is a multiple of one projection."""
        return False

    def project(self, source: Source, *shape: int) -> Tensor:
        """One projection of xi for every output, jointly over the last dimension of `shape`, (..., outputs)."""
        raise self._lacks("project", "a distribution with projects = True")

    def project_means(self, source: Source, draws: int, *shape: int) -> tuple[Tensor, Tensor]:
        """The means of projections and of their squares over `draws` >= 30, in a time independent of `draws`."""
        raise self._lacks("project_means", "a distribution with projects = True")


@lru_cache(maxsize=4096)
def _moment(noise: Noise, tau: Monomial) -> float:
    if not noise.finite(tau.power):
        return math.inf
    if noise.odd(tau):
        return 0.0
    assert noise.positive or tau.absolute or tau.even, f"{tau.text('xi')} of noise of both signs"
    if noise._product is not None:
        return gamma_product_moment(*noise._product, tau.power, tau.log)
    x, weights = _half_line(noise)
    return float(weights @ (x**tau.power * np.log(x) ** tau.log))


@lru_cache(maxsize=256)
def _nodes(noise: Noise) -> Rule:
    x, weights = noise._rule()
    x.setflags(write=False)
    weights.setflags(write=False)
    return x, weights


@lru_cache(maxsize=256)
def _half_line(noise: Noise) -> Rule:
    """Nodes and weights of |xi|."""
    return quadrature.log_trapezoid(lambda x: numpy_log_density(noise, x), noise._grid)


@lru_cache(maxsize=256)
def _numerical_entropy(noise: Noise) -> float:
    x, weights = noise.nodes()
    return -float(weights @ numpy_log_density(noise, x))


@lru_cache(maxsize=256)
def _scale_information(noise: Noise) -> float:
    nodes, weights = noise.nodes()
    xi = torch.tensor(nodes, requires_grad=True)
    (slope,) = torch.autograd.grad(noise.log_density(xi).sum(), xi)
    return float(torch.tensor(weights) @ (1 + xi.detach() * slope).square())


def numpy_log_density(noise: Noise, x: Vector) -> Vector:
    """The log density of an array, in float64."""
    values: Vector = noise.log_density(torch.tensor(x)).numpy()
    return values


def normal_means(source: Source, draws: int, *shape: int) -> tuple[Tensor, Tensor]:
    """(mean z, mean z^2) over M draws of N(0, 1), from their own distribution."""
    t1, t2 = sample_means.symmetric_core(1.0, 3.0).draw(source, draws, math.prod(shape))
    return t1.view(shape), t2.view(shape)


def require_positive(name: str, value: float) -> None:
    """Refuse a parameter that is not positive and finite."""
    if not 0 < value < math.inf:
        raise ParameterError(f"{name}={value}", "it must be positive and finite", "another value")
