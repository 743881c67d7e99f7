"""KL(q || p) by brute force, sharing nothing with the library: scipy's densities, thousands of panels in log |xi|."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import interpolate, special, stats

Vector = NDArray[np.float64]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
GOLDEN = (1 + math.sqrt(5)) / 2

# ---- posteriors: the log density of the noise, its outer map, its settings

LINE = [
    (0.0, 1.0),
    (0.37, 0.61),
    (0.1, 0.3),
    (2.0, 3.0),
    (-5.0, 0.01),
    (0.0, 1e-4),
    (0.0, 100.0),
    (50.0, 1.0),
    (0.02, 0.02),
]
SCALES = [(0.0, s) for s in (1.0, 0.3, 40.0, 1e-3)]


def _horseshoe(x: Vector, slab: float | None) -> Vector:
    if slab is None:
        return _log_scaled_e1(2 * np.log(np.abs(x)) - math.log(2)) - 0.5 * math.log(2 * math.pi**3)
    return _slab_curve(slab)(np.log(np.abs(x)))


@lru_cache
def _slab_curve(slab: float) -> Any:
    """The log density over log |xi|: an integral over the half-Cauchy variate at 6,000 points, joined by a spline."""
    s, step = np.arange(-56, math.log(200 * slab), 0.01), 0.1
    v = np.arange(-60, 40, step)  # log of the half-Cauchy variate
    lam, weights = slab / np.sqrt(1 + slab**2 * np.exp(-2 * v)), step / math.pi / np.cosh(v)
    parts = np.array_split(np.exp(s), 20)
    logs = [special.logsumexp(stats.norm.logpdf(x[:, None], scale=lam), b=weights, axis=1) for x in parts]
    return _spline(s, np.concatenate(logs))


@lru_cache
def _radial_curve(size: int) -> Any:
    """The same of one coordinate of radial noise, x = r u: an integral over y = sqrt(r^2 - x^2)."""
    s, step = np.arange(-56, math.log(40), 0.01), 0.02
    u = np.arange(-62, 4, step)  # log y
    scale = (
        special.gammaln(size / 2)
        - special.gammaln((size - 1) / 2)
        + 0.5 * math.log(2 / math.pi)
        - 0.5 * math.log(math.pi)
    )
    logs = []
    for x in np.array_split(s, 60):
        squares = np.logaddexp(2 * x[:, None], 2 * u)  # log r^2
        logs.append(special.logsumexp(-np.exp(squares) / 2 + (size - 1) * (u - squares / 2), axis=1))
    return _spline(s, np.concatenate(logs) + scale + math.log(step))


def _spline(s: Vector, values: Vector) -> Any:
    curve = interpolate.make_interp_spline(s, values, k=7)
    return lambda at: np.where((at < s[0]) | (at > s[-1]), -np.inf, curve(np.clip(at, s[0], s[-1])))


def _inverse_gaussian(w: Vector, loc: float, concentration: float) -> Vector:
    square = concentration / (2 * loc**2) * (w - 2 * loc + loc**2 / w)  # scipy's overflows
    return 0.5 * math.log(concentration / (2 * math.pi)) - 1.5 * np.log(w) - square


def _log_scaled_e1(log_y: Vector) -> Vector:
    y = np.exp(np.clip(log_y, -690, 690))
    near, far = np.minimum(y, 300.0), np.maximum(y, 300.0)
    series = -log_y + np.log1p(-1 / far + 2 / far**2 - 6 / far**3 + 24 / far**4)
    return np.where(y > 300, series, np.log(special.exp1(near)) + near)


NOISES: dict[str, Any] = {
    "normal": stats.norm.logpdf,
    "laplace": lambda x: -np.abs(x) - math.log(2),
    "logistic": stats.logistic.logpdf,
    "horseshoe": lambda x, slab: _horseshoe(x, slab),
    "radial": lambda x, size: _radial_curve(size)(np.log(np.abs(x))),
    "lognormal": stats.norm.logpdf,
    "exponential": stats.expon.logpdf,
    "wald": lambda x, concentration: stats.invgauss.logpdf(x, 1 / concentration, scale=concentration),
    "rayleigh": stats.rayleigh.logpdf,
    "weibull": lambda x, concentration: stats.weibull_min.logpdf(x, concentration),
    "erlang": lambda x, concentration: stats.gamma.logpdf(x, concentration),
    "gamma": lambda x, concentration: stats.gamma.logpdf(x, concentration),
    "inverse_gamma": lambda x, concentration: stats.invgamma.logpdf(x, concentration),
    "error": lambda x, power: stats.gennorm.logpdf(x, power),
    "loggamma": lambda x, concentration: stats.gamma.logpdf(x, concentration),
    "expgamma": lambda x, concentration: stats.gamma.logpdf(x, concentration),
}
SIGNED = {"normal", "laplace", "logistic", "horseshoe", "radial", "lognormal", "error"}
OUTER = {"lognormal": "exp", "expgamma": "exp", "loggamma": "log"}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "horseshoe": [{"slab": GOLDEN}, {"slab": None}],
    "radial": [{"size": n} for n in (2, 3, 60)],
    "wald": [{"concentration": c} for c in (1.0, 0.2, 50.0)],
    "weibull": [{"concentration": c} for c in (1.6, 0.7, 6.0)],
    "erlang": [{"concentration": c} for c in (3.0, 40.0)],
    "gamma": [{"concentration": c} for c in (2.5, 0.3, 300.0)],
    "inverse_gamma": [{"concentration": c} for c in (3.5, 0.5, 0.05, 20.0)],
    "error": [{"power": c} for c in (1.5, 0.6, 4.0)],
    "loggamma": [{"concentration": c} for c in (2.5, 0.4)],
    "expgamma": [{"concentration": c} for c in (1.0, 4.0)],
}
SETTINGS: dict[str, list[tuple[float, float]]] = {
    **dict.fromkeys(("normal", "laplace", "logistic", "horseshoe", "radial"), LINE),
    "lognormal": [(0.0, 1.0), (-2.0, 0.3), (3.0, 2.0), (0.0, 0.01), (-8.0, 3.0)],
    "error": [(0.0, 1.0), (0.25, 0.3), (3.0, 1e-3), (-1.0, 60.0)],
    "expgamma": [(0.0, s) for s in (0.05, 0.3, 0.45, 0.7, 0.9)],
}

# ---- priors: log densities, settings, and where their features are


def _mixture(w: Vector, mix: float, scale1: float, scale2: float) -> Vector:
    return np.logaddexp(
        math.log(mix) + stats.norm.logpdf(w, scale=scale1), math.log1p(-mix) + stats.norm.logpdf(w, scale=scale2)
    )


def _student(w: Vector, df: float, loc: float, scale: float) -> Vector:
    y = np.abs(w - loc) / scale / math.sqrt(df)
    tail = np.where(y > 1e100, 2 * np.log(np.maximum(y, 1e-300)), np.log1p(np.minimum(y, 1e100) ** 2))
    norm = special.gammaln((df + 1) / 2) - special.gammaln(df / 2) - 0.5 * math.log(df * math.pi) - math.log(scale)
    return norm - (df + 1) / 2 * tail


def _soft_horseshoe(w: Vector, scale: float, softening: float) -> Vector:
    log_y = np.logaddexp(2 * np.log(np.abs(w)), 2 * math.log(softening)) - math.log(2 * scale**2)
    return _log_scaled_e1(log_y) - math.log(scale) - 0.5 * math.log(2 * math.pi**3)


DENSITIES: dict[str, Any] = {
    "normal": lambda w, loc, scale: stats.norm.logpdf(w, loc, scale),
    "laplace": lambda w, loc, scale: -np.abs(w - loc) / scale - math.log(2 * scale),
    "logistic": lambda w, loc, scale: stats.logistic.logpdf(w, loc, scale),
    "error": lambda w, loc, scale, power: stats.gennorm.logpdf(w, power, loc, scale),
    "student_t": _student,
    "cauchy": lambda w, loc, scale: _student(w, 1.0, loc, scale),
    "mixture": _mixture,
    "horseshoe": _soft_horseshoe,
    "exponential": lambda w, rate: stats.expon.logpdf(w, scale=1 / rate),
    "wald": lambda w, concentration: _inverse_gaussian(w, 1.0, concentration),
    "inverse_gaussian": _inverse_gaussian,
    "rayleigh": lambda w, scale: stats.rayleigh.logpdf(w, scale=scale),
    "chi_squared": lambda w, df: stats.chi2.logpdf(w, df),
    "gamma": lambda w, concentration, rate: stats.gamma.logpdf(w, concentration, scale=1 / rate),
    "erlang": lambda w, concentration, rate: stats.gamma.logpdf(w, concentration, scale=1 / rate),
    "inverse_gamma": lambda w, concentration, rate: stats.invgamma.logpdf(w, concentration, scale=rate),
    "weibull": lambda w, concentration, scale: stats.weibull_min.logpdf(w, concentration, scale=scale),
    "lognormal": lambda w, loc, scale: stats.norm.logpdf(np.log(w), loc, scale) - np.log(w),
    "pareto": lambda w, scale, alpha: math.log(alpha) + alpha * math.log(scale) - (alpha + 1) * np.log(w),
}
PLACED = [
    {"loc": 0.0, "scale": 1.0},
    {"loc": 0.2, "scale": 0.3},
    {"loc": 1.0, "scale": 1e-3},
    {"loc": -3.0, "scale": 50.0},
]
PRIORS: dict[str, list[dict[str, float]]] = {
    **dict.fromkeys(("normal", "laplace", "logistic", "cauchy"), PLACED),
    "error": [{**PLACED[0], "power": 1.5}, {**PLACED[1], "power": 0.6}, {**PLACED[2], "power": 3.0}],
    "student_t": [{**PLACED[0], "df": 4.0}, {**PLACED[1], "df": 0.5}, {**PLACED[2], "df": 30.0}],
    "mixture": [
        {"mix": 0.5, "scale1": 1.0, "scale2": 0.1},
        {"mix": 0.25, "scale1": 1.0, "scale2": 0.0025},
        {"mix": 0.9, "scale1": 1e-4, "scale2": 10.0},
        {"mix": 1e-9, "scale1": 2.0, "scale2": 1.9},
    ],
    "horseshoe": [
        {"scale": 1.0, "softening": 1e-3},
        {"scale": 0.01, "softening": 1e-6},
        {"scale": 30.0, "softening": 1.0},
    ],
    "exponential": [{"rate": 1.0}, {"rate": 300.0}],
    "wald": [{"concentration": 1.0}, {"concentration": 30.0}],
    "inverse_gaussian": [{"loc": 1.0, "concentration": 1.0}, {"loc": 0.01, "concentration": 5.0}],
    "rayleigh": [{"scale": 1.0}, {"scale": 0.01}],
    "chi_squared": [{"df": 3.0}, {"df": 0.4}],
    "gamma": [{"concentration": 2.0, "rate": 1.0}, {"concentration": 0.2, "rate": 50.0}],
    "erlang": [{"concentration": 2.0, "rate": 1.0}],
    "inverse_gamma": [{"concentration": 2.0, "rate": 1.0}, {"concentration": 9.0, "rate": 0.01}],
    "weibull": [{"concentration": 1.5, "scale": 1.0}, {"concentration": 0.4, "scale": 9.0}],
    "lognormal": [{"loc": 0.0, "scale": 1.0}, {"loc": -2.0, "scale": 0.1}],
    "pareto": [{"scale": 0.5, "alpha": 1.0}],
}


def features(p: str, values: dict[str, float]) -> list[float]:
    """Weights near which a prior's log density bends."""
    centre = values.get("loc", 0.0) if p != "lognormal" else 0.0
    lengths = [v for k, v in values.items() if k in ("scale", "scale1", "scale2", "softening")] or [1.0]
    steps = [0.3, 1, 2, 3, 4, 6, 10, 40, 300]
    return [centre, *(centre + s * k * length for s in (-1, 1) for k in steps for length in lengths)]


