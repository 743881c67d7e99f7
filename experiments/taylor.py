"""Section 4.1: the Taylor fallback, its printed example, its error against the degree, and where it diverges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.experiment import CHANCE, Bench, Experiment, Finding, Part, Results, Row, markdown
from experiments.panels import panels
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.priors import prior
from mcrepar.divergence.kl import kl_divergence
from mcrepar.divergence.plan import explain
from mcrepar.plots.style import coloured, legend, light
from mcrepar.workbench.app.taylor_warning import without_taylor_warning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRINTED = 9  # direct iterations in the paper's example, which K = 3 replaces
DEGREE = 3
ROUNDING = 1e-12  # nats: an error below it may be that of float64

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        log_scales: standard deviations of a weight around 1 whose logarithm is expanded.
        softplus_scales: of a weight around 0 under a Logistic prior.
        degree: the largest.
        estimates: of the library's own `taylor`, to compare their mean with the polynomial's.
    """

    log_scales: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3)
    softplus_scales: tuple[float, ...] = (0.3, 1.0, 2.0, 4.0)
    degree: int = 40
    estimates: int = 400


def parts(settings: Settings) -> list[Part]:
    """One for each function and scale, one for d_P, and one for the library's estimate."""
    found = [Part(f"log-{s:g}", {"kind": "log", "scale": s}) for s in settings.log_scales]
    found += [Part(f"softplus-{s:g}", {"kind": "softplus", "scale": s}) for s in settings.softplus_scales]
    found += [Part(f"library-{k}", {"kind": "library", "degree": k}) for k in (2, 4, 6, 8)]
    return [*found, Part("size", {"kind": "size"})]


def measure(part: Part, bench: Bench) -> Row:
    """Errors of expectations, in nats."""
    kind, settings = part.given["kind"], bench.settings
    if kind == "size":
        return _sizes(settings.degree)
    if kind == "library":
        return _library(part.given["degree"], bench)
    scale = part.given["scale"]
    if kind == "log":
        series = {
            "right": log_series(settings.degree),
            "printed": [1 / math.factorial(k) for k in range(settings.degree + 1)],
        }
        return _errors(series, scale, *_log_moments(scale))
    return _errors({"right": softplus_series(settings.degree)}, scale, *_softplus_moments(scale))


def log_series(degree: int) -> list[float]:
    """The coefficients of log w about 1: (-1)^(k+1) / k, and no constant.

    >>> log_series(3)
    [0.0, 1.0, -0.5, 0.333...]
    """
    return [0.0] + [(-1) ** (k + 1) / k for k in range(1, degree + 1)]


def softplus_series(degree: int) -> list[float]:
    """The coefficients of log(1 + exp(-w)) about 0, from s' = s (s - 1) of its derivative -s, s = 1 / (1 + exp(w)).

    >>> softplus_series(4)  # the paper's 1/4 is 1/8, and there is no cubic term
    [0.693..., -0.5, 0.125, 0.0, -0.00520...]
    """
    s = [0.5]
    for k in range(degree):
        square = sum(s[i] * s[k - i] for i in range(k + 1))
        s.append((square - s[k]) / (k + 1))
    return [math.log(2)] + [-s[k - 1] / k + 0.0 for k in range(1, degree + 1)]


def normal_moments(scale: float, degree: int) -> list[float]:
    """E (scale xi)^k for standard normal xi.

    >>> normal_moments(2.0, 4)
    [1.0, 0.0, 4.0, 0.0, 48.0]
    """
    moments = [1.0, 0.0]
    for k in range(2, degree + 1):
        moments.append((k - 1) * scale**2 * moments[k - 2])
    return moments[: degree + 1]


def _grid() -> tuple[Array, Array]:
    """Nodes and weights of a trapezoid rule for a standard normal: exact to rounding for smooth functions."""
    half, step = 24_000, 5e-4
    z = step * np.arange(-half, half + 1, dtype=np.float64)
    return z, np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * step


def _log_moments(scale: float) -> tuple[float, float, float]:
    """E log w and its standard deviation for w ~ N(1, scale^2) given w > 0, and P(w <= 0), where log w is undefined."""
    z, weight = _grid()
    inside = 1 + scale * z > 0
    z, weight = z[inside], weight[inside] / weight[inside].sum()
    values = np.log1p(scale * z)
    mean = float(weight @ values)
    undefined = 0.5 * math.erfc(1 / (scale * math.sqrt(2)))
    return mean, math.sqrt(float(weight @ (values - mean) ** 2)), undefined


def _softplus_moments(scale: float) -> tuple[float, float, float]:
    z, weight = _grid()
    values = np.logaddexp(0, -scale * z)
    mean = float(weight @ values)
    return mean, math.sqrt(float(weight @ (values - mean) ** 2)), 0.0


