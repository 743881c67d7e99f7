"""The figure of quality.py, from benchmarks/results/quality: python benchmarks/quality_figure.py redraws it.

A row per task and a panel per score: a dot per seed of every method, and from three seeds on the 95 % interval of their
mean; the line is the deterministic network.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from quality_tables import COLUMNS, TITLES, by_method, mean_and_error

from mcrepar.plots import style

HERE = Path(__file__).parent
RESULTS, FIGURES = HERE / "results" / "quality", HERE.parent / "docs" / "figures"
BASE, ENOUGH = "deterministic", 3  # seeds for an interval
SCORES = {
    "NLL": COLUMNS["NLL"],
    "ECE": COLUMNS["ECE"],
    "OOD AUROC by entropy": COLUMNS["OOD, entropy"],
}


def draw(found: dict[str, Any], folder: Path) -> None:
    """All tasks, for light and dark pages, as quality.png in `folder`."""
    every = by_method(found)
    tasks = {task: {BASE: every[task][BASE], **every[task]} for task in TITLES if BASE in every.get(task, {})}
    figure = Figure(figsize=(10.0, 1.0 + 0.27 * sum(len(m) + 3 for m in tasks.values())), layout="constrained")
    heights = [len(methods) + 2 for methods in tasks.values()]
    grid = figure.subplots(len(tasks), len(SCORES), sharey="row", squeeze=False, height_ratios=heights)
    for row, (task, methods) in zip(grid, tasks.items(), strict=True):
        for axes, (title, score) in zip(row, SCORES.items(), strict=True):
            first = axes is row[0]
            style.dressed(axes, title, "", TITLES[task].partition(";")[0] if first else "")
            for k, (name, runs) in enumerate(methods.items()):
                values, colour = [score(run) for run in runs], style.light("muted" if name == BASE else "blue")
                axes.plot(values, [-k] * len(values), "o", color=colour, markersize=4, alpha=0.7)
                if len(values) >= ENOUGH:
                    mean, error = mean_and_error(values)
                    axes.errorbar(mean, -k, xerr=error, fmt="|", color=colour, markersize=9, capsize=3)
            axes.axvline(mean_and_error([score(run) for run in methods[BASE]])[0], color=style.light("muted"), zorder=0)
            labels = [f"{name} ({len(runs)})" for name, runs in methods.items()]
            axes.set_yticks([-k for k in range(len(methods))], labels)
            axes.set_ylim(0.6 - len(methods), 0.6)
    for suffix, dark in (("", False), ("-dark", True)):
        (folder / f"quality{suffix}.png").write_bytes(style.png(figure, 160, dark))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=FIGURES)
    given = parser.parse_args()
    draw({file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}, given.figures)


if __name__ == "__main__":
    main()
