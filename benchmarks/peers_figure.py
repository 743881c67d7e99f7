"""The figure of the peers, from benchmarks/results/peers.json: python benchmarks/peers_figure.py redraws it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

HERE = Path(__file__).parent
# Colours of Okabe and Ito for our methods and what they replace; the peers' are Tol's and dashed; all markers differ.
STYLE = {
    "exact": ("#000000", "v"),
    "stats": ("#009E73", "^"),
    "repar": ("#0072B2", "s"),
    "taylor": ("#44AA99", "1"),
    "regen": ("#AA4499", "d"),
    "quad": ("#666666", "2"),
    "stream": ("#CC79A7", "D"),
    "direct": ("#D55E00", "o"),
    "per-draw loop": ("#E69F00", "P"),
    "gradient accumulation": ("#56B4E9", "X"),
    "bayesian-torch": ("#882255", "<"),
    "blitz": ("#999933", ">"),
    "torchbayesian": ("#332288", "h"),
    "torch_blue": ("#888888", "*"),
}
PEERS = ("bayesian-torch", "blitz", "torchbayesian", "torch_blue")
PANELS = (("seconds", "seconds of a training step", 1.0), ("peak_bytes", "GB at the peak of a step", 1e-9))


def draw(found: dict[str, Any], folder: Path) -> None:
    """Time and memory against M, all methods and peers, as peers.png in `folder`."""
    steps = {name: found["steps"][name] for name in STYLE if found["steps"].get(name, {}).get("points")}
    ends = [point["M"] for step in steps.values() for point in step["points"]]
    figure = Figure(figsize=(9.4, 5.0), layout="constrained")
    for axes, (key, title, unit) in zip(figure.subplots(1, 2), PANELS, strict=True):
        for name, step in steps.items():
            _line(axes, name, step, key, unit, max(ends))
        axes.set(xscale="log", yscale="log", xlabel="number M of Monte Carlo draws", title=title)
        limit = found["most seconds"] if key == "seconds" else found["settings"]["budget"] * unit
        if any(point["extrapolated"] for step in steps.values() for point in step["points"]):
            axes.axhline(limit, color="0.8", linewidth=1, zorder=0)
            name = f"{limit:.0f} s: ends" if key == "seconds" else f"{limit:.1f} GB: ends"
            where = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "ha": "right"}
            axes.annotate(name, (1, limit), (0, 3), color="0.5", fontsize=8, **where)
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.grid(color="0.93", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(_title(found), fontsize=10)
    figure.legend(handles=_keys(steps), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(folder / "peers.png", dpi=180)


def _line(axes: Axes, name: str, step: dict[str, Any], key: str, unit: float, end: int) -> None:
    """Full markers where it was measured, hollow ones where it was not."""
    colour, marker = STYLE[name]
    points = step["points"]
    if not step["has M"]:
        axes.plot([points[0]["M"], end], [points[0][key] * unit] * 2, color=colour, linewidth=1.6)
    solid = [point for point in points if not point["extrapolated"]]
    hollow = [point for point in points if point["extrapolated"]]
    options: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5.5, "linewidth": 1.5}
    options["linestyle"] = _dash(name)
    axes.plot([p["M"] for p in solid], [p[key] * unit for p in solid], **options)
    joined = solid[-1:] + hollow
    axes.plot([p["M"] for p in joined], [p[key] * unit for p in joined], color=colour, linewidth=1, linestyle=":")
    axes.plot([p["M"] for p in hollow], [p[key] * unit for p in hollow], **{**options, "linestyle": ""}, mfc="white")


def _dash(name: str) -> str:
    return "--" if name in PEERS else "-"


def _keys(steps: dict[str, Any]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=STYLE[name][0], marker=STYLE[name][1], linestyle=_dash(name), label=name) for name in steps
    ]
    hollow = Line2D([], [], color="0.3", marker="o", mfc="white", linestyle=":", label="hollow: extrapolated")
    return [*handles, hollow]


def _title(found: dict[str, Any]) -> str:
    head = f"One training step of PreActResNet-18, batch {found['settings']['batch']}, normal posterior and prior"
    if found["quick"]:
        head = "A smoke test on a small network: these numbers mean nothing"
    closed = {name: step["points"] for name, step in found["steps"].items() if "closed form" in name}
    told = [f"{name.partition(',')[0]} {p[0]['seconds']:.2f} s" for name, p in closed.items() if p]
    return head + (f"\npeers' closed form of this pair, which has no M: {', '.join(told)}" if told else "")


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    draw(json.loads((HERE / "results" / "peers.json").read_text()), HERE.parent / "docs" / "figures")


if __name__ == "__main__":
    main()