def _errors(series: dict[str, list[float]], scale: float, true: float, spread: float, undefined: float) -> Row:
    """|E of the polynomial - E of the function| for every degree, and the error of direct iterations."""
    out: Row = {"true": true, "undefined": undefined, "direct": spread / math.sqrt(PRINTED)}
    for name, coefficients in series.items():
        moments = normal_moments(scale, len(coefficients) - 1)
        sums = np.cumsum(np.multiply(coefficients, moments))
        out[name] = [float(abs(s - true)) for s in sums]
    return out


def _sizes(degree: int) -> Row:
    """d_P of a Taylor polynomial: the plan's, and the smallest known (products that share a power of the noise)."""
    plan = explain("normal", "logistic")
    degrees = list(range(1, min(degree, 12) + 1))
    return {"degrees": degrees, "d_P": [plan.d_P_taylor(k) for k in degrees], "merged": [k + 1 for k in degrees]}


def _library(degree: int, bench: Bench) -> Row:
    """The bias of `taylor` for a standard normal weight and a Logistic prior, beside that of its polynomial."""
    generator = torch.Generator().manual_seed(bench.seed)
    zero = torch.zeros(100, dtype=torch.float64)
    q, p = posterior("normal", loc=zero, scale=zero + 1), prior("logistic")
    exact = kl_divergence(q, p, "quad").item() / 100
    with without_taylor_warning(), torch.no_grad():
        drawn = [kl_divergence(q, p, "taylor", 10, degree=degree, generator=generator).item() / 100
                 for _ in range(bench.settings.estimates)]  # fmt: skip
    sample = np.asarray(drawn) - exact
    series = softplus_series(degree)
    mean, *_ = _softplus_moments(1.0)
    predicted = 2 * (float(np.dot(series, normal_moments(1.0, degree))) - mean)  # log p = ... - 2 softplus
    error = float(sample.std(ddof=1) / math.sqrt(len(sample)))
    return {"bias": float(sample.mean()), "predicted": predicted, "z": (float(sample.mean()) - predicted) / error}


def best(errors: Sequence[float]) -> int:
    """The degree of the smallest error."""
    return int(np.argmin(errors))


def rises(errors: Sequence[float]) -> bool:
    """Whether the last error is larger than the smallest, and by more than rounding."""
    return errors[-1] > 2 * min(errors) and errors[-1] > ROUNDING


def diverges(errors: Sequence[float]) -> bool:
    """Whether the errors of even degrees grow from the best one to the last, odd ones adding nothing."""
    from_best = errors[best(errors) : None : 2]
    return all(a < b for a, b in pairwise(from_best))


def _named(rows: Sequence[Row]) -> str:
    return ", ".join(f"{row['kind']} at {row['scale']:g}" for row in rows)


def judge(results: Results) -> list[Finding]:
    """The coefficients, d_P, the trade against nine direct draws, and divergence."""
    logs, softs, (size,) = results.of("log"), results.of("softplus"), results.of("size")
    formula = [math.comb(k + 2, 2) - 1 for k in size["degrees"]]
    small = logs[0]
    wins = [row for row in (*logs, *softs) if row["right"][DEGREE] < row["direct"]]
    lost = _named([row for row in (*logs, *softs) if row not in wins])
    return [
        Finding(
            "log w about 1 has the coefficients 1/k!.",
            f"with them E log w of a weight 1 +- {small['scale']:g} is off by {small['printed'][DEGREE]:.2g} nats at "
            f"degree {DEGREE}; with (-1)^(k+1)/k by {small['right'][DEGREE]:.1g}",
            small["printed"][DEGREE] < 2 * small["right"][DEGREE],
        ),
        Finding(
            "A polynomial of degree K has d_P = (K+1)(K+2)/2 - 1, so 9 for K = 3.",
            f"d_P = {size['d_P'][:5]} for K = 1 to 5, as the formula; but K + 1 products are enough "
            f"({size['merged'][DEGREE - 1]} for K = 3)",
            size["d_P"] == formula,
        ),
        Finding(
            f"Where {PRINTED} direct iterations fit, degree {DEGREE} with any M may be the better choice.",
            f"its error with M -> infinity is below that of {PRINTED} direct iterations in {len(wins)} of "
            f"{len(logs) + len(softs)} cases{f', but not for {lost}' if lost else ''}",
            bool(wins),
        ),
        Finding(
            "Under a location-scale posterior w <= 0 has a positive probability, so that strictly E log w does not "
            "exist, whatever the polynomial says.",
            "P(w <= 0) is " + ", ".join(f"{row['undefined']:.1g} (std {row['scale']:g})" for row in logs),
            all(row["undefined"] > 0 for row in logs),
            ours=True,
        ),
        *_ours(results),
    ]


