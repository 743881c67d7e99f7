"""How good is a Monte Carlo estimate of the KL? The paper's app, with the half of the truth that it leaves out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mcrepar.models import MODELS
from mcrepar.workbench.app.answer import Answer, Cell, Figure, Table, line
from mcrepar.workbench.app.controls import Choice, FieldError, Number, Switch
from mcrepar.workbench.app.estimate_distribution import MEASURES, NormalPair, draws_grid
from mcrepar.workbench.app.view import View

_SIZES = ("size1", "size2", "size3", "size4")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up")
_MEASURES = {
    "variance": "sample variance",
    "std": "standard deviation",
    "error": "mean absolute error",
}
_ENTROPIES = {"exact": "exact", "mc": "sampled"}
_POINTS = 30
NETWORK_PRESETS = {name: f"{name}: {row.summary}" for name, row in MODELS.items()}
_PRESETS = {"Weights": {f"10^{k}": f"10^{k} weights" for k in range(2, 10)}, "Networks": NETWORK_PRESETS}


@dataclass(frozen=True)
class _Curve:
    """The simulated errors of one size of model, and what theory expects."""

    label: str
    weights: int
    draws: list[int]
    measured: list[float]
    expected: list[float]
    relative: list[float]
    gradient: list[float]


def _weights(value: int | str) -> int:
    if isinstance(value, str):
        from mcrepar.workbench.app.memory_budget import random_weights

        return random_weights(value)
    return value


def power_of_ten(value: int) -> str:
    """A size for people: 10⁸ where it is a power of ten, else with commas.

    >>> power_of_ten(10**8), power_of_ten(2174912), power_of_ten(100)
    ('10⁸', '2,174,912', '100')
    """
    exponent = round(math.log10(value))
    if value == 10**exponent and exponent > 3:
        return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(exponent))
    return f"{value:,}"


def nats(value: float) -> str:
    """A KL for people: whole numbers with commas, small ones with five digits."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.5g}"


def _compute(values: Mapping[str, Any]) -> Answer:
    sizes = [values[name] for name in _SIZES if values[name] is not None]
    if not sizes:
        raise FieldError("Type at least one size of a model.", _SIZES[0])
    pair = NormalPair(math.sqrt(values["variance"]), values["distance"], math.sqrt(values["prior_variance"]))
    curves = [_curve(pair, size, values, place) for place, size in enumerate(sizes)]
    largest = max(curves, key=lambda curve: curve.weights)
    return Answer(
        _headline(pair, largest, values),
        notes=_notes(pair, largest),
        figures=_figures(pair, curves, values),
        tables=[_sizes_table(pair, curves, values), _curves_table(curves, values)],
        code=_code(values),
    )


def _curve(pair: NormalPair, size: int | str, values: Mapping[str, Any], place: int) -> _Curve:
    rng = np.random.default_rng([values["seed"], place])  # one of its own, so that the others stay when one is added
    weights, simulations = _weights(size), values["simulations"]
    draws = draws_grid(values["iterations"], _POINTS)
    errors = [pair.errors(weights, m, simulations, rng, values["entropy"]) for m in draws]
    gradients = [pair.gradient_errors(m, simulations, rng)[1] for m in draws]
    measure, spread = MEASURES[values["measure"]], MEASURES["std"].of_sample
    kl = pair.kl(weights)
    return _Curve(
        f"{power_of_ten(weights)} weights" if size == weights else f"{size}, {power_of_ten(weights)}",
        weights,
        draws,
        [measure.of_sample(e) for e in errors],
        [measure.expected(pair.std(weights, m, values["entropy"])) for m in draws],
        [spread(e) / kl if kl > 0 else math.nan for e in errors],
        [spread(g) for g in gradients],
    )


