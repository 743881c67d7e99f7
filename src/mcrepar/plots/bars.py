"""Bars and clouds: confidence against accuracy, uncertainty in and out of distribution, predicted against true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from mcrepar.errors import ParameterError
from mcrepar.plots.style import coloured, dressed, framed, legend, light, line, panel, percent, thinned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 30
FEW = 10  # data of a bin, below which its accuracy says little


def reliability_diagram(
    lower: ArrayLike, upper: ArrayLike, confidence: ArrayLike, accuracy: ArrayLike, count: ArrayLike
) -> Figure:
    """Accuracy against confidence, bin by bin, above the shares of the data; bins of fewer than 10 examples are pale.

    Args:
        lower: where each bin begins.
        upper: where it ends.
        confidence: the mean confidence in the bin.
        accuracy: the share of right answers in it.
        count: how many data it holds.

    >>> figure = reliability_diagram([0.5, 0.75], [0.75, 1.0], [0.6, 0.9], [0.5, 0.95], [10, 90])
    """
    low, high, confidence, accuracy, size = line(
        "reliability_diagram", lower=lower, upper=upper, confidence=confidence, accuracy=accuracy, count=count
    )
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 3.9))
    framed(figure, hspace=0.12)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    dressed(top, "", "share that is right", "Confidence and accuracy")
    dressed(bottom, "confidence: the largest mean probability", "share of data")
    width = high - low
    centre = (low + high) / 2
    for many, strength, name in ((size >= FEW, 0.8, "accuracy"), (size < FEW, 0.28, "few examples")):
        if many.any():
            top.bar(centre[many], accuracy[many], 0.94 * width[many], color=light("blue"), alpha=strength, label=name)
    top.hlines(confidence, low, high, color=light("orange"), linewidth=2.4, label="confidence")
    top.plot([0, 1], [0, 1], color=light("muted"), linewidth=1.2, linestyle="--")
    bottom.bar(centre, size / size.sum(), 0.94 * width, color=light("muted"), alpha=0.6)
    top.set_xlim(max(0.0, float(low.min()) - 0.02), 1.0)
    top.set_ylim(0, 1.26)  # room for the names
    top.set_yticks(np.linspace(0, 1, 6))
    for axis in (bottom.xaxis, top.yaxis, bottom.yaxis):
        percent(axis)
    legend(top, loc="upper left", ncols=3, columnspacing=1.2, handlelength=1.6)
    return figure


def histograms(series: Mapping[str, ArrayLike], title: str, x: str) -> Figure:
    """How a quantity is spread over several sets of data, in common bins, as shares of each set.

    Args:
        series: the values by the name of the set, (data,) each; NaN is left out.
        title: of the figure.
        x: what the quantity is.

    >>> figure = histograms({"test": [0.1, 0.2], "out-of-distribution": [0.8, 0.9, 1.0]}, "Entropy", "nats")
    """
    values = {name: np.asarray(v, np.float64).ravel() for name, v in series.items()}
    values = {name: v[np.isfinite(v)] for name, v in values.items()}
    if not values or not all(map(len, values.values())):
        raise ParameterError("histograms(series)", "a set holds no number", "at least one number for each set")
    from matplotlib.ticker import MaxNLocator

    low, high = min(v.min() for v in values.values()), max(v.max() for v in values.values())
    start = 0.0 if 0 <= low < 0.2 * high else low
    edges = np.linspace(start, high if high > start else start + 1.0, BINS + 1)
    figure, axes = panel(title, x, "share of the set")
    top = 0.0
    for (name, colour), v in zip(coloured(list(values)), values.values(), strict=True):
        shares = np.histogram(v, edges)[0] / len(v)
        axes.stairs(shares, edges, fill=True, color=colour, alpha=0.22, linewidth=0)
        axes.stairs(shares, edges, color=colour, linewidth=1.6, label=f"{name}, {len(v):,}")
        top = max(top, float(shares.max()))
    axes.set_xlim(edges[0], edges[-1])
    if top > 0.25:  # most of a well known set has no uncertainty at all: show the rest too
        axes.set_yscale("function", functions=(np.sqrt, np.square))
        axes.set_ylabel("share of the set, root scale")
        axes.set_yticks([t for t in (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0) if t <= 1.1 * top])
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.set_ylim(0, 1.08 * top)
    percent(axes.yaxis)
    if len(values) == 1:
        axes.text(0.98, 0.95, f"{next(iter(values))}, {len(v):,}", transform=axes.transAxes, ha="right", va="top",
                  fontsize=8.5, color=light("ink"))  # fmt: skip
    legend(axes)
    return figure


def predicted_against_true(y: ArrayLike, mean: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> Figure:
    """Predictions with their intervals, against the true values; at most 400 of them.

    Args:
        y: true, (data,).
        mean: predicted.
        lower: where the interval begins.
        upper: where it ends.

    >>> figure = predicted_against_true([0.0, 1.0], [0.1, 0.8], [-0.5, 0.2], [0.6, 1.4])
    """
    true, guess, low, high = line("predicted_against_true", y=y, mean=mean, lower=lower, upper=upper)
    true, guess, low, high = thinned(*(column[np.argsort(true, kind="stable")] for column in (true, guess, low, high)))
    inside = (low <= true) & (true <= high)
    figure, axes = panel("Predicted and true", "true value", "predicted value, 90 % interval", (4.5, 3.8))
    for mask, colour, name in ((inside, "blue", "true value inside"), (~inside, "orange", "outside")):
        axes.vlines(true[mask], low[mask], high[mask], color=light(colour), alpha=0.35, linewidth=1.0)
        axes.plot(true[mask], guess[mask], "o", color=light(colour), markersize=2.8, alpha=0.9, label=name)
    ends = [float(true.min()), float(true.max())]
    axes.plot(ends, ends, color=light("muted"), linewidth=1.2, linestyle="--", label="perfect")
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top + 0.14 * (top - bottom))  # room for the names
    legend(axes, loc="upper left", ncols=3, columnspacing=1.0, handletextpad=0.4)
    return figure