# ---- the oracle


def brute_force(
    q: str, shape: dict[str, Any], loc: float, scale: float, p: str, values: dict[str, float]
) -> tuple[float, float]:
    """KL(q || p) of one weight (of all of a radial posterior), and how far half as many panels are off."""
    outer = OUTER.get(q, "")

    def weight(xi: Vector) -> Vector:
        v = loc + scale * xi
        return np.exp(v) if outer == "exp" else np.log(v) if outer == "log" else v

    def integrand(s: Vector, sign: int) -> tuple[Vector, Vector]:
        xi = sign * np.exp(s)
        log_q0, v = NOISES[q](xi, **shape), loc + scale * xi
        if q == "radial":  # joint over the weights; its entropy is added at the end
            return log_q0 + s, -DENSITIES[p](weight(xi), **values)
        slope = v if outer == "exp" else -np.log(v) if outer == "log" else 0.0
        return log_q0 + s, log_q0 - math.log(scale) - slope - DENSITIES[p](weight(xi), **values)

    total, coarse = 0.0, 0.0
    with np.errstate(all="ignore"):
        for sign in (1, -1) if q in SIGNED else (1,):
            grid = np.linspace(-700, 600, 13001)
            log_mass, gain = integrand(grid, sign)
            heights = log_mass + np.log1p(np.abs(gain))
            heights = np.where(np.isfinite(heights), heights, -np.inf)
            assert heights.max() > -np.inf, (q, shape, loc, scale, p, values)
            above = grid[heights > heights.max() - 60]
            points = [_place(w, outer, loc, scale) * sign for w in features(p, values)]
            edges = _edges(above[0] - 0.1, above[-1] + 0.1, points)
            fine, half = _gauss(integrand, sign, _halved(edges)), _gauss(integrand, sign, edges)
            total, coarse = total + fine, coarse + half
    doubt = abs(total - coarse)
    return (total, doubt) if q != "radial" else (shape["size"] * total - _radial_entropy(scale, **shape), doubt)