def _headline(pair: NormalPair, curve: _Curve, values: Mapping[str, Any]) -> str:
    draws = values["iterations"]
    std, kl = pair.std(curve.weights, draws, values["entropy"]), pair.kl(curve.weights)
    share = f" ({100 * std / kl:.2g} % of it)" if kl > 0 else ""
    return (
        f"{curve.label}, M = {draws:,}: the KL is {nats(kl)} nats and an estimate of it is off by about "
        f"±{std:.3g}{share}. The gradient of a weight is as noisy as in the smallest model."
    )


def _notes(pair: NormalPair, curve: _Curve) -> list[str]:
    exact, sampled = (pair.draws_for(curve.weights, 1.0, entropy) for entropy in ("exact", "mc"))
    needs = (
        f"To know the KL of {curve.label} to ±1 nat takes {_whole(exact)} with exact entropy, "
        f"{_whole(sampled)} where log q is sampled too. Most uses need neither: what trains is the gradient."
    )
    if pair.std(1, 1, "mc") > pair.std(1, 1):
        other = (
            "A smaller posterior variance makes the estimate better with exact entropy, and not with sampled entropy."
        )
    else:
        other = "Here sampled entropy gives the better value: the noise of log q and of log p cancels."
    return [needs, other]


def _whole(draws: float) -> str:
    if draws <= 1:
        return "one iteration"
    return f"{math.ceil(draws):,} iterations" if draws < 1e15 else f"{draws:.2g} iterations"


def _figures(pair: NormalPair, curves: Sequence[_Curve], values: Mapping[str, Any]) -> list[Figure]:
    log, top = values["log"], values["iterations"]
    name = _MEASURES[values["measure"]]
    unit = "nats²" if values["measure"] == "variance" else "nats"
    ends = "; ".join(f"{c.label}: {c.measured[-1]:.3g}" for c in curves)
    gradient = [pair.gradient_std(m)[1] for m in curves[0].draws]
    axis = "number M of Monte Carlo iterations"
    return [
        Figure("absolute-error", f"Absolute error: {name} of the estimate",
               f"The {name} falls with M and grows with the number of weights. At M = {top:,}: {ends}.",
               [t for k, c in enumerate(curves) for t in _traces(c, k, c.measured, c.expected)],
               axis, f"{name}, {unit}", log, log),
        Figure("relative-error", "Relative error: standard deviation / KL",
               "The larger the model, the smaller the relative error. "
               f"At M = {top:,}: " + "; ".join(f"{c.label}: {c.relative[-1]:.3g}" for c in curves) + ".",
               [t for k, c in enumerate(curves) for t in _traces(c, k, c.relative, None)],
               axis, "standard deviation / KL", log, log),
        Figure("gradient-noise", "Gradient noise of one weight",
               f"The lines lie on each other: at M = {top:,} all are near {gradient[-1]:.3g}, for every size.",
               [t for k, c in enumerate(curves) for t in _traces(c, k, c.gradient, gradient if not k else None)],
               axis, "standard deviation of ∂KL/∂scale", log, log),
    ]  # fmt: skip


def _traces(curve: _Curve, place: int, y: list[float], expected: list[float] | None) -> list[dict[str, Any]]:
    colour = f"@series{place + 1}"
    traces = [line(curve.label, curve.draws, y, colour, symbol=_SYMBOLS[place])]
    if expected is not None:
        traces.append(line("theory", curve.draws, expected, colour, dash="dot", mode="lines", showlegend=False,
                           hoverinfo="skip"))  # fmt: skip
    return traces


def _sizes_table(pair: NormalPair, curves: Sequence[_Curve], values: Mapping[str, Any]) -> Table:
    draws = values["iterations"]
    loc, scale = pair.gradient_std(draws)
    header = ("model", "weights", "KL, closed form", "std, exact entropy", "std, sampled entropy",
              f"{_MEASURES[values['measure']]}, simulated", "relative error, simulated",
              "std of ∂KL/∂loc", "std of ∂KL/∂scale", "M for ±1 nat, exact", "M for ±1 nat, sampled")  # fmt: skip
    rows: list[tuple[Cell, ...]] = [
        (c.label, c.weights, pair.kl(c.weights), pair.std(c.weights, draws), pair.std(c.weights, draws, "mc"),
         c.measured[-1], c.relative[-1], loc, scale,
         *(max(1, math.ceil(pair.draws_for(c.weights, 1.0, entropy))) for entropy in ("exact", "mc")))
        for c in curves
    ]  # fmt: skip
    return Table("models", f"The models at M = {draws:,}", header, rows)


