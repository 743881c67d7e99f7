"""What is measured of the estimated KL: the mean squares of its errors and of its gradients', beside the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from experiments.experiment import Bench, Part, Row
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.priors import prior
from mcrepar.divergence.kl import kl_divergence
from mcrepar.divergence.methods import SAMPLED
from mcrepar.divergence.plan import explain
from mcrepar.workbench.app.estimate_law import NormalPair, variances
from mcrepar.workbench.app.taylor_warning import without_taylor_warning

PAIRED = ("normal", "radial")  # posteriors
DISTANCE = 0.3  # of the posterior's mean from the prior's
LEVELS = {"value": "KL", "loc": "gradient in loc", "scale": "gradient in scale"}


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        draws: the numbers M.
        deviations: of the posterior; the prior's is 1.
        sizes: numbers of weights.
        base: the M, the deviation and the size that are kept while another of them changes.
        estimates: of every one.
        laws: estimates from the law of the error, for models of any size.
    """

    draws: tuple[int, ...] = (1, 10, 100, 1000)
    deviations: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0)
    sizes: tuple[int, ...] = (10, 100, 1000, 10_000)
    base: tuple[int, float, int] = (10, 0.1, 100)
    estimates: int = 400
    laws: int = 10_000


def parts(settings: Settings) -> list[Part]:
    """One for each posterior and method; sampled log q; and models of up to 10^8 weights by the law."""
    found = [
        Part(f"{name}-{method}", {"kind": "method", "posterior": name, "method": method, "entropy": "exact"})
        for name in PAIRED
        for method in explain(name, "normal").methods
    ]
    sampled = {"kind": "method", "posterior": "normal", "method": "repar", "entropy": "mc"}
    return [*found, Part("normal-repar-mc", sampled), Part("large", {"kind": "large"})]


def measure(part: Part, bench: Bench) -> Row:
    """Mean squares of the errors of value and gradients, beside the formulas."""
    if part.given["kind"] == "large":
        return _large(bench)
    cases = _cases(bench.settings) if part.given["method"] in SAMPLED else _cases(bench.settings)[:1]
    generator = torch.Generator().manual_seed(bench.seed)
    return {"cases": [_case(part, case, bench.settings.estimates, generator) for case in cases]}


def _cases(settings: Settings) -> list[tuple[int, float, int]]:
    """M, deviation, size: the base, then each of them alone."""
    m, s, d = settings.base
    changed = [*((x, s, d) for x in settings.draws), *((m, x, d) for x in settings.deviations),
               *((m, s, x) for x in settings.sizes)]  # fmt: skip
    return list(dict.fromkeys([settings.base, *changed]))


def _case(part: Part, case: tuple[int, float, int], estimates: int, generator: torch.Generator) -> Row:
    draws, deviation, size = case
    name, method, entropy = part.given["posterior"], part.given["method"], part.given["entropy"]
    loc = torch.full((size,), DISTANCE, dtype=torch.float64, requires_grad=True)
    scale = torch.full((size,), scale_of(name, deviation, size), dtype=torch.float64, requires_grad=True)
    q, p = posterior(name, loc=loc, scale=scale), prior("normal", scale=1.0)
    exact = kl_divergence(q, p, "exact")
    truth = [exact.detach(), *torch.autograd.grad(exact, q.learned)]
    squares: dict[str, list[float]] = {level: [] for level in LEVELS}
    with without_taylor_warning():
        for _ in range(estimates if method in SAMPLED else 1):
            count = draws if method in SAMPLED else None
            value = kl_divergence(q, p, method, count, entropy=entropy, generator=generator)
            found = [value.detach(), *torch.autograd.grad(value, q.learned)]
            for level, a, b in zip(LEVELS, found, truth, strict=True):
                squares[level].append(float((a - b).square().mean()))  # all weights are alike
    law = variances(q, DISTANCE, deviation, draws, entropy) if method in SAMPLED else dict.fromkeys(LEVELS, 0.0)
    out: Row = {"draws": draws, "deviation": deviation, "size": size, "kl": exact.item()}
    for level, sample in squares.items():
        count = 1 if level == "value" or q.noise.joint else size
        out |= {level: float(np.mean(sample)), f"law_{level}": law[level], f"z_{level}": _z(sample, law[level], count)}
    return out


def scale_of(name: str, deviation: float, size: int) -> float:
    """The scale with which a weight has this standard deviation: the noise of a joint law has the variance 1/d."""
    template = posterior(name, loc=torch.zeros(size), scale=torch.ones(size))
    return deviation / float(template.stddev.flatten()[0])


def _z(sample: Sequence[float], law: float, count: int) -> float:
    """How many standard errors the mean of squared errors is from its law.

    The standard error is the sample's, but not below that of `count` independent normal errors in each: the squares are
    skewed, and a sample without its tail would look too sure.
    """
    values = np.asarray(sample)
    if not law:  # nothing is drawn
        return 0.0 if float(values.max()) < 1e-18 else 1e6
    error = max(float(values.std(ddof=1)), law * math.sqrt(2 / count)) / math.sqrt(len(values))
    return (float(values.mean()) - law) / error


def _large(bench: Bench) -> Row:
    """The appendix's own example: variance 10^-4, from 10^2 to 10^8 weights, by the exact law of the error."""
    rng, settings = np.random.default_rng(bench.seed), bench.settings
    pair, rows = NormalPair(0.01), []
    for size in (10**2, 10**4, 10**6, 10**8):
        for draws in sorted({1, *settings.draws}):
            row: Row = {"size": size, "draws": draws, "kl": pair.kl(size)}
            for entropy in ("exact", "mc"):
                row[entropy] = float(pair.errors(size, draws, settings.laws, rng, entropy).std())
            rows.append(row)
    return {"cases": rows}
