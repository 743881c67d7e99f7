"""What every suite shares: valid examples of any row of the two tables, and the z-score of a sample.

A new row needs no line here: parameters are drawn from their constraints. Import with `from tests.conftest import ...`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from scipy import special, stats
from scipy.integrate import tanhsinh
from torch import Tensor

import mcrepar
from mcrepar.distributions.parameters import POSITIVE, REAL, UNIT, WHOLE, Parameter

settings.register_profile("same every time", derandomize=True, deadline=None)
settings.load_profile("same every time")
torch.set_num_threads(1)  # however pytest was started: a run with threads=1 leaves as many as it found

SCALES = (0.3, 1.2)  # between which the scales of an example lie
LIMITED = (0.25, 0.95)  # the same as shares of 0.2, where E exp(scale * xi) ends at a scale of 1 (expgamma)


@pytest.fixture(autouse=True)
def _as_many_threads_as_before():
    """Threads that a test leaves behind make every later test of its process slower, several times on busy cores."""
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


def seeded(seed: int) -> torch.Generator:
    """A CPU generator of its own."""
    return torch.Generator().manual_seed(seed)


def _between(low: float, high: float, shape: Sequence[int], rng: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(tuple(shape), generator=rng, dtype=torch.float64)


def _value(parameter: Parameter, rng: torch.Generator, low: float, high: float) -> float | None:
    """A valid value near the default; positive ones between `low` and `high` times the default."""
    default, chance = parameter.default, float(_between(0, 1, (), rng))
    if default is None or parameter.optional:
        return default
    match parameter.constraint:
        case constraint if constraint is REAL:
            return default + chance - 0.5
        case constraint if constraint is POSITIVE:
            return default * (low + (high - low) * chance)
        case constraint if constraint is UNIT:
            return 0.2 + 0.6 * chance
        case constraint if constraint is WHOLE:
            return default + math.floor(3 * chance)
    raise AssertionError(f"no example of a parameter that is {parameter.constraint.text}")


def example_posterior(
    name: str,
    size: int | Sequence[int] = 3,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
    *,
    seed: int = 0,
    log_scale: bool = False,
    vary: bool = False,
    **fixed: Any,
) -> mcrepar.Posterior:
    """A posterior of any row with random learned tensors.

    `q.learned` are its leaves. The fixed parameters are the defaults, those in `fixed`, or random with `vary`: larger
    ones than the defaults, with which no moment is lost.
    """
    row, rng = mcrepar.POSTERIORS[name], seeded(seed)
    shape = (size,) if isinstance(size, int) else tuple(size)
    if vary:
        fixed = {p.name: _value(p, rng, 1.0, 1.5) for p in row.fixed} | fixed
    template = mcrepar.posterior(name, **fixed)
    low, high = SCALES
    if row.form.outer.name == "exp" and math.isfinite(template.noise.mgf_limit):
        low, high = (0.2 * template.noise.mgf_limit * share for share in LIMITED)
    scale = torch.exp(_between(math.log(low), math.log(high), shape, rng))
    learned = {"log_scale": scale.log()} if log_scale else {"scale": scale}
    if "loc" in row.learned:
        learned = {"loc": _between(-0.8, 0.8, shape, rng), **learned}
    return mcrepar.posterior(
        name, **{n: t.to(dtype).requires_grad_(requires_grad) for n, t in learned.items()}, **fixed
    )


def example_prior(name: str, *, seed: int | None = None, learned: bool = False, **given: Any) -> mcrepar.Prior:
    """A prior of any row: with its defaults, or with random values from `seed`.

    Random positive values are below the defaults, so that a Pareto starts below 1. With `learned` every parameter is
    a 0-dim float64 leaf that requires grad. `given` overrides (`improper=True`, ...).
    """
    parameters: dict[str, Any] = {}
    rng = None if seed is None else seeded(seed)
    for parameter in mcrepar.PRIORS[name].parameters:
        value = parameter.default if rng is None else _value(parameter, rng, 0.6, 1.0)
        parameters[parameter.name] = torch.tensor(value, dtype=torch.float64, requires_grad=True) if learned else value
    return mcrepar.prior(name, **(parameters | given))


def pairs_with(method: str) -> list[tuple[str, str]]:
    """The pairs of the two tables, by name and with defaults, to which `method` applies."""
    names = product(mcrepar.POSTERIORS, mcrepar.PRIORS)
    return [(q, p) for q, p in names if method in mcrepar.explain(q, p).methods]


def z_score(sample: Tensor, expected: float | Tensor) -> Tensor:
    """How many standard errors the mean over the leading dimension is from `expected`; |z| > 5 by chance: 6e-7."""
    sample = sample.double()
    error = sample.std(0) / math.sqrt(len(sample))
    return (sample.mean(0) - expected) / error


# ---- oracles that share no code with the library: scipy's distributions, and two written with scipy.special


@dataclass(frozen=True)
class ExpGamma:
    """exp(scale * G), G ~ Gamma(shape)."""

    shape: float
    scale: float

    def logpdf(self, w):
        return stats.gamma(self.shape, scale=self.scale).logpdf(np.log(w)) - np.log(w)

    def cdf(self, w):
        return stats.gamma(self.shape, scale=self.scale).cdf(np.log(w))

    def ppf(self, u):
        return np.exp(stats.gamma(self.shape, scale=self.scale).ppf(u))


@dataclass(frozen=True)
class Mixture:
    """mix * N(0, scale1^2) + (1 - mix) * N(0, scale2^2)."""

    mix: float
    scale1: float
    scale2: float

    def logpdf(self, w):
        parts = (self.mix, self.scale1), (1 - self.mix, self.scale2)
        return special.logsumexp([math.log(m) + stats.norm(scale=s).logpdf(w) for m, s in parts], axis=0)


SCIPY_POSTERIORS: dict[str, Callable[..., Any]] = {
    "normal": lambda loc, scale: stats.norm(loc, scale),
    "laplace": lambda loc, scale: stats.gennorm(1.0, loc, scale),  # stats.laplace underflows
    "logistic": lambda loc, scale: stats.logistic(loc, scale),
    "lognormal": lambda loc, scale: stats.lognorm(scale, scale=math.exp(loc)),
    "exponential": lambda scale: stats.expon(scale=scale),
    "wald": lambda scale, concentration: stats.invgauss(1 / concentration, scale=scale * concentration),
    "rayleigh": lambda scale: stats.rayleigh(scale=scale),
    "weibull": lambda scale, concentration: stats.weibull_min(concentration, scale=scale),
    "erlang": lambda scale, concentration: stats.erlang(int(concentration), scale=scale),
    "gamma": lambda scale, concentration: stats.gamma(concentration, scale=scale),
    "inverse_gamma": lambda scale, concentration: stats.invgamma(concentration, scale=scale),
    "error": lambda scale, loc, power: stats.gennorm(power, loc, scale),
    "loggamma": lambda scale, concentration: stats.loggamma(concentration, loc=math.log(scale)),
    "expgamma": lambda scale, concentration: ExpGamma(concentration, scale),
}
SCIPY_PRIORS: dict[str, Callable[..., Any]] = {
    "normal": lambda loc, scale: stats.norm(loc, scale),
    "hierarchical": lambda scale, loc_scale: stats.norm(0, math.hypot(scale, loc_scale)),
    "laplace": lambda loc, scale: stats.gennorm(1.0, loc, scale),  # stats.laplace underflows
    "logistic": lambda loc, scale: stats.logistic(loc, scale),
    "error": lambda loc, scale, power: stats.gennorm(power, loc, scale),
    "student_t": lambda df, loc, scale: stats.t(df, loc, scale),
    "cauchy": lambda loc, scale: stats.cauchy(loc, scale),
    "mixture": Mixture,
    "exponential": lambda rate: stats.expon(scale=1 / rate),
    "wald": lambda concentration: stats.invgauss(1 / concentration, scale=concentration),
    "inverse_gaussian": lambda loc, concentration: stats.invgauss(loc / concentration, scale=concentration),
    "rayleigh": lambda scale: stats.rayleigh(scale=scale),
    "chi_squared": stats.chi2,
    "gamma": lambda concentration, rate: stats.gamma(concentration, scale=1 / rate),
    "erlang": lambda concentration, rate: stats.erlang(int(concentration), scale=1 / rate),
    "inverse_gamma": lambda concentration, rate: stats.invgamma(concentration, scale=rate),
    "weibull": lambda concentration, scale: stats.weibull_min(concentration, scale=scale),
    "lognormal": lambda loc, scale: stats.lognorm(scale, scale=math.exp(loc)),
    "pareto": lambda scale, alpha: stats.pareto(alpha, scale=scale),
}


def scipy_posterior(q: mcrepar.Posterior) -> list[Any] | None:
    """scipy's distribution of every weight of `q`; None where scipy has none, and other proofs must serve."""
    make = SCIPY_POSTERIORS.get(q.name)
    if make is None:
        return None
    learned = [{"scale": float(s)} for s in q.scale.detach().flatten()]
    if "loc" in q.row.learned:
        learned = [{"loc": float(m), **d} for m, d in zip(q.loc.detach().flatten(), learned, strict=True)]
    return [make(**d, **q.fixed) for d in learned]


