"""The figures of a report, from what a run folder holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mcrepar import metrics, plots
from mcrepar.workbench.evaluation.report_words import Results, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Panel:
    """A figure and what is said about it.

    Args:
        name: of its file, without suffix.
        section: of the report in which it stands.
        figure: of matplotlib.
        caption: how to read it.
        label: what it shows, for those who cannot see it.
    """

    name: str
    section: str
    figure: Figure
    caption: str
    label: str


def panels(results: Results, arrays: Arrays, log: Arrays) -> Iterator[Panel]:
    """All figures, in the order of the report.

    Args:
        results: metrics.json.
        arrays: predictions.npz.
        log: the columns of log.csv.
    """
    if results["task"] == "classification":
        yield from _confidence(results)
        yield from _honesty(results, arrays)
        yield _spread(results, arrays, "entropy", "Uncertainty", "entropy of the answer, nats")
        yield _spread(results, arrays, "mutual_information", "Doubt about the weights", "mutual information, nats")
    else:
        yield from _numbers(results, arrays)
        yield _spread(results, arrays, "std", "Uncertainty", "standard deviation of the true value")
        yield _spread(results, arrays, "epistemic", "Doubt about the weights", "variance of the answer over draws")
    yield from _training(log)


def _confidence(results: Results) -> Iterator[Panel]:
    curve = results["confidence_curve"]
    tau, right, low, high, share = (
        np.array([s[key] for s in curve], float) for key in ("tau", "accuracy", "low", "high", "share")
    )
    figure = plots.threshold_curve(tau, right, "Right, where draws agree", "share that is right", low, high)
    yield Panel(
        "confidence_accuracy",
        "sure",
        figure,
        "Accuracy on the data of which at least this share of the draws gives one answer; the band is a 95 % interval.",
        f"Accuracy against agreement of the draws: from {percent(right[0])} on all data to {percent(right[-1])} "
        f"where {percent(tau[-1])} of the draws agree.",
    )
    figure = plots.threshold_curve(tau, share, "How many data that is", "share of the data", colour="violet", floor=0.0)
    yield Panel(
        "confidence_share",
        "sure",
        figure,
        "The share of the data that is left at each threshold.",
        f"Share of the data against agreement of the draws: {percent(share[-1])} of the data are left at "
        f"{percent(tau[-1])}.",
    )


def _honesty(results: Results, arrays: Arrays) -> Iterator[Panel]:
    probs, y = arrays["probs"], arrays["y"]
    bins = metrics.reliability(probs, y)
    yield Panel(
        "reliability",
        "honest",
        plots.reliability_diagram(bins.lower, bins.upper, bins.confidence, bins.accuracy, bins.count),
        "An honest model is right as often as it says: bars that end where the promise is. Below: where the data are.",
        f"Reliability diagram, expected calibration error {bins.ece:.3f}.",
    )
    coverage, risk = metrics.risk_coverage(probs.max(1), probs.argmax(1) != y)
    at = results["in"]["coverage_at_5_risk"]
    yield Panel(
        "risk_coverage",
        "honest",
        plots.risk_coverage(coverage, risk),
        "If it answers only where it is surest, how often is it wrong? Low and late to rise is good.",
        f"Error rate against the share of data answered, up to {percent(float(risk[-1]))} on all data; "
        f"{percent(at)} can be answered with at most 5 % errors.",
    )


def _spread(results: Results, arrays: Arrays, key: str, title: str, x: str) -> Panel:
    series = {results["data"]["split"]: arrays[key]}
    series |= {name: arrays[f"ood_{name}_{key}"] for name in results["ood"]}
    means = ", ".join(f"{name} {np.mean(values):.3g}" for name, values in series.items())
    caption = "Foreign data should lie further right than known ones." if results["ood"] else "Far left: no doubt."
    return Panel(key, "foreign", plots.histograms(series, title, x), caption, f"Histograms of {x}; means: {means}.")


def _numbers(results: Results, arrays: Arrays) -> Iterator[Panel]:
    y, mean, lower, upper = (arrays[key] for key in ("y", "mean", "lower", "upper"))
    yield Panel(
        "predicted_against_true",
        "sure",
        plots.predicted_against_true(y, mean, lower, upper),
        "Each point is an answer, each line its 90 % interval; orange ones miss the true value.",
        f"Predicted against true values; {percent(results['in']['coverage_90'])} lie inside their 90 % interval.",
    )
    rows = results["interval_coverage"]
    level, coverage = (np.array([row[key] for row in rows], float) for key in ("level", "coverage"))
    yield Panel(
        "interval_calibration",
        "sure",
        plots.interval_calibration(level, coverage),
        "Below the dashed line the intervals are too narrow, above it too wide.",
        f"Share of true values inside intervals; largest deviation {np.abs(level - coverage).max():.2f}.",
    )


TRAINING = (
    ("loss", "Negative ELBO", "nats per datum", "What is minimised: NLL and the weighted KL."),
    ("nll", "Negative log likelihood", "nats per datum", "How surprising the right answers are."),
    ("kl", "KL to the prior", "nats, all weights", "What the weights have learned that the prior did not know."),
    ("accuracy", "Accuracy", "share that is right", "Of one draw of the weights at a time, while training."),
    ("rmse", "Root mean squared error", "units of the target", "Of one draw of the weights at a time, while training."),
)


def _training(log: Arrays) -> Iterator[Panel]:
    for key, title, y, caption in TRAINING:
        if key not in log or not np.isfinite(log[key]).any():
            continue
        series = {"training": log[key]}
        if np.isfinite(log.get(f"val_{key}", np.array([np.nan]))).any():
            series["validation"] = log[f"val_{key}"]
        last = ", ".join(f"{name} {values[np.isfinite(values)][-1]:.4g}" for name, values in series.items())
        figure = plots.training_curve(log["epoch"], series, title, y)
        yield Panel(f"training_{key}", "training", figure, caption, f"{title} by epoch; at the end: {last}.")
