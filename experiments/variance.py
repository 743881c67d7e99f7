"""The noise of the estimated KL and of its gradient against M, posterior deviation and model size, for all methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from experiments.estimate_noise import DISTANCE, LEVELS, PAIRED, Settings, measure, parts, scale_of
from experiments.experiment import CHANCE, Experiment, Finding, Results, Row, all_held, markdown
from experiments.panels import panels
from experiments.power_law import Power, power, spread_error
from mcrepar.divergence.methods import SAMPLED
from mcrepar.plots.style import coloured, legend, light
from mcrepar.workbench.app.estimate_law import ENTROPIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = dict(zip(SAMPLED, "s^vDPo", strict=True))
TOLERANCE = 1.0  # nats: the standard deviation for which the draws are counted


def _varied(results: Results, name: str, method: str, axis: int, entropy: str = "exact") -> list[Row]:
    """The cases in which only M (0), the deviation (1) or the size (2) differs from the base."""
    fields, base = ("draws", "deviation", "size"), list(results.settings.base)
    (row,) = [r for r in results.of("method")
              if (r["posterior"], r["method"], r["entropy"]) == (name, method, entropy)]  # fmt: skip
    found = [
        c
        for c in row["cases"]
        if all(c[f] == b for k, (f, b) in enumerate(zip(fields, base, strict=True)) if k != axis)
    ]
    return sorted(found, key=lambda case: float(case[fields[axis]]))


def _pooled(results: Results, name: str, axis: int) -> list[Row]:
    """The same, the mean over all methods that draw: they have one law, and together six times the estimates."""
    each = [_varied(results, name, method, axis) for method in SAMPLED]
    return [{**same[0], **{level: float(np.mean([case[level] for case in same])) for level in LEVELS}}
            for same in zip(*each, strict=True)]  # fmt: skip


def _in_log_scale(name: str, cases: Sequence[Row]) -> list[Row]:
    """The cases with the gradient in the log of the scale beside that in the scale."""
    return [{**c, "log_scale": c["scale"] * scale_of(name, c["deviation"], c["size"]) ** 2} for c in cases]


def _power(results: Results, cases: Sequence[Row], of: str, level: str) -> Power:
    """The power of M or of D; its error is that of a Normal posterior's, whose weights have gradients of their own."""
    errors = []
    for case in cases:
        alike = 1 if level == "value" else case["size"]  # squared errors in an estimate
        summands = case["draws"] * case["size"] / alike  # of each error; one has at most the tails of xi^2 - 1
        errors.append(spread_error(results.settings.estimates * len(SAMPLED) * alike, 12 / summands))
    return power([case[of] for case in cases], [case[level] for case in cases], errors)


def judge(results: Results) -> list[Finding]:
    """The paper on M, on the posterior's variance and on the size; our formulas on all methods."""
    by_draws = _pooled(results, PAIRED[0], 0)
    falls = {level: _power(results, by_draws, "draws", level) for level in LEVELS}
    narrow = {e: _varied(results, "normal", "repar", 1, e) for e in ("exact", "mc")}
    listed = {e: ", ".join(f"{c['deviation']:g}: {c['value']:.2g}" for c in rows) for e, rows in narrow.items()}
    return [
        Finding(
            "The variance falls as 1/M.",
            f"as M to the power of {falls['value']} (KL), {falls['loc']} and {falls['scale']} (gradients)",
            all_held(fall.agrees(-1) for fall in falls.values()),
        ),
        Finding(
            "A smaller posterior variance makes it smaller (log q sampled, as in the paper).",
            f"variance by deviation, {listed['mc']}",
            narrow["mc"][0]["value"] < narrow["mc"][-1]["value"],
        ),
        Finding(
            "A smaller posterior variance makes it smaller (entropy exact).",
            f"variance by deviation, {listed['exact']}",
            narrow["exact"][0]["value"] < narrow["exact"][-1]["value"],
        ),
        *_size_findings(results),
        _formula_finding(results),
    ]


