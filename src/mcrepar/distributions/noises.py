"""The distributions of the noise xi: how it is drawn, its moments, its entropy, and the distribution of its sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mcrepar.distributions import quadrature, sample_means
from mcrepar.distributions.noise import Noise, Terms, normal_means, numpy_log_density, require_positive
from mcrepar.distributions.quadrature import Grid, Rule
from mcrepar.distributions.random import Source
from mcrepar.distributions.special import HALF_NORMAL, GammaProduct
from mcrepar.distributions.statistics import Monomial

_LOG_2PI = math.log(2 * math.pi)


def _ratio(u: Tensor, scale: Tensor) -> Tensor:
    """|u| / scale, held at 800, where its exponentials vanish: no 0 * inf in a gradient."""
    size = _magnitude(u)
    return size / torch.maximum(scale, size / 800)


def _magnitude(u: Tensor) -> Tensor:
    """|u| with slope 1 at 0, so that second derivatives through it are right there."""
    return torch.where(u < 0, -u, u)


@dataclass(frozen=True)
class Normal(Noise):
    """N(0, 1).

    >>> round(Normal().moment(Monomial(4)), 12)
    3.0
    >>> Normal().means_distribution((Monomial(1), Monomial(2))).kind
    'exact'
    """

    projects: ClassVar[bool] = True
    linear = True  # a bell on the line
    stable = True  # a sum of independent Normals is Normal
    mgf_limit = math.inf  # every s will do

    def _label(self) -> str:
        return "N(0, 1)"

    def _sample(self, source: Source, draws: int, size: int, radius: Tensor | None) -> Tensor:
        return source.normal(draws, size)

    def draw_rows(self, source: Source, draws: int, sizes: Sequence[int], places: Tensor) -> Tensor:
        """N(0, 1), independently."""
        return source.normal_rows(draws, sum(sizes))

    @property
    def _density(self) -> tuple[float, Terms]:
        return -_LOG_2PI / 2, ((-0.5, Monomial(2.0)),)

    @property
    def _product(self) -> tuple[GammaProduct, float]:
        return (HALF_NORMAL,), math.log(2) / 2

    def _rule(self) -> Rule:
        return quadrature.hermite(64)

    def _core(self, taus: tuple[Monomial, ...]) -> sample_means.MeansDistribution:
        return sample_means.symmetric_core(1.0, 3.0, kind="exact")

    def mean_abs(self, u: Tensor, scale: Tensor) -> Tensor:
        """|u| erf(x / sqrt(2)) + scale sqrt(2/pi) e^{-x^2/2}, x = |u| / scale."""
        x = _ratio(u, scale)
        density = torch.exp(-0.5 * x * x) * math.sqrt(2 / math.pi)
        return _magnitude(u) * torch.erf(x * math.sqrt(0.5)) + scale * density

    def log_mgf(self, s: Tensor) -> Tensor:
        """The parabola s^2 / 2."""
        return 0.5 * s * s

    def project(self, source: Source, *shape: int) -> Tensor:
        """N(0, 1), independently."""
        return source.normal(*shape)

    def project_means(self, source: Source, draws: int, *shape: int) -> tuple[Tensor, Tensor]:
        """Those of N(0, 1), from their own distribution."""
        return normal_means(source, draws, *shape)


@dataclass(frozen=True)
class Logistic(Noise):
    """log U - log(1 - U), U uniform; log q0 = -xi - 2 log(1 + e^-xi).

    >>> x, weights = Logistic().nodes()
    >>> round(float(weights @ x**2), 10)  # pi^2 / 3
    3.2898681337
    """

    linear = True  # a bell on the line
    mgf_limit = 1.0

    def _label(self) -> str:
        return "Logistic(0, 1)"

    def _sample(self, source: Source, draws: int, size: int, radius: Tensor | None) -> Tensor:
        return source.uniform(draws, size).logit_(eps=torch.finfo(source.dtype).eps / 4)  # below 1 - max U

    def log_density(self, xi: Tensor) -> Tensor:
        """-|xi| - 2 log(1 + e^{-|xi|}), elementwise."""
        size = xi.abs()
        return -size - 2 * torch.log1p(torch.exp(-size))

    def entropy(self) -> float:
        """Exactly 2."""
        return 2.0

    @property
    def _grid(self) -> Grid:
        return Grid(-45.0, 6.0, 0.1)

    def _rule(self) -> Rule:
        return quadrature.trapezoid(lambda x: numpy_log_density(self, x), Grid(-40.0, 40.0, 0.5))

    def mean_abs(self, u: Tensor, scale: Tensor) -> Tensor:
        """|u| + 2 scale log(1 + e^{-|u|/scale})."""
        return _magnitude(u) + 2 * scale * torch.log1p(torch.exp(-_ratio(u, scale)))

    def log_mgf(self, s: Tensor) -> Tensor:
        """log(pi s / sin(pi s)), infinite from |s| = 1 on."""
        return torch.where(s.abs() < 1, -torch.log(torch.sinc(torch.where(s.abs() < 1, s, 0.0))), math.inf)

    def mean_softplus(self, u: Tensor, ratio: Tensor) -> Tensor:
        """u / (e^u - 1) + (ratio - 1) u^2 / (8 sinh^2(u/2)): exact at ratio = 1, and so is its gradient."""
        half = (u / 2).abs().clamp(max=40.0)
        flat = half < 1e-2
        wide = torch.where(flat, 1.0, half)
        slope = torch.where(flat, 1 - half * half / 3, (wide / wide.sinh()) ** 2) / 2
        return self._softplus(u) + (ratio - 1) * slope

    def _softplus(self, u: Tensor) -> Tensor:
        """u / (e^u - 1), by its series near 0."""
        near = u.abs() < 0.2
        v = torch.where(near, u, 0.0)
        square = v * v
        series = 1 / 12 - square * (1 / 720 - square * (1 / 30240 - square / 1209600))
        far = torch.where(near, 1.0, u)
        size = far.abs()
        direct = (-far).clamp(min=0) + size * torch.exp(-size) / -torch.expm1(-size)
        return torch.where(near, 1 - v / 2 + square * series, direct)


@dataclass(frozen=True)
class GammaPower(Noise):
    """factor * G^r with G ~ Gamma(k, 1): Exponential, Gamma, Erlang, Rayleigh, Weibull, Inverse-Gamma.

    E xi^p = factor^p Gamma(k + r p) / Gamma(k).

    >>> GammaPower(2.5).label, GammaPower(3.0, -1.0).label
    ('Gamma(2.5)', 'Gamma(3)^-1')
    >>> GammaPower(3.0, -1.0).moment(Monomial(3))
    inf
    """

    positive: ClassVar[bool] = True
    symmetric: ClassVar[bool] = False

    shape: float  # k
    exponent: float = 1.0  # r (Weibull 1/k_w, Rayleigh 1/2, Inverse-Gamma -1)
    factor: float = 1.0  # Rayleigh sqrt(2)

    def __post_init__(self) -> None:
        require_positive("shape", self.shape)
        require_positive("|exponent|", abs(self.exponent))
        require_positive("factor", self.factor)

    def _label(self) -> str:
        factor = "" if self.factor == 1 else f"{self.factor:.4g} "
        exponent = "" if self.exponent == 1 else f"^{self.exponent:.4g}"
        return f"{factor}Gamma({self.shape:g}){exponent}"

    def _sample(self, source: Source, draws: int, size: int, radius: Tensor | None) -> Tensor:
        g = source.gamma(self.shape, draws, size)
        if self.exponent != 1:
            g.pow_(self.exponent)
        if self.factor != 1:
            g.mul_(self.factor)
        limits = torch.finfo(source.dtype)
        return g.clamp(limits.tiny, limits.max)  # small shapes underflow; log xi and 1/xi stay finite

    @property
    def _density(self) -> tuple[float, Terms]:
        k, r = self.shape, self.exponent
        log_factor = math.log(self.factor)
        constant = -math.lgamma(k) - math.log(abs(r)) - k / r * log_factor
        power = (-math.exp(-log_factor / r), Monomial(1 / r))
        logs = ((k / r - 1, Monomial(0.0, log=1)),) if k != r else ()
        return constant, (*logs, power)

    @property
    def _product(self) -> tuple[GammaProduct, float]:
        return ((1, self.shape, self.exponent),), math.log(self.factor)

    def _rule(self) -> Rule:
        g, weights = quadrature.gamma_rule(self.shape)
        return self.factor * g**self.exponent, weights

    def _core(self, taus: tuple[Monomial, ...]) -> sample_means.MeansDistribution:
        power = 1 / self.exponent
        return sample_means.gamma_core(Monomial(power), self.shape, self.factor**power)

    def log_mgf(self, s: Tensor) -> Tensor | None:
        """-k log(1 - factor s), for r = 1."""
        if self.exponent != 1:
            return None
        inside = self.factor * s < 1
        return torch.where(inside, -self.shape * torch.log1p(-torch.where(inside, self.factor * s, 0.0)), math.inf)

    @property
    def mgf_limit(self) -> float:
        """1 / factor, for r = 1."""
        return 1 / self.factor if self.exponent == 1 else 0.0


@dataclass(frozen=True)
class SignedGammaPower(Noise):
    """s G^(1/c), s a fair sign, G ~ Gamma(1/c, 1): the Error distribution, q0 = c e^{-|xi|^c} / (2 Gamma(1/c)).

    >>> round(SignedGammaPower(1.0).moment(Monomial(4)), 10)
    24.0
    """

    power: float  # c (Laplace 1)

    def __post_init__(self) -> None:
        require_positive("power", self.power)

    def _label(self) -> str:
        return "Laplace(0, 1)" if self.power == 1 else f"Error({self.power:g})"

    def _sample(self, source: Source, draws: int, size: int, radius: Tensor | None) -> Tensor:
        size_of_xi = source.gamma(1 / self.power, draws, size)
        if self.power != 1:
            size_of_xi.pow_(1 / self.power)
        return size_of_xi.copysign_(source.uniform(draws, size, low=-1.0))

    @property
    def _density(self) -> tuple[float, Terms]:
        constant = math.log(self.power / 2) - math.lgamma(1 / self.power)
        return constant, ((-1.0, Monomial(self.power, absolute=True)),)

    @property
    def _product(self) -> tuple[GammaProduct, float]:
        return ((1, 1 / self.power, 1 / self.power),), 0.0

    @property
    def linear(self) -> bool:
        """Laplace noise is smooth on either side of 0."""
        return self.power == 1

    def _rule(self) -> Rule:
        g, weights = quadrature.gamma_rule(1 / self.power)
        return quadrature.both_signs((g ** (1 / self.power), weights))

    def _core(self, taus: tuple[Monomial, ...]) -> sample_means.MeansDistribution | None:
        own = Monomial(self.power, absolute=True)
        if own in taus:
            return sample_means.gamma_core(own, 1 / self.power, 1.0)
        return super()._core(taus)

    def mean_abs(self, u: Tensor, scale: Tensor) -> Tensor | None:
        """Laplace: |u| + scale e^{-|u|/scale}."""
        return _magnitude(u) + scale * torch.exp(-_ratio(u, scale)) if self.power == 1 else None

    def log_mgf(self, s: Tensor) -> Tensor | None:
        """Laplace: -log(1 - s^2), infinite from |s| = 1 on."""
        if self.power != 1:
            return None
        return torch.where(s.abs() < 1, -torch.log1p(-torch.where(s.abs() < 1, s * s, 0.0)), math.inf)

    @property
    def mgf_limit(self) -> float:
        """Laplace: 1."""
        return 1.0 if self.power == 1 else 0.0


@dataclass(frozen=True)
class InverseGaussian(Noise):
    """IG(1, phi), the Wald distribution: log q0 = log(phi/2pi)/2 - (3/2) log xi - phi (xi - 1)^2 / (2 xi).

    >>> InverseGaussian(2.0).means_distribution((Monomial(1), Monomial(-1))).kind
    'exact'
    """

    positive: ClassVar[bool] = True
    symmetric: ClassVar[bool] = False

    concentration: float  # phi

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
