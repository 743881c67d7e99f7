"""The noise of the estimated KL and of its gradient against M, posterior std and model size, for all methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from experiments.experiment import CHANCE, Bench, Experiment, Finding, Part, Results, Row, all_held, markdown
from experiments.panels import panels
from experiments.significance import Power, power, spread_error
from mcrepar.distributions.posteriors import posterior
from mcrepar.distributions.priors import prior
from mcrepar.divergence.kl import kl_divergence
from mcrepar.divergence.methods import METHODS
from mcrepar.divergence.plan import explain
from mcrepar.plots.style import coloured, legend, light
from mcrepar.workbench.app.estimate_distribution import ENTROPIES, NormalPair, variances
from mcrepar.workbench.app.taylor_warning import without_taylor_warning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLED = [name for name, row in METHODS.items() if row.samples]
MARKERS = dict(zip(SAMPLED, "s^vDPo", strict=True))
PAIRED = ("normal", "radial")  # posteriors
DISTANCE = 0.3  # of the posterior's mean from the prior's
LEVELS = {"value": "KL", "loc": "gradient in loc", "scale": "gradient in scale"}
TOLERANCE = 1.0  # nats: the standard deviation for which the draws are counted


@dataclass(frozen=True)
class Settings:
    """One scale of the experiment.

    Args:
        draws: the numbers M.
        stds: standard deviations of the posterior; the prior's is 1.
        sizes: numbers of weights.
        base: the M, the std and the size that stay while another of them changes.
        estimates: of every one.
        simulations: of the error's own distribution, for models of any size.
    """

    draws: tuple[int, ...] = (1, 10, 100, 1000)
    stds: tuple[float, ...] = (0.01, 0.1, 0.5, 1.0)
    sizes: tuple[int, ...] = (10, 100, 1000, 10_000)
    base: tuple[int, float, int] = (10, 0.1, 100)
    estimates: int = 400
    simulations: int = 10_000


def parts(settings: Settings) -> list[Part]:
    """One for each posterior and method; sampled log q; and models of up to 10^8 weights by theory."""
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
    """M, std, size: the base, then each of them alone."""
    m, s, d = settings.base
    changed = [*((x, s, d) for x in settings.draws), *((m, x, d) for x in settings.stds),
               *((m, s, x) for x in settings.sizes)]  # fmt: skip
    return list(dict.fromkeys([settings.base, *changed]))


def _case(part: Part, case: tuple[int, float, int], estimates: int, generator: torch.Generator) -> Row:
    draws, std, size = case
    name, method, entropy = part.given["posterior"], part.given["method"], part.given["entropy"]
    loc = torch.full((size,), DISTANCE, dtype=torch.float64, requires_grad=True)
    scale = torch.full((size,), scale_of(name, std, size), dtype=torch.float64, requires_grad=True)
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
    expected = variances(q, DISTANCE, std, draws, entropy) if method in SAMPLED else dict.fromkeys(LEVELS, 0.0)
    out: Row = {"draws": draws, "std": std, "size": size, "kl": exact.item()}
    for level, sample in squares.items():
        count = 1 if level == "value" or q.noise.joint else size
        out |= {level: float(np.mean(sample)), f"expected_{level}": expected[level]}
        out[f"z_{level}"] = _z(sample, expected[level], count)
    return out


def scale_of(name: str, std: float, size: int) -> float:
    """The scale with which a weight has this standard deviation: joint noise has the variance 1/d."""
    template = posterior(name, loc=torch.zeros(size), scale=torch.ones(size))
    return std / float(template.stddev.flatten()[0])


def _z(sample: Sequence[float], expected: float, count: int) -> float:
    """How many standard errors the mean of squared errors is from its expectation.

    The standard error is the sample's, but not below that of `count` independent normal errors in each: the squares are
    skewed, and a sample without its tail would look too precise.
    """
    values = np.asarray(sample)
    if not expected:  # nothing is drawn
        return 0.0 if float(values.max()) < 1e-18 else 1e6
    error = max(float(values.std(ddof=1)), expected * math.sqrt(2 / count)) / math.sqrt(len(values))
    return (float(values.mean()) - expected) / error


def _large(bench: Bench) -> Row:
    """The appendix's own example: variance 10^-4, from 10^2 to 10^8 weights, by the exact distribution of the error."""
    rng, settings = np.random.default_rng(bench.seed), bench.settings
    pair, rows = NormalPair(0.01), []
    for size in (10**2, 10**4, 10**6, 10**8):
        for draws in sorted({1, *settings.draws}):
            row: Row = {"size": size, "draws": draws, "kl": pair.kl(size)}
            for entropy in ("exact", "mc"):
                row[entropy] = float(pair.errors(size, draws, settings.simulations, rng, entropy).std())
            rows.append(row)
    return {"cases": rows}


# ---- what is judged


def _varied(results: Results, name: str, method: str, axis: int, entropy: str = "exact") -> list[Row]:
    """The cases in which only M (0), the std (1) or the size (2) differs from the base."""
    fields, base = ("draws", "std", "size"), list(results.settings.base)
    (row,) = [r for r in results.of("method")
              if (r["posterior"], r["method"], r["entropy"]) == (name, method, entropy)]  # fmt: skip
    fixed = [(f, b) for k, (f, b) in enumerate(zip(fields, base, strict=True)) if k != axis]
    found = [case for case in row["cases"] if all(case[f] == b for f, b in fixed)]
    return sorted(found, key=lambda case: float(case[fields[axis]]))