def _curves_table(curves: Sequence[_Curve], values: Mapping[str, Any]) -> Table:
    name = _MEASURES[values["measure"]]
    header = ("model", "weights", "M", f"{name}, simulated", f"{name}, theory", "relative error", "gradient noise")
    rows = [
        (c.label, c.weights, *numbers)
        for c in curves
        for numbers in zip(c.draws, c.measured, c.expected, c.relative, c.gradient, strict=True)
    ]
    return Table("curves", f"Every point of the curves, from {values['simulations']:,} simulations each", header, rows)


def _code(values: Mapping[str, Any]) -> str:
    scale, prior_scale = math.sqrt(values["variance"]), math.sqrt(values["prior_variance"])
    weights = _weights(next(values[name] for name in _SIZES if values[name] is not None))
    return (
        "import numpy as np\n"
        "from mcrepar.workbench.app.estimate_distribution import NormalPair\n\n"
        f"pair = NormalPair(scale={scale:.6g}, distance={values['distance']:g}, prior_scale={prior_scale:.6g})\n"
        f"errors = pair.errors({weights}, {values['iterations']}, {values['simulations']}, "
        f"np.random.default_rng(), entropy={values['entropy']!r})\n"
        "errors.var(ddof=1)"
    )


def _size(name: str, label: str, default: str, hint: str = "") -> Number:
    return Number(name, label, default, hint, least=1, most=1e9, whole=True, blank=True, words=tuple(MODELS),
                  presets=_PRESETS)  # fmt: skip


QUALITY = View(
    "quality",
    "Quality",
    "How many Monte Carlo iterations does a KL estimate need?",
    (
        "A Bayesian neural network is trained with KL(posterior ‖ prior), often estimated from M random draws. "
        "Posterior and prior are Normal here, so the right value is known, and every estimate can be compared with it.",
        "The absolute error grows with the size of the model, like √(weights / M). The relative error falls with it, "
        "and the noise of a weight's gradient, which is what training feels, does not know the size at all.",
    ),
    (
        Number("iterations", "Monte Carlo iterations, up to", "1000", least=1, most=1e6, whole=True),
        Number("variance", "Variance of the posterior", "1e-4", least=1e-12, most=1e6),
        _size("size1", "First model", "10^2"),
        _size("size2", "Second model", "10^4"),
        _size("size3", "Third model", "10^6"),
        _size("size4", "Fourth model", "10^8", "Weights, up to 10^9, or a network such as VGG-19; may be empty."),
        Number("simulations", "Simulations per point", "100", least=2, most=1000, whole=True),
        Choice("entropy", "Entropy term", "exact", "Sampled: log q is estimated from draws too.", choices=_ENTROPIES),
        Choice("measure", "Absolute error as", "variance", "The paper shows the sample variance.", choices=_MEASURES),
        Switch("log", "Logarithmic axes", "true"),
    ),
    _compute,
    group="The paper",
    more=(
        Number("distance", "Distance of the two means", "0", least=-1000, most=1000),
        Number("prior_variance", "Variance of the prior", "1", least=1e-12, most=1e6),
        Number("seed", "Seed of the simulations", "0", least=0, most=2**31 - 1, whole=True),
    ),
    stored=lambda: {
        "iterations": ("1000", "10", "100", "10^4", "10^6"),
        "variance": ("1e-4", "1e-6", "1e-2", "1"),
        "entropy": tuple(_ENTROPIES),
        "log": ("true", "false"),
    },
)  # fmt: skip
