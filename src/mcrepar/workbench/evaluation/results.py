"""The evaluation of a trained network: predictions.npz, metrics.json, figures and report.html in its run folder."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mcrepar import __version__, metrics
from mcrepar.data.dataset import Split
from mcrepar.data.scans import Scans
from mcrepar.errors import CollapseWarning, ParameterError
from mcrepar.likelihoods import Likelihood
from mcrepar.nn.calibration import complete
from mcrepar.nn.module import BayesianModule
from mcrepar.nn.moments.moment_calibration import calibrate_moments
from mcrepar.nn.random_tensor import random_tensors
from mcrepar.nn.swap import run as run_on
from mcrepar.prediction import Prediction, predict
from mcrepar.user_files import read_json, remove_stale, write_file
from mcrepar.workbench.evaluation import EvaluateOptions, segmentation
from mcrepar.workbench.evaluation.data_sets import OodData, own_part, read_ood
from mcrepar.workbench.evaluation.figures import chosen, thumbnails
from mcrepar.workbench.evaluation.kinds import CLASSES, NUMBERS, Arrays, Kind
from mcrepar.workbench.evaluation.report import ARRAYS, print_results, write_report
from mcrepar.workbench.training.distributed import joined
from mcrepar.workbench.training.setup import Run, open_run
from mcrepar.workbench.training.twin import Twin, missing_twin, read_twin

WRITTEN = r"predictions\.npz|slices\.npz|metrics\.json|report\.html|.*\.png|.*\.nii\.gz"
FITTED = 64  # training examples on which the variances of moments are fitted
EXTRAS = ("matplotlib", "jinja2", "rich")  # of the report and the tables, looked for before the long work


def run(options: EvaluateOptions) -> Path:
    """Evaluate the network of a run folder; see `mcrepar.workbench.evaluate`.

    Args:
        options: the folder and what to predict.
    """
    options.check()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ParameterError("mcrepar evaluate", "it runs in a single process", "Start it without torchrun.")
    for module in EXTRAS:
        if find_spec(module) is None:
            raise ParameterError("mcrepar evaluate", f"{module} is not installed", "pip install 'mcrepar[train,plot]'")
    with joined(options.device) as world:
        opened = open_run(options.folder)
        if not os.access(opened.folder, os.W_OK | os.X_OK):
            raise ParameterError(f"evaluate {opened.folder}", "it cannot be written", "a copy where you may write")
        opened.model.to(world.device)
        return evaluate_run(opened, options)


def evaluate_run(run: Run, options: EvaluateOptions) -> Path:
    """The same for a run that is open.

    Args:
        run: what `open_run` returns.
        options: what to predict.
    """
    own = own_part(run, options.split)
    if isinstance(own, Scans):
        return _evaluate_scans(run, own, options)
    ood = _ood_data(own, options)
    said = (run.note, run.changed, run.calibrate(), _fit_moments(run, options), missing_twin(run))
    notes = [note for note in said if note]
    kind = CLASSES if run.facts.classes else NUMBERS
    y = own.y.numpy()
    prediction = _predict(run, run.bnn, own.x, options, options.draws)
    at_mean = _predict(run, _Fixed(run.bnn, partial(run_on, run.bnn, complete(run.bnn, "mean"))), own.x, options, 1)
    if why := _not_finite(prediction) or _not_finite(at_mean):
        instead = "a new run, mcrepar train with --clip 1 or a smaller --lr"
        raise ParameterError(f"evaluate {run.folder}", why, instead)
    twin = read_twin(run)
    at_twin = None if twin is None else _by_twin(run, twin, own.x, options)
    if at_twin is not None and (why := _not_finite(at_twin)):
        notes.append(f"the twin is left out: {why}; a new run with --clip 1 or a smaller --lr may have one")
        twin = at_twin = None
    answers = kind.answers(prediction)
    contents: Arrays = {
        "y": y,
        "draws": np.array(prediction.draws),
        "classes": np.array(run.facts.classes, dtype=np.str_),
    }
    contents |= {"moments": np.array(options.draws == "moments")}
    contents |= answers | _pictures(kind, own.x, answers, y, options.images)
    results = {
        "task": kind.name,
        **_about(run, own, options, prediction.draws),
        "in": kind.scores(prediction, answers, y),
        "mean_weights": kind.scores(at_mean, kind.answers(at_mean), y),
        **kind.details(prediction, answers, y),
        "notes": notes,
    }
    if at_twin is not None:
        twin_answers = kind.answers(at_twin)
        results["twin"] = kind.scores(at_twin, twin_answers, y)
    for other in ood:
        prediction = _predict(run, run.bnn, other.split.x, options, options.draws)
        theirs = kind.answers(prediction)
        results["ood"][other.name] = _detection(kind, run, prediction, answers, theirs, other)
        if twin is not None:
            its = kind.answers(_by_twin(run, twin, other.split.x, options))
            usual, doubt = next(iter(kind.doubts.items()))
            detected = metrics.detection(doubt(twin_answers), doubt(its))
            results["ood"][other.name]["by_score"][f"{usual}_of_the_twin"] = detected
        kept = {"y": other.split.y.numpy(), **theirs, **_pictures(kind, other.split.x, theirs, None, options.images)}
        contents |= {f"ood_{other.name}_{key}": value for key, value in kept.items()}
    return _write(run.folder, results, contents, options)


def _evaluate_scans(run: Run, own: Scans, options: EvaluateOptions) -> Path:
    """The same for images with a class for every voxel."""
    segmentation.check(options)
    notes = [note for note in (run.note, run.changed, run.calibrate(), missing_twin(run)) if note]
    results, slices = segmentation.evaluate_scans(run, own, options, _Fixed)
    about = _about(run, own, options, int(options.draws))
    contents = {"classes": np.array(run.facts.classes, dtype=np.str_), **slices}
    return _write(run.folder, {"task": "segmentation", **about, **results, "notes": notes}, contents, options)


def _about(run: Run, own: Split, options: EvaluateOptions, draws: int) -> dict[str, Any]:
    """What was evaluated, and how."""
    return {
        "mcrepar": __version__,
        "data": _about_data(run, own, options.split),
        "model": {"name": run.config.model, **_families(run.bnn)},
        "draws": draws,
        "method": "moments" if options.draws == "moments" else "draws",
        "seed": options.seed,
        "command": options.command(),
        "posterior": _diagnosis(run.bnn),
        "ood": {},
    }


class _Fixed(nn.Module):
    """One network in place of the draws of a Bayesian one: it at the mean of its weights, or its twin."""

    def __init__(self, bnn: BayesianModule, call: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.bnn, self.call = bnn, call

    def forward(self, x: Tensor) -> Any:
        return self.call(x)


def _predict(
    run: Run,
    net: nn.Module,
    x: Tensor,
    options: EvaluateOptions,
    draws: int | str,
    likelihood: Likelihood | None = None,
) -> Prediction:
    """All sets are predicted with the same draws of the weights."""
    device = next(run.bnn.parameters()).device
    generator = torch.Generator(device).manual_seed(options.seed)
    bar = options.progress and draws not in (1, "moments") and sys.stdout.isatty()
    most = 0 if run.facts.classes else 2**31  # classes need no samples, only running statistics
    batches = run.model.batches(x, options.batch_size)
    likelihood = likelihood or run.likelihood
    return predict(net, batches, draws, options.batch_size, likelihood, generator, bar, max_bytes=most)


def _not_finite(prediction: Prediction) -> str:
    """Where predicted means or variances of y are not finite, a clause that says so; else ""."""
    wrong = int(prediction.std.isfinite().logical_not().sum())
    number = f"{wrong} of its {prediction.std.numel()} predictions"
    return f"the mean or variance of {number} is not finite, so its training has diverged" if wrong else ""


def _fit_moments(run: Run, options: EvaluateOptions) -> str:
    """Fit the variances of moments to draws on training examples, unless the model holds factors; a note or ""."""
    if options.draws != "moments" or run.bnn.calibration.moment_factors:
        return ""
    if run.dataset.train is None:
        return "the variances of moments were not fitted to draws: there are no training data"
    batch = next(iter(run.model.batches(run.dataset.train.x[:FITTED], FITTED)))
    device = next(run.bnn.parameters()).device
    generator = torch.Generator(device).manual_seed(options.seed)
    calibrate_moments(run.bnn, batch, generator=generator, likelihood=run.likelihood)
    return ""


def _by_twin(run: Run, twin: Twin, x: Tensor, options: EvaluateOptions) -> Prediction:
    return _predict(run, _Fixed(run.bnn, twin.net.__call__), x, options, 1, twin.likelihood)


def _ood_data(own: Split, options: EvaluateOptions) -> list[OodData]:
    found = [read_ood(words, options.root, own, options.resize) for words in options.ood]
    names = [other.name for other in found]
    for name in names:
        if names.count(name) > 1:
            why = f"two out-of-distribution sets are called {name!r}"
            raise ParameterError(f"--ood {' '.join(options.ood)}", why, f"--ood {name},as=another ...")
    return found


def _diagnosis(bnn: BayesianModule) -> dict[str, Any]:
    """What became of the posterior, and what to do about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)  # it is among the advice
        found = bnn.diagnose()
    totals = {"moved": found.moved, "at_prior": found.at_prior, "kl": found.kl, "effective": found.effective}
    return {**totals, "advice": list(found.advice), "tensors": [asdict(t) for t in found.tensors]}


