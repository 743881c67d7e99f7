"""Trainings that are repeated with other seeds and other numbers of Monte Carlo iterations of the KL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.experiment import Bench, Part, Results, Row
from experiments.spreads import Difference, Spread, difference, over
from experiments.trained import TEMPERED, Training, in_set, need_data, trained

EXACT = "exact"
FEW, MANY = "M = 1", "M = 100"  # the labels that the paper compares
TRUE_DRAWS = (
    "Draws here are true ones; the forward of the paper's published code (fig7, `published noise`) has nearly none "
    "at equal deviations, so that the paper's numbers are not those of true draws."
)
WEAK = (
    "Twelve epochs and fewer, small volumes and a KL of weight 0.001, which leaves the weights with little of the very "
    "noise whose effect is studied, can neither confirm nor refute a sentence about 100 epochs of the whole objective."
)


@dataclass(frozen=True)
class Study:
    """A training that is repeated.

    Args:
        name: in keys and tables.
        training: how.
        draws: the numbers M; None is the exact KL.
        replications: of each, with seeds of their own.
    """

    name: str
    training: Training
    draws: tuple[int | None, ...]
    replications: int


@dataclass(frozen=True)
class Settings:
    """One scale of an experiment.

    Args:
        studies: what is repeated.
    """

    studies: tuple[Study, ...]


def parts(settings: Settings) -> list[Part]:
    """One for each training; studies of one name have the same keys, seeds and runs in all experiments."""
    return [
        Part(f"{s.name}-{label.replace(' = ', '').lower()}-r{k}", {"kind": s.name, "draws": m, "replication": k})
        for s in settings.studies
        for m, label in zip(s.draws, map(label_of, s.draws), strict=True)
        for k in range(s.replications)
    ]


def measure(part: Part, bench: Bench) -> Row:
    """One training, and what it answers."""
    (study,) = (s for s in bench.settings.studies if s.name == part.given["kind"])
    m = part.given["draws"]
    return trained(study.training, bench, kl_method="exact" if m is None else "stats", n_mc_iter=m)


def check(settings: Settings, root: Path | None) -> None:
    """Refuse where data are missing."""
    need_data([s.training for s in settings.studies], root)


def label_of(draws: int | None) -> str:
    """M as it is written.

    >>> label_of(17), label_of(None)
    ('M = 17', 'exact')
    """
    return EXACT if draws is None else f"M = {draws}"


def groups(results: Results, study: str) -> dict[str, list[Row]]:
    """The replications that did not diverge, by M."""
    found: dict[str, list[Row]] = {}
    for row in results.of(study):
        found.setdefault(label_of(row["draws"]), [])
        if not row["failed"]:
            found[label_of(row["draws"])].append(row)
    return found


def accuracies(results: Results, study: str, taus: Sequence[float]) -> dict[str, list[Spread]]:
    """The accuracy of the confidence sets of some thresholds over replications, by M."""
    return {
        label: [over(rows, in_set(tau, "accuracy")) for tau in taus] for label, rows in groups(results, study).items()
    }


def differences(lines: Mapping[str, Sequence[Spread]], first: str, second: str) -> list[Difference | None]:
    """Those of one M minus those of another, threshold by threshold."""
    return [difference(a, b) for a, b in zip(lines[first], lines[second], strict=True)]


def ended(results: Results, study: Study) -> str:
    """How many of the replications did not diverge, by M."""
    counts = (
        f"{len(rows)} of {study.replications} with {label}" for label, rows in groups(results, study.name).items()
    )
    return f"runs that ended: {', '.join(counts)}"


# ---- the trainings

_FAST: dict[str, Any] = {"batch_size": 128, "lr": 0.01, "lr_schedule": "onecycle", "scale_lr": 2.0}
_PAPER: dict[str, Any] = {"epochs": 100, "batch_size": 32, "kl_schedule": "graves"}
# Millions of weights and hundreds of volumes: the KL of a datum is thousands of nats, so that beta must be smaller.
_VOLUMES: dict[str, Any] = {
    **TEMPERED, "prior_options": {"scale": "optimal"}, "beta": 1e-3, "start_std": 0.05,
    "augment": "flip", "batch_size": 16, "lr": 0.003, "lr_schedule": "onecycle", "scale_lr": 2.0, "calibration": 64,
}  # fmt: skip
IMAGES = {
    "tiny": Training("digits", "fcnet", 5, {**TEMPERED, **_FAST, "model_options": {"hidden": [24]}, "epochs": 2}),
    "cpu": Training("cifar10", "resnet20", 20, {
        **TEMPERED, **_FAST, "model_options": {"blocks": 1}, "epochs": 4, "calibration": 1024}),
    "paper": Training("cifar10", "preact_resnet50", 100, {**_PAPER, "calibration": 1024}),
}  # fmt: skip
BRAIN = {
    "tiny": Training("brain", "unet3d_encoder", 5, {
        **_VOLUMES, "data_options": {"size": [14, 14, 14], "subjects": 24}, "model_options": {"width": 2}, "epochs": 2,
        "batch_size": 9, "calibration": 8}),
    "cpu": Training("brain", "unet3d_encoder", 100, {
        **_VOLUMES, "data_options": {"size": [20, 24, 20]}, "epochs": 12}),
    "paper": Training("brain", "unet3d_encoder", 100, {
        **_PAPER, "augment": "flip", "data_options": {"size": [105, 127, 105]}, "calibration": 64}),
}  # fmt: skip
_ADRENAL = {"data_options": {"file": "adrenalmnist3d.npz"}}
ADRENAL = {
    "cpu": Training("medmnist", "unet3d_encoder", 30, {**_VOLUMES, **_ADRENAL, "batch_size": 32, "epochs": 6}),
    "paper": Training("medmnist", "unet3d_encoder", 100, {**_PAPER, **_ADRENAL, "augment": "flip", "calibration": 64}),
}
