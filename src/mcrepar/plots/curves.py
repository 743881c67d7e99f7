"""Lines: training, accuracy and size against a threshold, risk against coverage, coverage against its promise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from mcrepar.errors import ParameterError
from mcrepar.plots.style import coloured, legend, light, line, panel, percent, thinned

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def training_curve(epoch: ArrayLike, series: Mapping[str, ArrayLike], title: str, y: str) -> Figure:
    """A quantity against the epoch, one line for each name; missing values (NaN) leave a gap.

    Args:
        epoch: (epochs,).
        series: the values by name, (epochs,) each.
        title: of the figure.
        y: what the values are.

    >>> figure = training_curve([1, 2, 3], {"train": [3.0, 2.0, 1.0]}, "Loss", "nats")
    """
    if not series:
        raise ParameterError("training_curve(series={})", "there is no line to draw", "at least one series")
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    figure, axes = panel(title, "epoch", y)
    for (name, colour), values in zip(coloured(list(series)), series.values(), strict=True):
        x, v = line("training_curve", epoch=epoch, **{name: values})
        finite = np.isfinite(v)
        x, v = thinned(x[finite], v[finite]) if finite.any() else (x[:0], v[:0])
        marker = "o" if len(x) < 16 else ""
        axes.plot(x, v, color=colour, linewidth=1.8, marker=marker, markersize=3.5, label=name)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    legend(axes)
    return figure


def threshold_curve(
    tau: ArrayLike,
    value: ArrayLike,
    title: str,
    y: str,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    colour: str = "blue",
    floor: float | None = None,
) -> Figure:
    """A share against the threshold tau of the confidence, constant between the confidences that occur.

    Args:
        tau: rising thresholds, (n,).
        value: the share for each; NaN where there is none.
        title: of the figure.
        y: what the share is.
        low: where a band around it begins.
        high: where it ends.
        colour: of the line, a name of `COLOURS`.
        floor: where the y axis begins; None fits it to the values, so that shares near 1 can be distinguished.

    >>> figure = threshold_curve([0.5, 0.9, 1.0], [0.9, 0.95, 1.0], "Accuracy", "right")
    """
    x, v, lower, upper = line(
        "threshold_curve", tau=tau, value=value, low=value if low is None else low, high=value if high is None else high
    )
    figure, axes = panel(title, "least share of draws that agree", y)
    start = min(0.5, float(x[0]))  # below the least confidence all data are in the set
    x, v, lower, upper = (np.append(first, column) for first, column in
                          ((start, x), (v[0], v), (lower[0], lower), (upper[0], upper)))  # fmt: skip
    axes.fill_between(x, lower, upper, step="pre", color=light(colour), alpha=0.18, linewidth=0)
    axes.plot(x, v, drawstyle="steps-pre", color=light(colour), linewidth=1.9)
    axes.plot(x[-1], v[-1], "o", color=light(colour), markersize=4)
    axes.set_xlim(start, 1.005)
    fitted = floor is None and bool(np.isfinite(v).any())
    least, most = (float(np.nanmin(lower)), float(np.nanmax(upper))) if fitted else (0.0, 1.0)
    space = max(0.12 * (most - least), 0.005)
    bottom, top = max(0.0, least - space) if floor is None else floor, min(1.0, most + space)
    axes.set_ylim(bottom, top + 0.04 * (top - bottom))
    percent(axes.xaxis)
    percent(axes.yaxis)
    return figure


def risk_coverage(coverage: ArrayLike, risk: ArrayLike, allowed: float = 0.05, things: str = "examples") -> Figure:
    """The error rate among the most confident examples, against their share of all; beside it the best order possible.

    Args:
        coverage: rising shares of the data, (n,).
        risk: the error rate among them.
        allowed: an error rate to mark.
        things: what is answered.

    >>> figure = risk_coverage([0.5, 1.0], [0.0, 0.25])
    """
    c, r = line("risk_coverage", coverage=coverage, risk=risk)
    error = float(r[-1])
    best = np.maximum(0.0, 1 - (1 - error) / c)  # all right answers come first
    c, r, best = thinned(c, r, best)
    figure, axes = panel(
        f"Errors among the most confident {things}", f"share of {things} answered, most confident first", "error rate"
    )
    axes.fill_between(c, best, r, color=light("blue"), alpha=0.10, linewidth=0)
    axes.plot(c, r, color=light("blue"), linewidth=1.9, label="this model")
    axes.plot(c, best, color=light("muted"), linewidth=1.2, linestyle="--", label="perfect order")
    top = max(float(r.max()), 0.01)
    if allowed < 1.3 * top:
        axes.axhline(allowed, color=light("orange"), linewidth=1.1, linestyle=":", label=f"{100 * allowed:g} % errors")
        top = max(top, allowed)
    axes.set_xlim(0, 1.005)
    axes.set_ylim(0, 1.12 * top)
    percent(axes.xaxis)
    percent(axes.yaxis)
    legend(axes, loc="upper left")
    return figure


def interval_calibration(level: ArrayLike, coverage: ArrayLike) -> Figure:
    """The share of true values inside the intervals, against their nominal share.

    Args:
        level: of the intervals, (n,).
        coverage: the share of true values inside.

    >>> figure = interval_calibration([0.5, 0.9], [0.45, 0.88])
    """
    x, v = line("interval_calibration", level=level, coverage=coverage)
    figure, axes = panel("Are the intervals calibrated?", "nominal share inside", "share inside", (4.5, 3.8))
    axes.plot([0, 1], [0, 1], color=light("muted"), linewidth=1.2, linestyle="--", label="calibrated")
    axes.plot(x, v, color=light("blue"), linewidth=1.9, marker="o", markersize=3.5, label="this model")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    for axis in (axes.xaxis, axes.yaxis):
        percent(axis)
    legend(axes, loc="upper left")
    return figure


def uncertainty_per_example(aleatoric: ArrayLike, epistemic: ArrayLike, y: str) -> Figure:
    """The two kinds of uncertainty of every example, one on top of the other, from the most certain example on.

    Args:
        aleatoric: what stays if the weights were known, (examples,).
        epistemic: what knowing the weights would remove.
        y: what they are.

    >>> figure = uncertainty_per_example([0.1, 0.4], [0.3, 0.0], "entropy, nats")
    """
    noise, weights = line("uncertainty_per_example", aleatoric=aleatoric, epistemic=epistemic)
    order = np.argsort(noise + weights, kind="stable")
    rank, noise, weights = thinned((np.arange(len(noise)) + 0.5) / len(noise), noise[order], weights[order])
    figure, axes = panel("Uncertainty of every example", "share of examples, most certain first", y)
    for low, high, colour, name in (
        (np.zeros_like(noise), noise, "orange", "aleatoric: the data"),
        (noise, noise + weights, "blue", "epistemic: the weights"),
    ):
        axes.fill_between(rank, low, high, step="mid", color=light(colour), alpha=0.5, linewidth=0, label=name)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.08 * max(float((noise + weights).max()), 1e-12))
    percent(axes.xaxis)
    legend(axes, loc="upper left")
    return figure