def _ours(results: Results) -> list[Finding]:
    """Where the error diverges, and the bias of the library's estimate."""
    rows, library = (*results.of("log"), *results.of("softplus")), results.of("library")
    seen = [row for row in rows if rises(row["right"])]
    listed = "; ".join(
        f"{_named([row])}: best degree {best(row['right'])} with {min(row['right']):.1g} nats, "
        f"degree {len(row['right']) - 1} {row['right'][-1]:.1g}"
        for row in seen
    )
    rest = _named([row for row in rows if row not in seen])
    return [
        Finding(
            "Higher degrees help only up to a point, then the error diverges.",
            f"{listed}{f'; no rise up to degree {results.settings.degree} for {rest}' if rest else ''}",
            all(diverges(row["right"]) for row in seen) if seen else None,
            ours=True,
        ),
        Finding(
            "`method='taylor'` has the bias of its polynomial.",
            f"Logistic prior, degrees 2 to 8: {max(abs(r['z']) for r in library):.1f} standard errors at most",
            all(abs(row["z"]) < CHANCE for row in library),
            ours=True,
        ),
    ]


def draw(results: Results) -> Figure:
    """Errors against the degree; dashed, what nine direct draws reach."""
    heads = [
        ("log w, w around 1", "degree K", "error of the expectation, nats"),
        ("log(1 + exp(-w)), w around 0", "degree K", ""),
    ]
    figure, (left, right) = panels(heads, (10, 4.3), sharey=True)
    for axes, rows in ((left, results.of("log")), (right, results.of("softplus"))):
        for row, (label, colour) in zip(rows, coloured([f"std {r['scale']:g}" for r in rows]), strict=True):
            degrees = [k for k, error in enumerate(row["right"]) if k and (k % 2 == 0 or k == 1)]  # odd moments vanish
            axes.plot(degrees, [max(row["right"][k], 1e-17) for k in degrees], "o-", color=colour, markersize=3,
                      linewidth=1.4, label=label)  # fmt: skip
            axes.axhline(row["direct"], color=colour, linestyle=":", linewidth=1.1)
        axes.set_yscale("log")
        axes.set_ylim(1e-14, 1e4)
    worst = results.of("log")[-1]
    left.plot(range(1, len(worst["printed"])), worst["printed"][1:], color=light("ink"), linewidth=1.4, linestyle="--",
              label="coefficients as printed")  # fmt: skip
    for axes in (left, right):
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    right.annotate(f"dotted: {PRINTED} direct draws", (0.02, 0.04), xycoords="axes fraction", fontsize=8.5,
                   color=light("muted"))  # fmt: skip
    return figure


def tell(results: Results) -> str:
    """The best degrees."""
    rows = [
        [row["kind"], f"{row['scale']:g}", f"{row['true']:.6f}", f"{row['direct']:.2g}", f"{row['right'][DEGREE]:.2g}",
         best(row["right"]), f"{min(row['right']):.2g}", f"{row['right'][-1]:.2g}"]
        for row in (*results.of("log"), *results.of("softplus"))
    ]  # fmt: skip
    header = ["function", "std", "expectation", f"error of {PRINTED} direct draws", f"degree {DEGREE}",
              "best degree", "error there", f"degree {results.settings.degree}"]  # fmt: skip
    return "Errors in nats, M -> infinity:\n\n" + markdown(header, rows)


EXPERIMENT = Experiment(
    title="The Taylor fallback",
    where="section 4.1 and its example",
    claim="Where a statistic has no tuple, its Taylor polynomial of degree K has one, of size (K+1)(K+2)/2 - 1 for a "
    "location-scale posterior, so that any number of iterations can be run; for instance log w about 1, with "
    "coefficients 1/k! and K = 3 in place of nine direct iterations.",
    method="Expectations under Gaussian noise, for M -> infinity: of the polynomials from the moments of the noise, of "
    "the functions by quadrature (of log w given w > 0). log w is the paper's example, with the printed and with the "
    "right coefficients; log(1 + exp(-w)) is the term of a Logistic prior. The direct iterations' error is their "
    "standard deviation. The library's `taylor` is run as well and its bias compared with the polynomial's. The series "
    "converges near its centre only (radius 1 and pi), and the noise leaves that disc, so that the expectations "
    "diverge for every standard deviation as K grows; for small ones beyond the degrees shown.",
    version=2,
    settings={"tiny": Settings((0.05, 0.3), (1.0, 2.0), 24, 30), "cpu": Settings(), "paper": Settings(estimates=4000)},
    parts=parts,
    measure=measure,
    judge=judge,
    draw=draw,
    tell=tell,
)