def _size_findings(results: Results) -> list[Finding]:
    """The paper's own criterion, a deviation in nats; then ours, the relative error and the gradient's noise."""
    normal, radial = (_pooled(results, name, 2) for name in PAIRED)
    (large,), sizes = results.of("large"), results.settings.sizes
    one = [case for case in large["cases"] if case["draws"] == 1]
    needed = {entropy: [(case[entropy] / TOLERANCE) ** 2 for case in one] for entropy in ENTROPIES}
    least, most = ({e: f"{max(1.0, m[k]):.2g}" for e, m in needed.items()} for k in (0, -1))
    relative = [case["exact"] / case["kl"] for case in one]
    joint = [math.sqrt(case["value"]) / case["kl"] for case in radial]
    grown, shared = (_power(results, cases, "size", "value") for cases in (normal, radial))
    gradients = {
        name: [_power(results, _in_log_scale(name, cases), "size", level) for level in ("loc", "log_scale")]
        for name, cases in zip(PAIRED, (normal, radial), strict=True)
    }
    exponents = ", ".join(
        f"{_flat(loc)} (loc) and {_flat(log_scale)} (log scale) for a {name} posterior"
        for name, (loc, log_scale) in gradients.items()
    )
    return [
        Finding(
            "A larger model has a larger variance (in nats).",
            f"as D to the power of {grown} for a Normal posterior, {shared.exponent:.2f} for a Radial one, whose "
            "weights share one radius",
            grown.exceeds(0),
        ),
        Finding(
            "So a larger model needs more iterations for a given variance.",
            f"for a deviation of {TOLERANCE:g} nat at the appendix's posterior variance of 10^-4, M = {least['mc']} at "
            f"10^2 weights and {most['mc']} at 10^8 with log q sampled, as in the paper; with the entropy exact "
            f"{least['exact']} and {most['exact']} (deviations at M = 1: {one[0]['exact']:.1g} and "
            f"{one[-1]['exact']:.1g} nats)",
            all(a < b for a, b in pairwise(needed["mc"])),
        ),
        Finding(
            "Relative to the KL, the error of a larger model is not larger.",
            f"at M = 1 it goes from {relative[0]:.1e} at 10^2 weights to {relative[-1]:.1e} at 10^8 (Radial, "
            f"{sizes[0]:,} to {sizes[-1]:,} weights, M = {results.settings.base[0]}: {joint[0]:.1e} to "
            f"{joint[-1]:.1e})",
            relative[-1] <= relative[0],
            ours=True,
        ),
        Finding(
            "The noise of a weight's gradient, in loc and in log scale, does not grow with the model (Normal).",
            f"its variance goes as D to the power of {exponents}",
            all_held(power.agrees(0) for power in gradients[PAIRED[0]]),
            ours=True,
        ),
    ]


def _flat(power: Power) -> str:
    """An exponent near 0, without the sign of what is not there."""
    return f"{round(power.exponent, 2) + 0.0:.2f}"


def _formula_finding(results: Results) -> Finding:
    deviations = [abs(case[f"z_{level}"]) for row in results.of("method") for case in row["cases"] for level in LEVELS]
    return Finding(
        "All methods have the variances of docs/math.md, D4: one law for direct, repar, stats, stream, regen and "
        "taylor, none for exact and quad.",
        f"the largest of {len(deviations)} deviations is {max(deviations):.1f} standard errors",
        max(deviations) < CHANCE,
        ours=True,
    )