def scipy_prior(p: mcrepar.Prior) -> Any | None:
    """scipy's distribution of a prior with numbers as parameters; None where scipy has none."""
    make = SCIPY_PRIORS.get(p.name)
    return None if make is None else make(**{n: float(v) for n, v in p.values.items()})


def variance_penalty(q: mcrepar.Posterior, p: mcrepar.Prior) -> Tensor | float:
    """What a hierarchical prior adds to the KL from the wide Normal: (1 - a) Var W / (2 v) per weight, 0 for others."""
    if p.name != "hierarchical":
        return 0.0
    v, v_m = (torch.as_tensor(p.values[name]) ** 2 for name in ("scale", "loc_scale"))
    distributions = scipy_posterior(q)
    known = (
        distributions is not None and not q.scale.requires_grad and all(hasattr(each, "var") for each in distributions)
    )
    variance = torch.tensor([each.var() for each in distributions]) if known else q.stddev**2
    return ((1 - v / (v + v_m)) / (2 * v) * variance.reshape(q.shape)).sum()


def integral(fn: Callable[[Any], Any], cuts: Sequence[float]) -> float:
    """The integral of `fn` (numpy to numpy) between the first and the last cut; the others are kinks or peaks.

    An infinite end is reached by w = end + sinh(t), t up to 100.
    """
    edges = np.unique(np.asarray(cuts, dtype=float))
    inner = edges[np.isfinite(edges)]
    options = {"atol": 1e-13, "rtol": 1e-11, "maxlevel": 12}
    total = tanhsinh(fn, inner[:-1], inner[1:], **options).integral.sum()
    for end, sign in ((inner[0], -1), (inner[-1], 1)):
        if sign * np.inf in edges:
            tail = tanhsinh(lambda t, e=end, s=sign: fn(e + s * np.sinh(t)) * np.cosh(t), [0, 5], [5, 100], **options)
            total += tail.integral.sum()
    return float(total)
