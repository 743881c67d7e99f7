"""The figure of the README, from benchmarks/results/kl.json: python benchmarks/kl_figure.py redraws it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

HERE = Path(__file__).parent
# Colours of Okabe and Ito; every line has a marker of its own and its name beside it.
STYLE = {
    "direct": ("#D55E00", "o"),
    "repar": ("#0072B2", "s"),
    "stream": ("#CC79A7", "D"),
    "stats": ("#009E73", "^"),
    "exact": ("#000000", "v"),
}
PANELS = (("seconds", "seconds, value and backward", 1.0), ("bytes", "MB kept for the backward", 1e-6))

SPACE = 12  # points between two names


def draw(curves: dict[str, Any], folder: Path) -> None:
    """Time and memory against M, two panels, as kl.png and kl.svg in `folder`."""
    figure = Figure(figsize=(8.6, 3.7), layout="constrained")
    for axes, (key, title, unit) in zip(figure.subplots(1, 2), PANELS, strict=True):
        ends = _lines(axes, curves["points"], key, unit)
        axes.set(xscale="log", xlabel="number M of Monte Carlo draws", title=title)
        top = 3 * max(y for _, y in ends.values())
        if key == "bytes":
            axes.set_yscale("symlog", linthresh=1)  # so that nothing at all has a place, at 0
            axes.set_ylim(-0.2, top)
            _end_of_direct(axes, curves)
        else:
            axes.set_yscale("log")
            axes.set_ylim(top=top)
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.set_xlim(right=2e7)  # room for the names
        axes.grid(color="0.9", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        _names(axes, ends)
    figure.suptitle(f"KL(radial || normal) of {curves['weights']:,} weights", fontsize=11)
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"kl.{suffix}", dpi=180, metadata={"Date": None} if suffix == "svg" else None)


def _end_of_direct(axes: Axes, curves: dict[str, Any]) -> None:
    """What the next point of `direct` would need."""
    (before, after) = curves["points"]["direct"][-2:]
    per_draw = (after["bytes"] - before["bytes"]) / (after["M"] - before["M"])
    text = f"M = {10 * before['M']:,} would keep {per_draw * 10 * before['M'] / 1e9:.1f} GB"
    end = after["M"], after["bytes"] * 1e-6
    axes.annotate(text, end, (7, -12), textcoords="offset points", fontsize=8, color="0.35", va="center")


def _lines(
    axes: Axes, points: dict[str, list[dict[str, float]]], key: str, unit: float
) -> dict[str, tuple[float, float]]:
    """Draw the lines; their right ends by method."""
    ends = {}
    for method, (colour, marker) in STYLE.items():
        x = [point["M"] for point in points[method]]
        y = [point[key] * unit for point in points[method]]
        axes.plot(x, y, color=colour, marker=marker, markersize=4.5, linewidth=1.6, clip_on=False)
        ends[method] = (x[-1], y[-1])
    return ends


def _names(axes: Axes, ends: dict[str, tuple[float, float]]) -> None:
    """The name of every line at its end: right of it, or above and below it where another line goes on from there."""
    axes.figure.draw_without_rendering()  # so that the scales are final
    height = {m: axes.transData.transform(end)[1] * 72 / axes.figure.dpi for m, end in ends.items()}  # points
    covered = [
        m for m, (x, _) in ends.items() if any(ends[o][0] > x and abs(height[o] - height[m]) < SPACE for o in ends)
    ]
    for method in covered:
        above = height[method] == max(height[m] for m in covered)
        _name(axes, method, ends[method], (0, 9 if above else -9), "center")
    floor = {}  # of the next name, for every place at which lines end
    for method in sorted(set(ends) - set(covered), key=height.__getitem__):
        x = ends[method][0]
        at = max(height[method], floor.get(x, height[method]))
        floor[x] = at + SPACE
        _name(axes, method, ends[method], (7, at - height[method]), "left")


def _name(axes: Axes, method: str, end: tuple[float, float], offset: tuple[float, float], ha: str) -> None:
    text = axes.annotate(method, end, offset, textcoords="offset points", color=STYLE[method][0], ha=ha, va="center")
    text.set_path_effects([withStroke(linewidth=3, foreground="white")])


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    found = json.loads((HERE / "results" / "kl.json").read_text())
    draw(found["curves"], HERE.parent / "docs" / "figures")


if __name__ == "__main__":
    main()
