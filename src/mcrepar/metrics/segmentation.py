"""How good segmentations are, and whether their uncertainty marks their errors: counts that add up over images.

Only counts are kept, so that volumes of any number need no more memory than one. Voxels are ordered by their entropy or
mutual information in 2,000 bins, each 1 % wider than the one before; within a bin they count as equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcrepar.errors import ParameterError
from mcrepar.metrics.classification import LEAST, Reliability
from mcrepar.metrics.inputs import Floats, Ints

BINS = 15  # of probabilities
STEPS = 2000  # bins of an uncertainty, from 1e-9 to its largest value
CANDIDATE = 0.01  # voxels of at least this probability count for the calibration of a structure


def dice(label: ArrayLike, y: ArrayLike, structure: int = 1) -> float:
    """How much a structure and its segmentation overlap, from 0 to 1; NaN where neither has a voxel of it.

    2 |A and B| / (|A| + |B|)

    Args:
        label: the predicted classes, of any shape.
        y: the right ones.
        structure: its class.

    >>> dice([0, 1, 1, 1], [0, 0, 1, 1])
    0.8
    """
    a, b = np.asarray(label) == structure, np.asarray(y) == structure
    if a.shape != b.shape:
        raise ParameterError("dice(label, y)", f"the shapes are {a.shape} and {b.shape}", "arrays of one shape")
    size = int(a.sum()) + int(b.sum())
    return 2 * int((a & b).sum()) / size if size else math.nan


@dataclass
class _Order:
    """Voxels by their uncertainty, from the most certain bin to the least: how many, and how many are wrong."""

    most: float
    count: Ints
    wrong: Ints

    @classmethod
    def empty(cls, most: float) -> _Order:
        return cls(most, np.zeros(STEPS, np.int64), np.zeros(STEPS, np.int64))

    def bins(self, score: NDArray[Any]) -> Ints:
        with np.errstate(divide="ignore"):
            place = np.floor((np.log10(score / self.most) / 9 + 1) * STEPS)
        return np.clip(place, 0, STEPS - 1).astype(np.int64)

    def add(self, place: Ints, wrong: NDArray[np.bool_]) -> None:
        self.count += np.bincount(place, minlength=STEPS)
        self.wrong += np.bincount(place[wrong], minlength=STEPS)

    @property
    def auroc(self) -> float | None:
        """The probability that a wrong voxel is less certain than a right one; None where one kind is absent."""
        right = self.count - self.wrong
        if not right.sum() or not self.wrong.sum():
            return None
        below = np.cumsum(right) - right / 2
        return float(self.wrong @ below / (float(right.sum()) * float(self.wrong.sum())))


class VoxelCounts:
    """What is counted of predicted voxels, image by image.

    Args:
        classes: how many; 0 is the background, the others are structures.

    >>> counts = VoxelCounts(2)
    >>> counts.add([[0.9, 0.4], [0.1, 0.6]], [0, 1], [0.33, 0.67], [0.0, 0.1])
    >>> counts.dice_of(1), counts.accuracy
    (1.0, 1.0)
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.voxels, self.right = 0, 0
        self.nll, self.entropy, self.mutual_information = 0.0, 0.0, 0.0  # sums
        self.by_image: list[list[float]] = []  # Dice of the classes
        self.reliability = np.zeros((classes + 1, 3, BINS))  # classes and the largest: voxels, probability, truth
        most = math.log(classes)
        self.orders = {name: _Order.empty(most) for name in ("entropy", "mutual_information", "foreground")}
        self.overlap = np.zeros((3, classes, STEPS), np.int64)  # by entropy: both, predicted, true

    def add(self, probs: ArrayLike, y: ArrayLike, entropy: ArrayLike, mutual_information: ArrayLike) -> None:
        """Count an image.

        Args:
            probs: mean probabilities, (classes, ...).
            y: the right classes, (...).
            entropy: of every voxel, (...).
            mutual_information: of every voxel, (...).
        """
        p = np.asarray(probs).reshape(len(np.asarray(probs)), -1)
        right = np.asarray(y).reshape(-1).astype(np.int64)
        doubt, weights = (np.asarray(v).reshape(-1) for v in (entropy, mutual_information))
        if len(p) != self.classes or not len(right) == p.shape[1] == len(doubt) == len(weights):
            shapes = f"probs {p.shape}, y {right.shape}, entropy {doubt.shape}, mutual information {weights.shape}"
            raise ParameterError("VoxelCounts.add", f"the shapes are {shapes}", f"{self.classes} classes of one image")
        if right.min() < 0 or right.max() >= self.classes:
            why = f"y goes from {right.min()} to {right.max()}"
            raise ParameterError("VoxelCounts.add", why, f"classes from 0 to {self.classes - 1}")
        label, truth = p.argmax(0), np.take_along_axis(p, right[None], 0)[0]
        wrong = label != right
        self.voxels += len(right)
        self.right += int((~wrong).sum())
        self.nll -= float(np.log(np.maximum(truth, LEAST), dtype=np.float64).sum())
        self.entropy += float(doubt.sum(dtype=np.float64))
        self.mutual_information += float(weights.sum(dtype=np.float64))
        self.by_image.append([dice(label, right, c) for c in range(self.classes)])
        for c in range(self.classes):
            near = p[c] >= CANDIDATE
            self._calibrate(c, p[c][near], right[near] == c)
        self._calibrate(self.classes, p.max(0), ~wrong)
        self._order(label, right, wrong, doubt, weights)

    def _calibrate(self, row: int, p: NDArray[Any], hit: NDArray[np.bool_]) -> None:
        place = np.clip(np.ceil(p * BINS) - 1, 0, BINS - 1).astype(np.int64)
        for k, values in enumerate((None, p, hit)):
            self.reliability[row, k] += np.bincount(place, values, minlength=BINS)

    def _order(
        self, label: Ints, right: Ints, wrong: NDArray[np.bool_], doubt: NDArray[Any], weights: NDArray[Any]
    ) -> None:
        place = self.orders["entropy"].bins(doubt)
        self.orders["entropy"].add(place, wrong)
        self.orders["mutual_information"].add(self.orders["mutual_information"].bins(weights), wrong)
        near = (label > 0) | (right > 0)
        self.orders["foreground"].add(place[near], wrong[near])
        for c in range(self.classes):
            for k, mask in enumerate(((label == c) & (right == c), label == c, right == c)):
                self.overlap[k, c] += np.bincount(place[mask], minlength=STEPS)

    @property
    def accuracy(self) -> float:
        """The share of right voxels."""
        return self.right / self.voxels

    @property
    def structures(self) -> range:
        """The classes other than the background."""
        return range(1, self.classes)

    def dice_of(self, structure: int) -> float | None:
        """The mean over the images in which it is, or is found; None where there is none."""
        values = [row[structure] for row in self.by_image if not math.isnan(row[structure])]
        return sum(values) / len(values) if values else None

    @property
    def dice(self) -> float | None:
        """The mean over the structures."""
        return _mean([self.dice_of(c) for c in self.structures])

    def calibration(self, row: int) -> Reliability:
        """Probability against frequency of a class, over the voxels to which it gives at least 1 %.

        Args:
            row: the class; `classes` is the largest probability, over all voxels.
        """
        count, p, hit = self.reliability[row]
        used = np.flatnonzero(count)
        n = count[used]
        return Reliability(used / BINS, (used + 1) / BINS, p[used] / n, hit[used] / n, n.astype(np.int64))

    def ece_of(self, row: int) -> float | None:
        """The expected calibration error of a class; see `calibration`."""
        return self.calibration(row).ece if self.reliability[row, 0].sum() else None

    @property
    def structure_ece(self) -> float | None:
        """The mean over the structures."""
        return _mean([self.ece_of(c) for c in self.structures])

    def abstention(self) -> dict[str, Floats]:
        """What is left if the least certain voxels are given to a person: error rate and Dice against coverage.

        coverage: the share of voxels that is left; error: of them; dice_1, ...: of the structures, over all images.
        """
        order = self.orders["entropy"]
        kept = np.flatnonzero(order.count)
        count = np.cumsum(order.count)[kept]
        both, predicted, true = (np.cumsum(part, 1)[:, kept] for part in self.overlap)
        with np.errstate(invalid="ignore"):
            shares = 2 * both / (predicted + true)
        found = {"coverage": count / self.voxels, "error": np.cumsum(order.wrong)[kept] / count}
        return found | {f"dice_{c}": shares[c] for c in self.structures}

    def at_coverage(self, name: str, coverage: float) -> float:
        """A column of the abstention curve at the strictest threshold that leaves at least this share of the voxels."""
        curve = self.abstention()
        return float(curve[name][int(np.argmax(curve["coverage"] >= coverage - 1e-12))])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