def _families(bnn: BayesianModule) -> dict[str, str]:
    """Posterior and prior of the weights, as the network has them."""
    options = [tensor.options for tensor in random_tensors(bnn).values()]
    sides = {"posterior": [o.posterior.name for o in options], "prior": [o.prior.name for o in options]}
    return {side: ", ".join(dict.fromkeys(names)) for side, names in sides.items()}


def _about_data(run: Run, own: Split, split: str) -> dict[str, Any]:
    dataset = run.dataset
    return {
        "name": dataset.name,
        "split": split,
        "count": len(own),
        "size": list(dataset.size),
        "channels": dataset.channels,
        "classes": list(dataset.classes),
        "source": dataset.source,
        "simulated": dataset.simulated,
    }


def _detection(
    kind: Kind, run: Run, prediction: Prediction, own: Arrays, theirs: Arrays, other: OodData
) -> dict[str, Any]:
    """How well each uncertainty detects out-of-distribution data; their own scores where they have the same classes."""
    by = {name: metrics.detection(doubt(own), doubt(theirs)) for name, doubt in kind.doubts.items()}
    usual, *_ = kind.doubts
    about: dict[str, Any] = {
        "count": len(other.split),
        "source": other.dataset.source,
        "simulated": other.dataset.simulated,
        "score": usual,
        **by.pop(usual),
        "by_score": by,
        "notes": list(other.notes),
    }
    same = bool(run.facts.classes) and other.dataset.classes == run.facts.classes
    if same and other.split.labelled:
        about["in"] = kind.scores(prediction, theirs, other.split.y.numpy())
    return about