def draw(results: Results) -> Figure:
    """The variance against M for all methods, against the deviation, and the error against the size of a model."""
    m, s, d = results.settings.base
    heads = [
        (f"Against M (D = {d}, deviation {s:g})", "number M of draws", "variance, nats squared"),
        (f"Against the deviation (M = {m})", "posterior's standard deviation", ""),
        ("Against the size, M = 1, variance 1e-4", "number D of weights", "error, nats; relative to the KL"),
    ]
    figure, (left, middle, right) = panels(heads, (13, 4.2))
    for level, (label, colour) in zip(LEVELS, coloured(list(LEVELS.values())), strict=True):
        cases = _varied(results, "normal", "direct", 0)
        left.plot([c["draws"] for c in cases], [c[f"law_{level}"] for c in cases], color=colour, label=f"law, {label}")
        for method in SAMPLED:
            cases = _varied(results, "normal", method, 0)
            left.plot([c["draws"] for c in cases], [c[level] for c in cases], MARKERS[method], color=colour,
                          markersize=4.5, alpha=0.7, markerfacecolor="none")  # fmt: skip
    for method in SAMPLED:
        left.plot([], [], MARKERS[method], color=light("muted"), markerfacecolor="none", label=method)
    for (name, entropy), (label, colour) in zip(
        [("normal", "exact"), ("normal", "mc"), ("radial", "exact")],
        coloured(["Normal, entropy exact", "Normal, log q sampled", "Radial, entropy exact"]),
        strict=True,
    ):
        cases = _varied(results, name, "repar", 1, entropy)
        middle.plot([c["deviation"] for c in cases], [c["law_value"] for c in cases], color=colour, label=label)
        middle.plot([c["deviation"] for c in cases], [c["value"] for c in cases], "o", color=colour, markersize=4)
    (large,) = results.of("large")
    one = [case for case in large["cases"] if case["draws"] == 1]
    sizes = [case["size"] for case in one]
    for entropy, colour, label in (("exact", "blue", "entropy exact"), ("mc", "orange", "log q sampled")):
        right.plot(sizes, [c[entropy] for c in one], "o-", color=light(colour), label=f"nats, {label}")
        right.plot(sizes, [c[entropy] / c["kl"] for c in one], "o--", color=light(colour), label=f"relative, {label}")
    for axes in (left, middle, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        legend(axes, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3 if axes is left else 1)
    return figure


def tell(results: Results) -> str:
    """What every method measured at the base."""
    m, s, d = results.settings.base
    rows = [
        [row["posterior"], row["method"], row["entropy"],
         *(f"{row['cases'][0][level]:.3g} ({row['cases'][0][f'law_{level}']:.3g})" for level in LEVELS)]
        for row in results.of("method")
    ]  # fmt: skip
    header = ["posterior", "method", "log q", *LEVELS.values()]
    text = f"Measured variances at M = {m}, deviation {s:g}, D = {d:,}, with the formula's in parentheses"
    return f"{text} (all other cases are in `result.json`):\n\n{markdown(header, rows)}"


EXPERIMENT = Experiment(
    title="The variance of the estimated KL and of its gradient",
    where="section 1, and appendix D with its application",
    claim="The variance of the Monte Carlo estimate of the KL falls as 1/M, is smaller for a smaller posterior "
    "variance, and grows with the number of weights, so that larger models need more iterations even at a small "
    "posterior variance.",
    method=f"D equal weights N({DISTANCE:g}, deviation^2), or Radial ones of the same deviation, against N(0, 1), in "
    "float64; every estimate has fresh noise. Measured are the mean squares of estimate minus exact value, of the KL "
    "and of the gradients in loc and scale of a weight, by every method. M, deviation and size change one at a time. "
    "The appendix's example (variance 10^-4, up to 10^8 weights) is drawn from the exact law of its error. What a step "
    "of training sees is the gradient of each weight, in its loc and in the log of its scale: its noise does not grow "
    "with the model. (At one deviation of its weights a Radial scale grows as sqrt(D), and so falls the gradient in "
    "it.)",
    version=1,
    settings={
        "tiny": Settings((10, 50), (0.1, 0.5), (20, 320), (10, 0.1, 20), 20, 1000),
        "cpu": Settings(),
        "paper": Settings((1, 10, 100, 1000), (0.01, 0.1, 0.5, 1.0), (10, 100, 1000, 10_000, 100_000), estimates=4000),
    },
    parts=parts,
    measure=measure,
    judge=judge,
    draw=draw,
    tell=tell,
)
