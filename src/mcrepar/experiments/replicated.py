"""Trainings that are repeated with other seeds and other numbers of Monte Carlo iterations of the KL."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcrepar.experiments.experiment import Bench, Part, Results, Row
from mcrepar.experiments.trained import TEMPERED, Training, need_data, trained

# Beyond it the ratio of two variances of n replications each is called larger: by chance once in 20.
LARGER = {3: 19.0, 4: 9.28, 5: 6.39, 6: 5.05, 8: 3.79, 10: 3.18}
LEAST = 3  # replications from which anything is judged
EXACT = "exact"


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


@dataclass(frozen=True)
class Spread:
    """The mean and the deviation of replications; None where there are too few numbers."""

    mean: float | None
    deviation: float | None
    count: int

    def percent(self) -> str:
        """As the paper prints it: mean and deviation in percent."""
        if self.mean is None:
            return "empty"
        return f"{100 * self.mean:.2f}" + ("" if self.deviation is None else f" ± {100 * self.deviation:.2f}")


def spread(values: Sequence[float | None]) -> Spread:
    """Over replications; a set that is empty has no accuracy and is left out.

    >>> spread([0.5, 0.7, None]).percent()
    '60.00 ± 14.14'
    """
    known = [value for value in values if value is not None]
    mean = statistics.fmean(known) if known else None
    return Spread(mean, statistics.stdev(known) if len(known) > 1 else None, len(known))


def over(rows: Sequence[Row], quantity: Callable[[Row], float | None]) -> Spread:
    """The spread of a quantity over replications."""
    return spread([quantity(row) for row in rows])


@dataclass(frozen=True)
class Difference:
    """A mean minus another one, its standard error, and the replications of the mean that has fewer."""

    value: float
    error: float
    count: int

    def __str__(self) -> str:
        return f"{100 * self.value:+.2f} ± {100 * self.error:.2f}"


def difference(first: Spread, second: Spread) -> Difference | None:
    """first - second, of independent replications; None where one of them is not known."""
    if first.mean is None or second.mean is None or first.deviation is None or second.deviation is None:
        return None
    error = math.sqrt(first.deviation**2 / first.count + second.deviation**2 / second.count)
    return Difference(first.mean - second.mean, error, min(first.count, second.count))


def higher(differences: Sequence[Difference | None]) -> bool | None:
    """Whether all are above 0, and their mean by two standard errors; None where chance may have made it so.

    The thresholds share their data, so that the error of the mean is taken as that of one difference.

    >>> higher([Difference(0.03, 0.01, 3), Difference(0.05, 0.01, 3)]), higher([Difference(-0.01, 0.01, 3)])
    (True, False)
    """
    known = [d for d in differences if d is not None and d.count >= LEAST]
    if not known:
        return None
    mean, error = statistics.fmean(d.value for d in known), statistics.fmean(d.error for d in known)
    return False if any(d.value <= 0 for d in known) else True if mean > 2 * error else None


def larger(first: Spread, second: Spread) -> tuple[float | None, bool | None]:
    """The ratio of two variances, and whether the first is larger; None where chance may have made it so.

    >>> larger(Spread(1.0, 0.5, 3), Spread(1.0, 0.1, 3))
    (25.0, True)
    """
    if not first.deviation or not second.deviation:
        return None, None
    ratio, count = (first.deviation / second.deviation) ** 2, min(first.count, second.count)
    if count < LEAST:
        return ratio, None
    return ratio, False if ratio <= 1 else True if ratio > _beyond(count) else None


def _beyond(count: int) -> float:
    """The bound for so many replications, or for the next smaller number in the table."""
    return LARGER[max(n for n in LARGER if n <= count)]


def ratio_text(ratio: float | None, count: int) -> str:
    """The ratio of two variances in words."""
    if ratio is None:
        return "the ratio of the variances is not known"
    if count < LEAST:
        return f"the ratio of the variances is {ratio:.2g} ({count} replications tell nothing)"
    return f"the ratio of the variances is {ratio:.2g} (chance explains up to {_beyond(count):g}, {count} replications)"


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