def _radial_entropy(scale: float, size: int) -> float:
    log_radius = -(np.euler_gamma + math.log(2)) / 2  # E log |N(0, 1)|
    area = math.log(2) + size / 2 * math.log(math.pi) - math.lgamma(size / 2)
    return size * math.log(scale) + 0.5 + 0.5 * math.log(math.pi / 2) + (size - 1) * log_radius + area


def _place(w: float, outer: str, loc: float, scale: float) -> float:
    if outer == "exp":
        return (math.log(w) - loc) / scale if w > 0 else 0.0
    return ((math.exp(w) if outer == "log" else w) - loc) / scale if w < 700 else 0.0


def _edges(low: float, high: float, xis: list[float]) -> Vector:
    """Ends of panels: even ones, and ones that close in on each feature."""
    at = np.array([math.log(x) for x in xis if x > 0 and low < math.log(x) < high])
    near = 10.0 ** -np.arange(0.0, 13)
    graded = (at[:, None] + np.concatenate([-near, [0.0], near])).ravel()
    every = np.unique(np.concatenate([np.linspace(low, high, 400), graded]))
    return every[(every >= low) & (every <= high)]


def _halved(edges: Vector) -> Vector:
    return np.sort(np.concatenate([edges, (edges[1:] + edges[:-1]) / 2]))


def _gauss(integrand: Any, sign: int, edges: Vector) -> float:
    half = np.diff(edges) / 2
    s = (edges[:-1] + half)[:, None] + half[:, None] * NODES
    log_mass, gain = integrand(s.ravel(), sign)
    parts = np.where(log_mass > -700, np.exp(log_mass) * gain, 0.0)
    return math.fsum((parts.reshape(s.shape) @ WEIGHTS) * half)
