"""The figures and the small pictures of a report, from what a run folder holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mcrepar import metrics, plots
from mcrepar.workbench.evaluation.words import Results, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Arrays = Mapping[str, NDArray[Any]]
SLICE = ("image", "truth", "label", "entropy", "mutual_information")  # what slices.npz has of an image


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
    if results["task"] == "segmentation":
        yield from segmentation_panels(results, arrays)
    elif results["task"] == "classification":
        yield from _confidence(results)
        yield from _calibration(results, arrays)
        yield _spread(results, arrays, "entropy", "Uncertainty", "entropy of the prediction, nats")
        yield _spread(results, arrays, "mutual_information", "Epistemic uncertainty", "mutual information, nats")
    else:
        yield from _numbers(results, arrays)
        yield _spread(results, arrays, "std", "Uncertainty", "standard deviation of the true value")
        yield _spread(results, arrays, "epistemic", "Epistemic uncertainty", "variance of the prediction over draws")
    yield from _training(log)


def segmentation_panels(results: Results, arrays: Arrays) -> Iterator[Panel]:
    """Slices with their uncertainty, calibration of the structures, and what abstaining from voxels leaves."""
    classes = [str(name) for name in arrays["classes"]]
    for k, (name, score) in enumerate(zip(arrays["names"].tolist(), arrays["dice"].tolist(), strict=True)):
        image, truth, label, entropy, doubt = (arrays[f"{part}_{k}"] for part in SLICE)
        share = float((truth != label).mean())
        yield Panel(
            f"slice_{k}",
            "slices",
            plots.overlay(image, truth, label, entropy, doubt, classes, f"{name}: Dice {score:.3f}"),
            f"{name}: {percent(share)} of the voxels of this slice are wrong.",
            f"Slice of {name}: image, true and predicted structures, errors, entropy and mutual information.",
        )
    structures = results["structures"]
    lines = {s["name"]: (s["calibration"]["probability"], s["calibration"]["frequency"]) for s in structures}
    gaps = ", ".join(f"{s['name']} {s['ece']:.3f}" for s in structures if s["ece"] is not None)
    yield Panel(
        "structure_calibration",
        "structures",
        plots.structure_calibration(lines),
        "How often voxels belong to a structure, against the probability that they do; voxels of at least 1 %.",
        f"Frequency against probability of the structures; expected calibration errors: {gaps}.",
    )
    curve = results["abstention"]
    coverage, error = (np.array(curve[key], float) for key in ("coverage", "error"))
    yield Panel(
        "abstention_error",
        "structures",
        plots.risk_coverage(coverage, error, things="voxels"),
        "The share of wrong voxels if only the most certain ones are kept and the others given to a person.",
        f"Error rate against coverage, up to {percent(float(error[-1]))} on all voxels.",
    )
    series = {s["name"]: np.array(curve[f"dice_{k}"], float) for k, s in enumerate(structures, start=1)}
    yield Panel(
        "abstention_dice",
        "structures",
        plots.abstention_curve(coverage, series),
        "Dice of each structure among the voxels that are kept, most certain first, over all images.",
        "Dice against coverage: " + ", ".join(f"{name} {v[-1]:.3f} on all voxels" for name, v in series.items()) + ".",
    )


def _confidence(results: Results) -> Iterator[Panel]:
    curve = results["confidence_curve"]
    tau, right, low, high, share = (
        np.array([s[key] for s in curve], float) for key in ("tau", "accuracy", "low", "high", "share")
    )
    figure = plots.threshold_curve(tau, right, "Accuracy where draws agree", "accuracy", low, high)
    yield Panel(
        "confidence_accuracy",
        "confidence",
        figure,
        "Accuracy on the examples where at least this share of the draws agrees; the band is a 95 % interval.",
        f"Accuracy against agreement of the draws: from {percent(right[0])} on all data to {percent(right[-1])} "
        f"where {percent(tau[-1])} of the draws agree.",
    )
    figure = plots.threshold_curve(tau, share, "Share of the examples", "share", colour="violet", floor=0.0)
    yield Panel(
        "confidence_share",
        "confidence",
        figure,
        "The share of the examples that is left at each threshold.",
        f"Share of the data against agreement of the draws: {percent(share[-1])} of the data are left at "
        f"{percent(tau[-1])}.",
    )


def _calibration(results: Results, arrays: Arrays) -> Iterator[Panel]:
    probs, y = arrays["probs"], arrays["y"]
    bins = metrics.reliability(probs, y)
    yield Panel(
        "reliability",
        "calibration",
        plots.reliability_diagram(bins.lower, bins.upper, bins.confidence, bins.accuracy, bins.count),
        "A calibrated model is right as often as its confidence says: the bars end on the diagonal. Below: counts.",
        f"Reliability diagram, expected calibration error {bins.ece:.3f}.",
    )
    coverage, risk = metrics.risk_coverage(probs.max(1), probs.argmax(1) != y)
    at = results["in"]["coverage_at_5_risk"]
    yield Panel(
        "risk_coverage",
        "calibration",
        plots.risk_coverage(coverage, risk),
        "The error rate if only the most confident predictions are made; low and late to rise is good.",
        f"Error rate against coverage, up to {percent(float(risk[-1]))} on all examples; "
        f"{percent(at)} can be predicted with at most 5 % errors.",
    )


def _spread(results: Results, arrays: Arrays, key: str, title: str, x: str) -> Panel:
    series = {results["data"]["split"]: arrays[key]}
    series |= {name: arrays[f"ood_{name}_{key}"] for name in results["ood"]}
    means = ", ".join(f"{name} {np.mean(values):.3g}" for name, values in series.items())
    caption = (
        "Out-of-distribution data should lie further right than in-distribution data."
        if results["ood"]
        else "Far left: most certain."
    )
    return Panel(key, "uncertainty", plots.histograms(series, title, x), caption, f"Histograms of {x}; means: {means}.")


def _numbers(results: Results, arrays: Arrays) -> Iterator[Panel]:
    y, mean, lower, upper = (arrays[key] for key in ("y", "mean", "lower", "upper"))
    yield Panel(
        "predicted_against_true",
        "confidence",
        plots.predicted_against_true(y, mean, lower, upper),
        "Each point is a prediction, each line its 90 % interval; orange ones miss the true value.",
        f"Predicted against true values; {percent(results['in']['coverage_90'])} lie inside their 90 % interval.",
    )
    rows = results["interval_coverage"]
    level, coverage = (np.array([row[key] for row in rows], float) for key in ("level", "coverage"))
    yield Panel(
        "interval_calibration",
        "confidence",
        plots.interval_calibration(level, coverage),
        "Below the dashed line the intervals are too narrow, above it too wide.",
        f"Share of true values inside intervals; largest difference {np.abs(level - coverage).max():.2f}.",
    )


TRAINING = (
    ("loss", "Negative ELBO", "nats per example", "What is minimised: NLL and the weighted KL."),
    ("nll", "Negative log likelihood", "nats per example", "Minus the log probability of the true y."),
    ("kl", "KL to the prior", "nats, all weights", "What the weights have learned that the prior did not know."),
    ("accuracy", "Accuracy", "accuracy", "Of one draw of the weights at a time, while training."),
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


GROUPS = {"certain": "most certain", "uncertain": "least certain", "mistakes": "most certain mistakes"}
LARGEST = 128  # pixels of a side


def chosen(
    doubt: NDArray[Any], wrong: NDArray[np.bool_] | None, count: int
) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """The places of the most certain, the least certain and the most certain wrong examples, and the group of each.

    Args:
        doubt: the uncertainty of each example, (examples,).
        wrong: which answers are wrong; None where nobody knows.
        count: how many of each group at most.

    >>> chosen(np.array([0.3, 0.1, 0.2]), np.array([False, False, True]), 1)
    (array([1, 0, 2]), array(['certain', 'uncertain', 'mistakes'], dtype='<U9'))
    """
    order = np.argsort(doubt, kind="stable")
    groups = {"certain": order[:count], "uncertain": order[::-1][:count]}
    if wrong is not None:
        groups["mistakes"] = order[wrong[order]][:count]
    names = np.repeat(np.array(list(groups), dtype="<U9"), [len(places) for places in groups.values()])
    return np.concatenate(list(groups.values())).astype(np.int64), names


def thumbnails(x: Tensor, places: NDArray[np.int64]) -> NDArray[np.uint8]:
    """uint8 pictures, (K, H, W, 1 or 3): of a volume its middle slice; of other data none.

    Args:
        x: (examples, C, *size), uint8 or float.
        places: of the examples.
    """
    if x.dim() not in (4, 5) or not len(places):
        return np.zeros((0, 0, 0, 1), np.uint8)
    images = x[torch.from_numpy(places)]
    if images.dim() == 5:  # right, front, up: the slice halfway up, its front at the top
        images = images[..., images.shape[-1] // 2].transpose(2, 3).flip(2)
    images = images if images.shape[1] == 3 else images[:, :1]
    if images.dtype != torch.uint8:
        flat = images.float().flatten(1)
        low, high = flat.amin(1).view(-1, 1, 1, 1), flat.amax(1).view(-1, 1, 1, 1)
        images = (images - low) / (high - low).clamp_min(1e-12) * 255
    images = images.float()
    longest = max(images.shape[2:])
    if longest > LARGEST:
        height, width = (max(1, round(side * LARGEST / longest)) for side in images.shape[2:])
        images = F.interpolate(images, (height, width), mode="area")
    pictures: NDArray[np.uint8] = images.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    return pictures
