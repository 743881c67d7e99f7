"""Segmentations: slices with outlines and uncertainty, calibration of structures, and what abstaining leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcrepar.errors import ParameterError
from mcrepar.plots.style import coloured, legend, light, line, panel, percent, plain, thinned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = ("true structures", "segmentation", "wrong voxels", "entropy, nats", "mutual information, nats")


def overlay(
    image: ArrayLike,
    truth: ArrayLike,
    label: ArrayLike,
    entropy: ArrayLike,
    mutual_information: ArrayLike,
    classes: Sequence[str],
    title: str,
) -> Figure:
    """A slice five times: with true structures, segmentation, wrong voxels, entropy and mutual information.

    Args:
        image: grey values, (H, W).
        truth: the right classes, (H, W).
        label: the predicted ones.
        entropy: of each voxel, in nats.
        mutual_information: the part of it that is uncertainty about the weights.
        classes: their names, the background first.
        title: of the figure.

    >>> zeros = np.zeros((4, 6))
    >>> figure = overlay(zeros, zeros, zeros, zeros, zeros, ("background", "organ"), "an image")
    """
    parts = [np.asarray(part) for part in (image, truth, label, entropy, mutual_information)]
    shapes = {part.shape for part in parts}
    if len(shapes) > 1 or parts[0].ndim != 2:
        found = ", ".join(str(part.shape) for part in parts)
        raise ParameterError("overlay(image, truth, ...)", f"the shapes are {found}", "slices of one shape (H, W)")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    grey, y, predicted, *doubts = parts
    height = 10.4 / len(TITLES) * min(1.6, max(0.5, grey.shape[0] / grey.shape[1])) + 0.85
    figure = Figure(figsize=(10.4, height))
    figure.subplots_adjust(0.005, 0.3 / height, 0.995, 1 - 0.55 / height, 0.03)
    figure.suptitle(plain(title), x=0.005, ha="left", fontsize=10.5, fontweight="bold", color=light("ink"))
    tints = coloured(list(classes)[1:])
    for k, (axes, name) in enumerate(zip(figure.subplots(1, len(TITLES)), TITLES, strict=True)):
        axes.set_axis_off()
        axes.set_title(name, fontsize=9, color=light("muted"), loc="left")
        axes.imshow(grey, cmap="gray", interpolation="nearest")
        if k < 2:
            for c, (_, tint) in enumerate(tints, start=1):
                mask = (y if k == 0 else predicted) == c
                if mask.any() and not mask.all():
                    axes.contour(mask, levels=[0.5], colors=[tint], linewidths=1.4)
        elif k == 2:
            axes.imshow(_tinted(predicted != y, light("red")), interpolation="nearest")
        else:
            _heat(figure, axes, doubts[k - 3])
    handles = [Line2D([], [], color=tint, label=name) for name, tint in tints]
    figure.legend(handles=handles, loc="lower left", ncols=max(1, len(handles)), fontsize=8.5, frameon=False,
                  labelcolor=light("ink"), bbox_to_anchor=(0, 0))  # fmt: skip
    return figure


def _tinted(mask: NDArray[np.bool_], colour: str) -> NDArray[np.float64]:
    from matplotlib.colors import to_rgb

    return np.concatenate([np.broadcast_to(to_rgb(colour), (*mask.shape, 3)), 0.9 * mask[..., None]], 2)


def _heat(figure: Figure, axes: Any, values: NDArray[Any]) -> None:
    """Uncertainty over a slice: transparent where there is none, with its scale below."""
    most = max(float(values.max()), 1e-12)
    shares = np.clip(values / most, 0, 1)
    drawn = axes.imshow(values, cmap="inferno", vmin=0, vmax=most, alpha=0.25 + 0.75 * shares, interpolation="nearest")
    place = axes.inset_axes((0.45, -0.09, 0.45, 0.035))
    drawn.set_array(values)
    bar = figure.colorbar(drawn, cax=place, orientation="horizontal", ticks=[0, most])
    if bar.solids is not None:
        bar.solids.set_alpha(1)
    bar.outline.set_visible(False)
    place.tick_params(labelsize=7.5, labelcolor=light("muted"), length=0)
    place.set_xticklabels(["0", f"{most:.2g}"])


def structure_calibration(lines: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> Figure:
    """How often voxels belong to a structure, against its probability.

    Args:
        lines: by structure, probability and frequency, bin by bin.

    >>> figure = structure_calibration({"organ": ([0.1, 0.9], [0.2, 0.8])})
    """
    figure, axes = panel(
        "Are the structures calibrated?", "probability of the structure", "share of voxels", (4.5, 3.8)
    )
    axes.plot([0, 1], [0, 1], color=light("muted"), linewidth=1.2, linestyle="--", label="calibrated")
    for (name, colour), (p, share) in zip(coloured(list(lines)), lines.values(), strict=True):
        if len(np.asarray(p)):
            x, v = line("structure_calibration", probability=p, frequency=share)
            axes.plot(x, v, color=colour, linewidth=1.8, marker="o", markersize=3.5, label=name)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    for axis in (axes.xaxis, axes.yaxis):
        percent(axis)
    legend(axes, loc="upper left")
    return figure


def abstention_curve(coverage: ArrayLike, series: Mapping[str, ArrayLike]) -> Figure:
    """Dice of structures among the voxels that are kept, most certain first.

    Args:
        coverage: rising shares of the voxels, (n,).
        series: Dice by structure, (n,) each; NaN where no voxel of it is kept.

    >>> figure = abstention_curve([0.5, 1.0], {"organ": [0.9, 0.8]})
    """
    if not series:
        raise ParameterError("abstention_curve(series={})", "there is no line to draw", "at least one structure")
    figure, axes = panel("Dice among the most certain voxels", "share of voxels kept, most certain first", "Dice")
    for (name, colour), values in zip(coloured(list(series)), series.values(), strict=True):
        c, v = thinned(*line("abstention_curve", coverage=coverage, **{name: values}))
        axes.plot(c, v, color=colour, linewidth=1.9, label=name)
    axes.set_xlim(0, 1.005)
    axes.set_ylim(0, 1.02)
    percent(axes.xaxis)
    legend(axes, loc="lower left")
    return figure
