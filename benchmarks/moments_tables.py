"""The tables of moments.py, predict.py and moments_training.py in Markdown, for readme.py."""

from __future__ import annotations

from typing import Any

MEMORY = 3.0  # times that of one pass, the goal


def moments_block(found: dict[str, Any]) -> list[str]:
    """The error of means and variances at the output, and the range over layers."""
    rows = []
    for network in found["networks"]:
        cells = []
        for kind in ("plain", "fitted"):
            layers = network[kind]
            ratios = [layer["variance"] for layer in layers]
            cells += [f"{layers[-1]['mean']:.2f}", f"{ratios[-1]:.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"]
        rows.append(f"| {network['name']} | {network['draws']:,} | {' | '.join(cells)} |")
    head = (
        "One pass of moments against draws: the error of means at the output in standard deviations of a draw (root "
        "mean square), the variance over that of the draws at the output, and its range over layers; without factors "
        "and with factors fitted to 128 draws on other inputs (`benchmarks/moments.py`):"
    )
    titles = "mean | variance | over layers | mean, fitted | variance, fitted | over layers, fitted"
    return [head, "", f"| network | draws | {titles} |", "|---|---|---|---|---|---|---|---|", *rows]


def predict_block(found: dict[str, Any]) -> list[str]:
    """What a prediction by moments costs."""
    rows = []
    for network in found["networks"]:
        for structure in ("mean-field", "rank-1"):
            row = network[structure]
            missed = "" if row["over deterministic"] <= row["goal"] else ": missed"
            low, high = row["quartiles"]
            large = "" if row["memory over deterministic"] <= MEMORY else ": missed"
            rows.append(
                f"| {network['network']}, batch {network['batch']} | {structure} "
                f"| **{row['over deterministic']:.1f}x** ({low:.1f} to {high:.1f}) "
                f"| {row['fastest over fastest']:.1f}x | {row['goal']:.0f}x{missed} "
                f"| {row['100 draws over it']:.0f} times | {row['memory over deterministic']:.1f}x{large} |"
            )
    head = (
        "`predict(bnn, x, draws='moments')` after `calibrate_moments` against one deterministic pass: CPU time of one "
        "thread, the median (and the quartiles) of the ratios within 30 rounds, and the ratio of the fastest passes of "
        "all rounds; 100 draws are 25 times a prediction with four:"
    )
    titles = (
        "| network | structure | over one pass | fastest | goal | 100 draws over it | memory over one pass (goal 3x) |"
    )
    return [head, "", titles, "|---|---|---|---|---|---|---|", *rows]


def training_block(found: dict[str, Any]) -> list[str]:
    """Training by draws and by moments: scores and the cost of a step."""
    runs = found["runs"]
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    by = {(run["task"], run["way"]): run["mean"] for run in runs}
    ways = list(dict.fromkeys(run["way"] for run in runs))
    rows = []
    for way in ways:
        cells = []
        for task in tasks:
            mean = by.get((task, way))
            if mean is None:
                cells.append("not measured")
                continue
            score = f"{mean['nll, 100']:.3f}" if "nll, 100" in mean else f"{mean['log_likelihood, 100']:.2f}"
            cells.append(f"{score} ({1e3 * mean['seconds']:.1f} ms)")
        rows.append(f"| {way} | {' | '.join(cells)} |")
    head = (
        f"Training by draws and by moments, {found['uci steps']} steps (LeNet on digits {found['lenet steps']}), mean "
        "of three splits or seeds: test log-likelihood (LeNet: negative log-likelihood) by 100 draws, and CPU time of "
        "a step:"
    )
    titles = " | ".join(task.removeprefix("uci-") for task in tasks)
    return [head, "", f"| trained by | {titles} |", "|---|" + "---|" * len(tasks), *rows, "", *_agreement(runs)]


def _agreement(runs: list[dict[str, Any]]) -> list[str]:
    """Predictions by moments against 100 draws of the same networks."""
    pairs = {"nll": [], "ece": [], "accuracy": [], "log_likelihood": []}  # type: dict[str, list[float]]
    ranks = [run["mean"]["rank correlation, entropy"] for run in runs if run["task"] == "lenet"]
    informed = [run["mean"]["rank correlation, mutual_information"] for run in runs if run["task"] == "lenet"]
    for run in runs:
        for score, gaps in pairs.items():
            if f"{score}, 100" in run["mean"]:
                gaps.append(abs(run["mean"][f"{score}, moments"] - run["mean"][f"{score}, 100"]))
    parts = [f"log-likelihoods of UCI data by at most {max(pairs['log_likelihood']):.3f}"]
    if ranks:
        parts.append(
            f"LeNet's negative log-likelihood by at most {max(pairs['nll']):.3f}, its calibration error by "
            f"{max(pairs['ece']):.3f} and its accuracy by {max(pairs['accuracy']):.3f}; the rank correlation of "
            f"entropies is at least {min(ranks):.3f}, that of mutual information at least {min(informed):.2f}"
        )
    return [f"Predicted by moments instead of 100 draws, the same networks differ: {'; '.join(parts)}."]
