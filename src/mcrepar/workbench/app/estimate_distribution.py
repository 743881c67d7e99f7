"""The distribution of the Monte Carlo error of KL(normal || normal), drawn at once for any number of weights and draws.

With D equal weights N(loc, scale^2), a prior N(loc - distance, prior_scale^2) and M draws, the estimate minus the KL is
a linear function of one standard normal and one chi-squared variable with DM - 1 degrees of freedom (math.md D4). The
error is computed centred: as the difference of two numbers near 10^10 it would be lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mcrepar.errors import ParameterError

if TYPE_CHECKING:
    from mcrepar.distributions.posterior import Posterior

ENTROPIES = ("exact", "mc")
_WILSON_HILFERTY = 1e4  # the shape of a Gamma variable from which its cube root is normal to all digits that matter

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NormalPair:
    """A weight with a Normal posterior and a Normal prior; whatever is asked for `weights` means that many equal ones.

    Args:
        scale: the posterior's standard deviation.
        distance: of the posterior's mean from the prior's.
        prior_scale: the prior's standard deviation.

    >>> pair = NormalPair(scale=0.01)
    >>> round(pair.kl(10**8))
    410522019
    >>> f"{pair.std(10**8, draws=1000):.4f} {pair.std(10**8, draws=1000, entropy='mc'):.1f}"
    '0.0224 223.6'
    """

    scale: float
    distance: float = 0.0
    prior_scale: float = 1.0

    def __post_init__(self) -> None:
        for name, value, right in (
            ("scale", self.scale, self.scale > 0),
            ("distance", self.distance, True),
            ("prior_scale", self.prior_scale, self.prior_scale > 0),
        ):
            if not (right and math.isfinite(value)):
                wanted = "a finite number" if name == "distance" else "a positive finite number"
                raise ParameterError(f"NormalPair({name}={value!r})", f"it is not {wanted}", wanted)

    @property
    def _curvature(self) -> float:
        """(s^2 / b^2 - 1) / 2, without the cancellation near s = b."""
        s, b = self.scale, self.prior_scale
        return (s - b) * (s + b) / (2 * b * b)

    def kl(self, weights: int) -> float:
        """The closed form, D (log(b / s) - 1/2 + (s^2 + m^2) / (2 b^2))."""
        ratio = math.log(self.prior_scale / self.scale)
        return weights * (ratio + self._curvature + (self.distance / self.prior_scale) ** 2 / 2)

    def _terms(self, entropy: str) -> tuple[float, float]:
        """u and v of u (xi^2 - 1) + v xi, what a draw of a weight adds to M times the error."""
        s, b = self.scale, self.prior_scale
        return (s / b) ** 2 / 2 if _checked(entropy) == "exact" else self._curvature, self.distance * s / b**2

    def std(self, weights: int, draws: int, entropy: str = "exact") -> float:
        """The standard deviation of the estimate, sqrt(D/M (m^2 s^2 + s^4/2)) / b^2 with exact entropy."""
        u, v = self._terms(entropy)
        return math.sqrt(weights / draws) * math.hypot(v, math.sqrt(2) * u)

    def excess(self, weights: int, draws: int, entropy: str = "exact") -> float:
        """The excess kurtosis of the estimate, 12 / (D M) where the means are equal: the tails of its squared error."""
        u, v = self._terms(entropy)
        return 48 * u**2 * (u**2 + v**2) / (2 * u**2 + v**2) ** 2 / (weights * draws)

    def gradient_std(self, draws: int) -> tuple[float, float]:
        """The standard deviations of the gradients in loc and in scale of one weight: they know no D and no entropy."""
        s, b = self.scale, self.prior_scale
        root = b * b * math.sqrt(draws)
        return s / root, math.hypot(self.distance, math.sqrt(2) * s) / root

    def gradient(self) -> tuple[float, float]:
        """The gradients of the KL in loc and in scale of one weight, m / b^2 and s / b^2 - 1 / s."""
        return self.distance / self.prior_scale**2, 2 * self._curvature / self.scale

    def draws_for(self, weights: int, tolerance: float, entropy: str = "exact") -> float:
        """The number M of draws (not rounded) from which the standard deviation is at most `tolerance` nats."""
        return (self.std(weights, 1, entropy) / tolerance) ** 2

    def errors(
        self, weights: int, draws: int, simulations: int, rng: np.random.Generator, entropy: str = "exact"
    ) -> Array:
        """The estimate minus the KL, in nats, `simulations` times, from its exact distribution.

        Args:
            weights: D.
            draws: M.
            simulations: how many estimates.
            rng: the source of the noise.
            entropy: "exact", or "mc" where log q is sampled too.

        >>> NormalPair(scale=0.01).errors(10**9, 10**6, 3, np.random.default_rng(0)).shape
        (3,)
        """
        _count("weights", weights)
        _count("draws", draws)
        u, v = self._terms(entropy)
        z, c = _centred_sum(weights * draws, simulations, rng)
        errors: Array = (u * c + v * math.sqrt(weights * draws) * z) / draws
        return errors

    def gradient_errors(self, draws: int, simulations: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """The gradients in loc and in scale of one weight, minus the exact ones, `simulations` times."""
        _count("draws", draws)
        s, b = self.scale, self.prior_scale
        z, c = _centred_sum(draws, simulations, rng)
        first, second = z / math.sqrt(draws), c / draws  # mean of xi, mean of xi^2 minus 1
        return s * first / b**2, (self.distance * first + s * second) / b**2


def variances(q: Posterior, distance: float, std: float, draws: int, entropy: str) -> dict[str, float]:
    """The formulas of math.md D4, with the prior N(0, 1), for D equal weights: of the KL and of one weight's gradients.

    Args:
        q: the posterior.
        distance: of its mean from the prior's.
        std: standard deviation of a weight.
        draws: M.
        entropy: "exact", or "mc" where log q is sampled too.
    """
    size, m, s = q.numel, distance, std
    if q.noise.joint and entropy != "exact":
        why = "log q of a joint noise is one number for all weights, of which no formula is known here"
        raise ParameterError(f"entropy={entropy!r} of a {q.name} posterior", why, "'exact'")
    if not q.noise.joint:
        pair = NormalPair(s, m)
        loc, scale = pair.gradient_std(draws)
        return {"value": pair.std(size, draws, entropy) ** 2, "loc": loc**2, "scale": scale**2}
    sigma2 = s * s * size  # of the tensor's scale; E xi^2 = 1/d, E xi^4 = 9 / (d (d + 2))
    fourth, second = 9 / (size * (size + 2)), 1 / size
    quadratic = (6 * size + 2 * (size - 1) * size) * sigma2**2 / (4 * size * (size + 2))
    return {
        "value": (size * m * m * s * s + quadratic) / draws,
        "loc": s * s / draws,
        "scale": (m * m * second + sigma2 * (fourth - second**2)) / draws,
    }


def _centred_sum(count: int, simulations: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """z = sum xi / sqrt(n) and c = sum xi^2 - n of n standard normals, jointly: xi's length is z^2 + chi2(n - 1)."""
    _count("simulations", simulations)
    z = rng.standard_normal(simulations)
    shape = (count - 1) / 2
    if shape >= _WILSON_HILFERTY:  # 2 Gamma(a) - 2a = 2a ((1 + t)^3 - 1), expanded
        h = 1 / (9 * shape)
        t = math.sqrt(h) * rng.standard_normal(simulations) - h
        rest = 2 * shape * t * (3 + t * (3 + t))
    else:
        rest = 2 * rng.standard_gamma(shape, simulations) - 2 * shape
    return z, z * z - 1 + rest


def draws_grid(up_to: int, points: int = 40) -> list[int]:
    """Whole numbers from 1 to `up_to`, each once, evenly spread on a logarithmic axis.

    >>> draws_grid(1000, points=7)
    [1, 3, 10, 32, 100, 316, 1000]
    """
    _count("up_to", up_to)
    return sorted({round(x) for x in np.geomspace(1, up_to, points)})


@dataclass(frozen=True)
class Measure:
    """A number that says how large errors are: from a sample of them, and what it tends to for normal ones."""

    of_sample: Callable[[Array], float]
    expected: Callable[[float], float]


MEASURES: dict[str, Measure] = {
    "variance": Measure(lambda errors: float(errors.var(ddof=1)), lambda std: std * std),
    "std": Measure(lambda errors: float(errors.std(ddof=1)), lambda std: std),
    "error": Measure(lambda errors: float(np.abs(errors).mean()), lambda std: math.sqrt(2 / math.pi) * std),
}


def _checked(entropy: str) -> str:
    if entropy not in ENTROPIES:
        raise ParameterError(f"entropy={entropy!r}", "there is no such entropy", "'exact' or 'mc'")
    return entropy


def _count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ParameterError(f"{name}={value!r}", "it is not a positive whole number", "1, 2, 3, ...")
