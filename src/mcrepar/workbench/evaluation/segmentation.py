"""The evaluation of a segmentation: maps in the space of every image, metrics.json, figures and report.html."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mcrepar import metrics
from mcrepar.data.scans import Scan, Scans
from mcrepar.data.segmentation import write_map
from mcrepar.errors import ParameterError
from mcrepar.metrics import VoxelCounts
from mcrepar.nn.calibration import complete
from mcrepar.nn.swap import run as run_on
from mcrepar.sliding_window import VoxelPrediction, predict_image, windows_at_once
from mcrepar.workbench.evaluation import EvaluateOptions
from mcrepar.workbench.evaluation.kinds import Arrays
from mcrepar.workbench.training.setup import Run
from mcrepar.workbench.training.task import MOST_VOXELS
from mcrepar.workbench.training.twin import read_twin

MOST_SHOWN = 6  # images in the report
CURVE = 200  # points of a curve in metrics.json
MAPS = "maps"  # the folder of NIfTI files


def check(options: EvaluateOptions) -> None:
    """Refuse what an evaluation of images with label maps does not do, before any work."""
    if options.draws == "moments":
        why = "a draw of the weights serves all windows of an image, and moments have no draw"
        raise ParameterError("--draws moments", why, "--draws 20")
    if options.ood:
        why = "out-of-distribution detection is of whole images, and here voxels are predicted"
        raise ParameterError(
            f"--ood {' '.join(options.ood)}", why, "evaluate without --ood; the maps show where it is uncertain"
        )


def evaluate_scans(
    run: Run, own: Scans, options: EvaluateOptions, fixed: Callable[..., nn.Module]
) -> tuple[dict[str, Any], Arrays]:
    """What is found of the images, for metrics.json, and the slices of the report; the maps are written.

    Args:
        run: opened.
        own: the images.
        options: of the evaluation.
        fixed: makes a network of a function, in place of a Bayesian one.
    """
    nets = {"in": run.bnn, "mean_weights": fixed(run.bnn, partial(run_on, run.bnn, complete(run.bnn, "mean")))}
    twin = read_twin(run)
    if twin is not None:
        nets["twin"] = fixed(run.bnn, twin.net.__call__)
    counts = {name: VoxelCounts(len(run.facts.classes)) for name in nets}
    slices: list[Arrays] = []
    for place, scan in enumerate(own.about):
        image, y = own.image(place)
        for name, net in nets.items():
            found = _predict(run, net, image, own, options, name, f"{place + 1} of {len(own)}")
            counts[name].add(found.probs, y, found.entropy, found.mutual_information)
            if name == "in":
                slices.append(_slice(image, y, found))
                _write_maps(run, scan, found)
    results: dict[str, Any] = {name: metrics.segmentation(c) for name, c in counts.items()}
    counted = counts["in"]
    results |= {
        "structures": _structures(counted, run.facts.classes),
        "images": [_image(scan, row) for scan, row in zip(own.about, counted.by_image, strict=True)],
        "abstention": _thinned(counted.abstention()),
    }
    return results, _shown(slices, own.about, counted, min(options.images, MOST_SHOWN))


def _predict(
    run: Run, net: nn.Module, image: Tensor, own: Scans, options: EvaluateOptions, name: str, which: str
) -> VoxelPrediction:
    """All images are predicted with the same draws of the weights."""
    import sys

    device = next(run.bnn.parameters()).device
    assert isinstance(options.draws, int)
    draws = options.draws if name == "in" else 1
    if options.progress and draws > 1 and sys.stdout.isatty():
        print(f"image {which}", flush=True)
    return predict_image(
        net,
        image,
        own.patch,
        draws,
        batch_size=windows_at_once(own.patch, MOST_VOXELS, options.batch_size),
        generator=torch.Generator(device).manual_seed(options.seed),
        prepare=run.prepare,
        precision=torch.bfloat16 if run.config.precision == "bf16" else torch.float32,
        progress=options.progress and draws > 1 and sys.stdout.isatty(),
    )


def _write_maps(run: Run, scan: Scan, found: VoxelPrediction) -> None:
    folder = run.folder / MAPS
    if folder.is_symlink():
        raise ParameterError(
            f"evaluate {run.folder}", f"{folder} is a symbolic link, which is not followed", "a folder"
        )
    maps: dict[str, NDArray[Any]] = {
        "label": found.label.numpy().astype(np.uint8),
        "entropy": found.entropy.numpy().astype(np.float32),
        "mutual_information": found.mutual_information.numpy().astype(np.float32),
    }
    try:
        for name, values in maps.items():
            write_map(folder / f"{scan.name}_{name}.nii.gz", scan, values)
    except OSError as error:
        why = f"{folder} cannot be written ({error.strerror or error})"
        raise ParameterError(f"evaluate {run.folder}", why, "a disk with space where you may write") from None


def _structures(counts: VoxelCounts, names: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for c in counts.structures:
        bins = counts.calibration(c)
        found.append(
            {
                "name": names[c],
                "dice": counts.dice_of(c),
                "images": sum(not np.isnan(row[c]) for row in counts.by_image),
                "voxels": int(counts.overlap[2, c].sum()),
                "ece": counts.ece_of(c),
                "dice_at_95_coverage": counts.at_coverage(f"dice_{c}", 0.95),
                "calibration": {"probability": bins.confidence.tolist(), "frequency": bins.accuracy.tolist()},
            }
        )
    return found


def _image(scan: Scan, dice: Sequence[float]) -> dict[str, Any]:
    return {"name": scan.name, "subject": scan.subject, "dice": list(dice[1:])}


def _thinned(curve: dict[str, NDArray[Any]]) -> dict[str, list[float]]:
    """The curve at even coverages, and its end."""
    places = np.searchsorted(curve["coverage"], np.linspace(0, 1, CURVE)).clip(0, len(curve["coverage"]) - 1)
    places = np.unique(places)
    return {name: values[places].tolist() for name, values in curve.items()}


def _slice(image: Tensor, y: Tensor, found: VoxelPrediction) -> Arrays:
    """The slice across the last axis with most of the structures, front at the top, right on the right."""
    shown = y > 0 if bool((y > 0).any()) else found.entropy
    z = int(shown.sum((0, 1)).argmax())
    parts = {
        "image": image[0], "truth": y, "label": found.label.to(torch.uint8), "entropy": found.entropy.float(),
        "mutual_information": found.mutual_information.float(),
    }  # fmt: skip
    return {name: np.ascontiguousarray(values[..., z].T.flip(0).numpy()) for name, values in parts.items()}


def _shown(slices: Sequence[Arrays], about: Sequence[Scan], counts: VoxelCounts, count: int) -> Arrays:
    """The slices of images from the worst to the best Dice, evenly chosen."""
    with np.errstate(all="ignore"):
        scores = np.array([np.nanmean(row[1:]) if not np.isnan(row[1:]).all() else 1.0 for row in counts.by_image])
    order = np.argsort(scores, kind="stable")
    chosen = (
        order[np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))] if count else []
    )
    found: Arrays = {"names": np.array([about[k].name for k in chosen], dtype=np.str_), "dice": scores[chosen]}
    for number, k in enumerate(chosen):
        found |= {f"{name}_{number}": values for name, values in slices[k].items()}
    return found
