"""Figure 2, left: how far the estimated KL of one weight is from the KL, against M, for four posterior variances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from experiments.experiment import CHANCE, Bench, Experiment, Finding, Part, Results, Row, all_held, markdown
from experiments.panels import panels
from experiments.significance import power, spread_error
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.priors import prior
from mcrepar.divergence.kl import kl_divergence
from mcrepar.plots.style import coloured, legend
from mcrepar.workbench.app.estimate_distribution import ENTROPIES, NormalPair

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"exact": "entropy exact", "mc": "log q sampled too, as printed"}


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment."""

    variances: tuple[float, ...] = (0.5, 0.1, 0.01, 0.0001)
    draws: tuple[int, ...] = (1, 3, 10, 30, 100, 300, 1000)
    estimates: int = 1000


def parts(settings: Settings) -> list[Part]:
    """One for each variance and each way to treat the entropy."""
    return [
        Part(f"{entropy}-{variance:g}", {"variance": variance, "entropy": entropy})
        for entropy in ENTROPIES
        for variance in settings.variances
    ]


def measure(part: Part, bench: Bench) -> Row:
    """The root mean square error of the paper's estimate, and the one that its distribution predicts."""
    generator = torch.Generator().manual_seed(bench.seed)
    variance, entropy = part.given["variance"], part.given["entropy"]
    pair = NormalPair(math.sqrt(variance))
    zero = torch.zeros(1, dtype=torch.float64)
    q, p = posterior("normal", loc=zero, scale=zero + pair.scale), prior("normal", scale=1.0)
    kl, settings = pair.kl(1), bench.settings
    out: Row = {"kl": kl, "rms": [], "expected": []}
    for draws in settings.draws:
        estimates = [kl_divergence(q, p, "repar", draws, entropy=entropy, generator=generator).item()
                     for _ in range(settings.estimates)]  # fmt: skip
        errors = np.asarray(estimates) - kl
        out["rms"].append(float(math.sqrt((errors**2).mean())))
        out["expected"].append(pair.std(1, draws, entropy))
    return out


def relative_errors(row: Row, settings: Settings) -> list[float]:
    """The relative standard errors of the mean squares, by theory: a sample without its tail looks too precise."""
    pair = NormalPair(math.sqrt(row["variance"]))
    return [spread_error(settings.estimates, pair.excess(1, draws, row["entropy"])) for draws in settings.draws]


def z_scores(row: Row, settings: Settings) -> list[float]:
    """How many standard errors the mean squares are from their expectation."""
    measured = zip(row["rms"], row["expected"], relative_errors(row, settings), strict=True)
    return [((rms / expected) ** 2 - 1) / error for rms, expected, error in measured]


def judge(results: Results) -> list[Finding]:
    """Does the error fall with M, and with the posterior's variance?"""
    settings, draws = results.settings, results.settings.draws
    slopes = [power(draws, row["rms"], [e / 2 for e in relative_errors(row, settings)]) for row in results.rows]
    exponents, error = [slope.exponent for slope in slopes], max(slope.error for slope in slopes)
    z = [abs(z) for row in results.rows for z in z_scores(row, settings)]
    findings = [
        Finding(
            "More iterations make the estimate better, its variance being O(1/M).",
            f"the error goes as M to the power of {min(exponents):.2f} to {max(exponents):.2f} (O(1/M) means -0.5; "
            f"standard error {error:.2f})",
            all_held(slope.agrees(-0.5) for slope in slopes),
        )
    ]
    for entropy in reversed(ENTROPIES):
        rows = sorted((r for r in results.rows if r["entropy"] == entropy), key=lambda r: -float(r["variance"]))
        first = [row["rms"][0] for row in rows]
        listed = ", ".join(f"{row['variance']:g}: {row['rms'][0]:.2g}" for row in rows)
        findings.append(
            Finding(
                f"A smaller posterior variance makes the estimate less noisy ({NAMES[entropy]}).",
                f"the error at M = {draws[0]} by variance, {listed} nats",
                all(a > b for a, b in pairwise(first)),
            )
        )
    largest = f"the largest of {len(z)} deviations is {max(z):.1f} standard errors"
    findings.append(Finding("The error has the distribution of docs/math.md, D4.", largest, max(z) < CHANCE, ours=True))
    return findings


def draw(results: Results) -> Figure:
    """The error against M, one line per variance: measured as points, its expectation as a line."""
    x = "number M of Monte Carlo iterations"
    heads = [(NAMES["mc"], x, "root mean square error, nats"), (NAMES["exact"], x, "")]
    figure, both = panels(heads, (9.2, 3.6), sharey=True)
    for axes, entropy in zip(both, reversed(ENTROPIES), strict=True):
        rows = [row for row in results.rows if row["entropy"] == entropy]
        for row, (label, colour) in zip(rows, coloured([f"variance {r['variance']:g}" for r in rows]), strict=True):
            axes.plot(results.settings.draws, row["expected"], color=colour, linewidth=1.3, alpha=0.7)
            axes.plot(results.settings.draws, row["rms"], "o", color=colour, markersize=4, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
    legend(both[0], loc="lower left")
    return figure


def tell(results: Results) -> str:
    """The errors."""
    header = ["log q", "variance", "KL", *(f"M = {draws:,}" for draws in results.settings.draws)]
    rows = [
        [r["entropy"], f"{r['variance']:g}", f"{r['kl']:.4f}", *(f"{error:.2g}" for error in r["rms"])]
        for r in results.rows
    ]
    return "Root mean square error in nats:\n\n" + markdown(header, rows)


EXPERIMENT = Experiment(
    title="The error of the KL against the number of draws",
    where="Figure 2, left",
    claim="For one weight with a Gaussian posterior and a standard Gaussian prior, where the KL is known, the gap "
    "between the Monte Carlo estimate and the KL shrinks as the number M of iterations grows; it is smaller for a "
    "smaller posterior variance, at which, however, the network is almost deterministic.",
    method="`kl_divergence(..., method='repar')` of one weight N(0, variance) against N(0, 1), again and again with "
    "fresh noise, both with the exact entropy and with log q sampled as the paper's equations do. The paper does not "
    "print its four variances; those here span the range of its text. Points are measured, lines are the formula of "
    "docs/math.md, D4, from which the standard errors are, too. With log q sampled the error does not fall with the "
    "variance but rises (at M = 1 the formula's limit is 0.71 nats): log q keeps its spread however narrow q is. At "
    "the variance of the prior itself it would vanish.",
    version=2,
    settings={
        "tiny": Settings(draws=(1, 10, 100), estimates=100),
        "cpu": Settings(),
        "paper": Settings(draws=(1, 3, 10, 30, 100, 300, 1000, 3000, 10_000), estimates=2000),
    },
    parts=parts,
    measure=measure,
    judge=judge,
    draw=draw,
    tell=tell,
)
