"""Look at a run: its confidence sets with a threshold to drag, and the images behind them."""

from __future__ import annotations

import base64
import io
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcrepar.metrics import METRICS, THRESHOLDS, ConfidenceSet, classification, confidence_sets, interval_coverage, rmse
from mcrepar.workbench.app.answer import Answer, Figure, Gallery, Picture, Table, line
from mcrepar.workbench.app.controls import Choice, Slider
from mcrepar.workbench.app.runs import STRUCTURE, Run, Runs
from mcrepar.workbench.app.view import View

_SHOWN = 24  # images at once
_WANTED = {
    "unsure": "outside the set",
    "wrong": "wrong, in the set",
    "sure": "in the set",
    "all": "all",
}
_CONFIDENT_FIRST = ("wrong", "sure")
_SLACK = 1e-9
_POINTS = 400  # of a regression, drawn with their intervals
_CURVE_POINTS = 2000  # of a training, drawn
_LOG_ROWS = 1000  # of a training, listed

Mask = NDArray[np.bool_]


def _compute(runs: Runs, values: Mapping[str, Any]) -> Answer:
    if not values["run"]:
        return _no_runs(runs)
    assert runs.root is not None
    run, folder = runs.open(values["run"]), runs.root / values["run"]
    banner = "These data are simulated." if run.facts.get("simulated") else ""
    if "confidence" in run.arrays:
        draws = '"moments"' if run.arrays.get("moments", False) else str(int(run.arrays["draws"]))
        return replace(_classes(run, values, banner), code=_code(folder, draws, values["threshold"]))
    if "lower" in run.arrays:
        return _numbers(run, banner)
    if run.structures:
        return _voxels(run, folder, banner)
    text = f"{run.name} is not evaluated yet: use mcrepar evaluate on it, and come back."
    code = f"mcrepar evaluate {shlex.quote(str(folder))}"
    return Answer(text, figures=_training_figures(run), tables=_log_tables(run), code=code, banner=banner)


def _no_runs(runs: Runs) -> Answer:
    """What to do first."""
    root = "runs" if runs.root is None else shlex.quote(str(runs.root))
    text = f"There is no run in the folder {runs.root} yet." if runs.root else "No folder of runs was given (--runs)."
    return Answer(
        f"{text} The commands below train a small network and evaluate it; then reload this page.",
        notes=["Meanwhile “Your network” shows untrained networks, and “The paper” needs no network at all."],
        code=f"mcrepar train --recipe digits --out {root}/digits\nmcrepar evaluate {root}/digits",
    )