def _pooled(results: Results, name: str, axis: int) -> list[Row]:
    """The same, the mean over all methods that draw: one distribution, and six times the estimates."""
    each = [_varied(results, name, method, axis) for method in SAMPLED]
    return [{**same[0], **{level: float(np.mean([case[level] for case in same])) for level in LEVELS}}
            for same in zip(*each, strict=True)]  # fmt: skip


def _in_log_scale(name: str, cases: Sequence[Row]) -> list[Row]:
    """The cases with the gradient in the log of the scale beside that in the scale."""
    return [{**c, "log_scale": c["scale"] * scale_of(name, c["std"], c["size"]) ** 2} for c in cases]


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
    listed = {e: ", ".join(f"{c['std']:g}: {c['value']:.2g}" for c in rows) for e, rows in narrow.items()}
    return [
        Finding(
            "The variance falls as 1/M.",
            f"as M to the power of {falls['value']} (KL), {falls['loc']} and {falls['scale']} (gradients)",
            all_held(fall.agrees(-1) for fall in falls.values()),
        ),
        Finding(
            "A smaller posterior variance makes it smaller (log q sampled, as in the paper).",
            f"variance by standard deviation, {listed['mc']}",
            narrow["mc"][0]["value"] < narrow["mc"][-1]["value"],
        ),
        Finding(
            "A smaller posterior variance makes it smaller (entropy exact).",
            f"variance by standard deviation, {listed['exact']}",
            narrow["exact"][0]["value"] < narrow["exact"][-1]["value"],
        ),
        *_size_findings(results),
        _formula_finding(results),
    ]


def _size_findings(results: Results) -> list[Finding]:
    """The paper's own criterion, a standard deviation in nats; then ours: relative error, gradient noise."""
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
        " and ".join(
            f"{round(g.exponent, 2) + 0.0:.2f} ({level})" for g, level in zip(both, ("loc", "log scale"), strict=True)
        )
        + f" for a {name} posterior"  # + 0.0: without the sign of what is not there
        for name, both in gradients.items()
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
            f"for a standard deviation of {TOLERANCE:g} nat at the appendix's posterior variance of 10^-4, M = "
            f"{least['mc']} at 10^2 weights and {most['mc']} at 10^8 with log q sampled, as in the paper; with the "
            f"entropy exact {least['exact']} and {most['exact']} (at M = 1 it is {one[0]['exact']:.1g} and "
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


def _formula_finding(results: Results) -> Finding:
    scores = [abs(case[f"z_{level}"]) for row in results.of("method") for case in row["cases"] for level in LEVELS]
    return Finding(
        "All methods have the variances of docs/math.md, D4: one distribution for direct, repar, stats, stream, "
        "regen and taylor, none for exact and quad.",
        f"the largest of {len(scores)} deviations is {max(scores):.1f} standard errors",
        max(scores) < CHANCE,
        ours=True,
    )


def draw(results: Results) -> Figure:
    """The variance against M for all methods, against the std, and the error against the size of a model."""
    m, s, d = results.settings.base
    heads = [
        (f"Against M (D = {d}, std {s:g})", "number M of draws", "variance, nats squared"),
        (f"Against the std (M = {m})", "posterior's standard deviation", ""),
        ("Against the size, M = 1, variance 1e-4", "number D of weights", "error, nats; relative to the KL"),
    ]
    figure, (left, middle, right) = panels(heads, (13, 4.2))
    for level, (label, colour) in zip(LEVELS, coloured(list(LEVELS.values())), strict=True):
        cases = _varied(results, "normal", "direct", 0)
        left.plot(
            [c["draws"] for c in cases],
            [c[f"expected_{level}"] for c in cases],
            color=colour,
            label=f"formula, {label}",
        )
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
        middle.plot([c["std"] for c in cases], [c["expected_value"] for c in cases], color=colour, label=label)
        middle.plot([c["std"] for c in cases], [c["value"] for c in cases], "o", color=colour, markersize=4)
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
         *(f"{row['cases'][0][level]:.3g} ({row['cases'][0][f'expected_{level}']:.3g})" for level in LEVELS)]
        for row in results.of("method")
    ]  # fmt: skip
    header = ["posterior", "method", "log q", *LEVELS.values()]
    text = f"Measured variances at M = {m}, std {s:g}, D = {d:,}, with the formula's in parentheses"
    return f"{text} (all other cases are in `result.json`):\n\n{markdown(header, rows)}"


EXPERIMENT = Experiment(
    title="The variance of the estimated KL and of its gradient",
    where="section 1, and appendix D with its application",
    claim="The variance of the Monte Carlo estimate of the KL falls as 1/M, is smaller for a smaller posterior "
    "variance, and grows with the number of weights, so that larger models need more iterations even at a small "
    "posterior variance.",
    method=f"D equal weights N({DISTANCE:g}, std^2), or Radial ones of the same std, against N(0, 1), in float64; "
    "every estimate has fresh noise. Measured are the mean squares of estimate minus exact value, of the KL and of the "
    "gradients in loc and scale of a weight, by every method. M, std and size change one at a time. The appendix's "
    "example (variance 10^-4, up to 10^8 weights) is drawn from the exact distribution of its error. What a step of "
    "training sees is the gradient of each weight, in its loc and in the log of its scale: its noise does not grow "
    "with the model. (At one std of its weights a Radial scale grows as sqrt(D), and so falls the gradient in it.)",
    version=2,
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