def _pictures(kind: Kind, x: Tensor, answers: Arrays, y: NDArray[Any] | None, count: int) -> Arrays:
    """Thumbnails of the most and of the least certain examples, and of the most certain mistakes."""
    doubt = next(iter(kind.doubts.values()))(answers)
    wrong = None if y is None or "label" not in answers else answers["label"] != y
    places, groups = chosen(doubt, wrong, count)
    pictures = thumbnails(x, places)
    if not len(pictures):
        places, groups = places[:0], groups[:0]
    return {"thumbnails": pictures, "thumbnail_indices": places, "thumbnail_groups": groups}


def _write(folder: Path, results: Mapping[str, Any], contents: Arrays, options: EvaluateOptions) -> Path:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **contents)
    path = folder / "metrics.json"
    replaced = replaced_results(path, results)
    for place in (folder, folder / "figures", folder / segmentation.MAPS):
        remove_stale(place, WRITTEN, older=3600.0)  # an evaluation takes no lock, and another may be writing
    try:
        write_file(folder / ARRAYS.get(results["task"], "predictions.npz"), buffer.getvalue())
        write_file(path, (json.dumps(_finite(results), indent=1, allow_nan=False) + "\n").encode())
        report = write_report(folder)
    except OSError as error:
        why = f"{folder} cannot be written ({error.strerror or error})"
        raise ParameterError(f"evaluate {folder}", why, "a disk with space where you may write") from None
    if options.progress:
        print_results(results, report)
        if replaced:
            print(replaced)
    return path


def replaced_results(path: Path, results: Mapping[str, Any]) -> str:
    """A sentence where the results of before were of another part of the data, or by other draws; else ""."""
    try:
        before = read_json(path)
        there, here = (f"{r['data']['split']} part, {r['draws']} {r['method']}" for r in (before, results))
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    return "" if there == here else f"These results replace those of before ({there})."


def _finite(value: Any) -> Any:
    """JSON has no NaN: None says that there is no number."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