def _numbers(run: Run, banner: str) -> Answer:
    """A regression has no confidence sets; it has intervals."""
    y, mean, lower, upper = (run.arrays[name] for name in ("y", "mean", "lower", "upper"))
    inside = interval_coverage(lower, upper, y)
    few = slice(None, None, -(-len(y) // _POINTS))
    bars = {"type": "data", "symmetric": False, "array": (upper - mean)[few], "arrayminus": (mean - lower)[few],
            "color": "@series1-soft", "width": 0}  # fmt: skip
    ends = [float(y.min()), float(y.max())]
    traces = [
        line("prediction, 90 % interval", y[few], mean[few], "@series1", mode="markers", error_y=bars),
        line("as it should be", ends, ends, "@edge", mode="lines", dash="dash"),
    ]
    figure = Figure("regression", "Predicted and true values", "Predictions lie along the diagonal of true values.",
                    traces, "true value", "prediction")  # fmt: skip
    text = (
        f"The typical error is {rmse(mean, y):.4g}, and {100 * inside:.1f} % of the 90 % intervals hold the true value."
    )
    return Answer(text, figures=[figure, *_training_figures(run)], tables=_log_tables(run), banner=banner)


def _voxels(run: Run, folder: Path, banner: str) -> Answer:
    """A segmentation has scores for every structure; its slices and maps are files."""
    rows = [tuple(structure[key] for key in STRUCTURE) for structure in run.structures]
    header = ("structure", "images with it", "voxels", "Dice", "Dice of the most certain 95 %", "ECE")
    dice = ["unknown" if s["dice"] is None else f"{s['dice']:.3f}" for s in run.structures]
    each = ", ".join(f"{score} ({s['name']})" for score, s in zip(dice, run.structures, strict=True))
    code = f"""import json
from pathlib import Path

results = json.loads(Path({str(folder / "metrics.json")!r}).read_text())
dice = {{structure["name"]: structure["dice"] for structure in results["structures"]}}"""
    return Answer(
        f"{run.name} is a segmentation: a class for every voxel. The Dice of its structures: {each}.",
        notes=[f"Slices of its images are in {folder / 'report.html'}; the threshold is not used here."],
        figures=_training_figures(run),
        tables=[Table("structures", "Structures, all test images", header, rows), *_log_tables(run)],
        code=code,
        banner=banner,
    )


def _classes(run: Run, values: Mapping[str, Any], banner: str) -> Answer:
    tau, arrays = values["threshold"], run.arrays
    right = arrays["label"] == arrays["y"]
    (chosen,) = confidence_sets(arrays["confidence"], right, (tau,))
    sets = confidence_sets(arrays["confidence"], right, tuple(np.linspace(0, 1, 101)))
    return Answer(
        _headline(chosen, len(right)),
        figures=[_sets_figure(sets, chosen), _confidence_figure(run, tau), *_training_figures(run)],
        tables=[_sets_table(run, right, chosen), _metrics_table(run), *_log_tables(run)],
        galleries=[_gallery(run, right, tau, values["show"])],
        banner=banner,
    )


def _code(folder: Path, draws: str, tau: float) -> str:
    return f"""from mcrepar import predict
from mcrepar.workbench.training.setup import open_run

run = open_run({str(folder)!r})
run.calibrate()  # BatchNorm, if there is any, gets its statistics for each draw from training data
x = run.prepare(run.dataset.test.x)
prediction = predict(run.bnn, x, draws={draws}, likelihood=run.likelihood)
inside = prediction.confident({tau:g})  # for each test example whether it is in this set"""


def _headline(chosen: ConfidenceSet, count: int) -> str:
    if chosen.accuracy is None:
        return f"No answer of {count:,} has at least {100 * chosen.tau:g} % of the draws behind it."
    return (
        f"At least {100 * chosen.tau:g} % of the draws agree on {chosen.count:,} of {count:,} answers "
        f"({100 * chosen.share:.1f} %), and {100 * chosen.accuracy:.2f} % of those are right "
        f"(95 % interval {100 * (chosen.low or 0):.1f} to {100 * (chosen.high or 0):.1f})."
    )


def _sets_figure(sets: list[ConfidenceSet], chosen: ConfidenceSet) -> Figure:
    taus = [s.tau for s in sets]
    accuracy = [math.nan if s.accuracy is None else s.accuracy for s in sets]
    traces = [
        line("accuracy on the set", taus, accuracy, "@series1", mode="lines"),
        line("share of the data in it", taus, [s.share for s in sets], "@series2", mode="lines", dash="dash"),
    ]
    mark = {"type": "line", "x0": chosen.tau, "x1": chosen.tau, "y0": 0, "y1": 1, "yref": "paper",
            "line": {"color": "@edge", "width": 2, "dash": "dot"}}  # fmt: skip
    alt = "Accuracy on the confidence set rises with the threshold, and the share of the data in it falls."
    least = min([s.share for s in sets] + [a for a in accuracy if not math.isnan(a)])
    layout = {"shapes": [mark], "yaxis": {"range": [least - 0.03, 1.02]}, "xaxis": {"range": [0, 1]}}
    return Figure("confidence-sets", "Confidence sets", alt, traces, "threshold", "share", layout=layout)


def _confidence_figure(run: Run, tau: float) -> Figure:
    traces = []
    for place, name in enumerate(["", *run.ood_sets]):
        values = run.arrays[f"ood_{name}_confidence" if name else "confidence"]
        bins = max(1, min(20, int(run.arrays["draws"])))  # around the values that a share of the draws can have
        counts, edges = np.histogram(values, bins + 1, (-0.5 / bins, 1 + 0.5 / bins))
        inside = f"{100 * (values >= tau - _SLACK).mean():.1f} % in the set"
        label = f"{name[:20]} (OOD): {inside}" if name else f"test data: {inside}"
        shares = np.where(counts > 0, counts / max(1, len(values)), np.nan)  # a logarithmic axis has no place for none
        traces.append(line(label, (edges[1:] + edges[:-1]) / 2, shares, f"@series{place % 4 + 1}",
                           symbol="square" if name else "circle", dash="dash" if name else "solid"))  # fmt: skip
    alt = "How many draws agree, as a histogram over the examples" + (
        ", out-of-distribution (OOD) examples beside it." if run.ood_sets else "."
    )
    return Figure("agreement", "How many draws agree", alt, traces, "share of draws that agree", "share of the data",
                  y_log=True)  # fmt: skip


def _training_figures(run: Run) -> list[Figure]:
    few = slice(None, None, -(-len(run.log.get("epoch", [])) // _CURVE_POINTS) or 1)
    log = {name: column[few] for name, column in run.log.items()}
    epochs = log.get("epoch")
    if not epochs:
        return []
    styles = (("loss", "@series1", "solid"), ("nll", "@series2", "solid"), ("val_loss", "@series1", "dash"),
              ("val_nll", "@series2", "dash"))  # fmt: skip
    traces = [
        line(name, epochs, log[name], colour, dash=dash, mode="lines+markers" if len(epochs) < 40 else "lines")
        for name, colour, dash in styles
        if name in log and not all(map(math.isnan, log[name]))
    ]
    alt = f"Loss and negative log-likelihood over {len(run.log['epoch'])} epochs."
    shown = [y for trace in traces for y in trace["y"] if math.isfinite(y)]
    log_axis = bool(shown) and min(shown) > 0 and max(shown) > 20 * min(shown)
    return [Figure("training", "Training", alt, traces, "epoch", "nats per example", y_log=log_axis)] if traces else []


def _sets_table(run: Run, right: Mask, chosen: ConfidenceSet) -> Table:
    taus = sorted({*THRESHOLDS, chosen.tau})
    sets = confidence_sets(run.arrays["confidence"], right, taus)
    rows = [(s.tau, s.count, s.share, s.accuracy, s.low, s.high) for s in sets]
    header = ("threshold", "answers", "share", "accuracy", "interval from", "to")
    return Table("confidence-sets", "Confidence sets", header, rows)


def _metrics_table(run: Run) -> Table:
    a = run.arrays
    scores = classification(a["probs"], a["y"], a["label"], a.get("entropy"), a.get("mutual_information"))
    rows = [(METRICS[name].title, value, METRICS[name].meaning) for name, value in scores.items()]
    return Table("metrics", "All test data", ("metric", "value", "what it tells"), rows)


def _log_tables(run: Run) -> list[Table]:
    if not run.log:
        return []
    log = {name: column for name, column in run.log.items() if not all(map(math.isnan, column))}
    rows = list(zip(*log.values(), strict=True))
    last = f", the last {_LOG_ROWS:,} of {len(rows):,}" if len(rows) > _LOG_ROWS else ""
    return [Table("log", f"Training, by epoch{last}", tuple(log), rows[-_LOG_ROWS:])]


_MASKS: Mapping[str, Callable[[Mask, Mask], Mask]] = {
    "unsure": lambda inside, right: ~inside,
    "wrong": lambda inside, right: inside & ~right,
    "sure": lambda inside, right: inside,
    "all": lambda inside, right: np.ones_like(inside),
}


def _gallery(run: Run, right: Mask, tau: float, show: str) -> Gallery:
    """Images of those that were stored as thumbnails."""
    arrays = run.arrays
    thumbnails, stored = arrays.get("thumbnails"), arrays.get("thumbnail_indices")
    if thumbnails is None or stored is None or not len(stored):
        return Gallery("Images: none were stored with this run", ())
    stored, first = np.unique(stored, return_index=True)  # one may be stored twice: as doubtful and as a mistake
    thumbnails, confidence = thumbnails[first], arrays["confidence"][stored]
    wanted = np.flatnonzero(_MASKS[show](confidence >= tau - _SLACK, right[stored]))
    order = wanted[np.argsort(confidence[wanted] * (-1 if show in _CONFIDENT_FIRST else 1), kind="stable")][:_SHOWN]
    pictures = [_picture(run, int(stored[k]), thumbnails[k]) for k in order]
    first_comes = "most confident" if show in _CONFIDENT_FIRST else "least confident"
    title = (
        f"Images, {_WANTED[show]}, {first_comes} first: {len(order)} of {len(wanted)} (the run stored {len(stored):,})"
    )
    return Gallery(title, pictures)


def _picture(run: Run, index: int, image: NDArray[Any]) -> Picture:
    arrays = run.arrays
    answer, truth = _class(run, arrays["label"][index]), _class(run, arrays["y"][index])
    agree = f"{100 * arrays['confidence'][index]:.0f} %"
    right = answer == truth
    caption = f"{answer}, {agree}" + ("" if right else f" (is {truth})")
    alt = f"Image {index}: {agree} of the draws say {answer}, which is {'right' if right else f'wrong: it is {truth}'}."
    return Picture(png_url(image), caption, alt)


def _class(run: Run, number: Any) -> str:
    names = run.arrays.get("classes")
    known = names is not None and names.dtype.kind == "U" and 0 <= int(number) < len(names)
    return str(names[int(number)]) if known and names is not None else str(int(number))


def png_url(image: NDArray[Any]) -> str:
    """An image, (height, width, channels) in bytes, as a data URL."""
    from PIL import Image

    pixels = np.ascontiguousarray(image, dtype=np.uint8)
    pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def run_view(root: Path | None) -> View:
    """The view of the runs below `root`."""
    runs = Runs(root)

    def names() -> dict[str, str]:
        return runs.names() or {"": "none"}

    return View(
        "run",
        "A run",
        "Look at a run",
        (
            "A Bayesian neural network answers with many draws of its weights. Where they agree it is confident; where "
            "they do not, one may leave the answer to a person. Drag the threshold: how many answers are left, and how "
            "many of them are right?",
            f"Runs are read from the folder {root.name}." if root else "Start the app with --runs FOLDER to read runs.",
        ),
        (
            Choice("run", "Run", next(iter(names())), choices=names),
            Slider("threshold", "Least share of draws that agree", "0.9", least=0, most=1, step=0.01),
            Choice("show", "Images", "unsure", choices=_WANTED),
        ),
        lambda values: _compute(runs, values),
        lasting=False,
        stored=lambda: {
            "run": list(names())[:3],
            "threshold": ("0.9", "0.5", "0.6", "0.7", "0.8", "0.95", "0.99", "1"),
            "show": ("unsure", "wrong", "sure"),
        },
    )
