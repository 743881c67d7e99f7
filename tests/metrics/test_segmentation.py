"""Counts of voxels against the same numbers computed from all voxels at once, by torchmetrics' and our own formulas."""

import math

import numpy as np
import pytest

from mcrepar import ParameterError, metrics
from mcrepar.metrics import VoxelCounts, dice, segmentation

CLASSES = 3


def images(count=4, shape=(12, 13), seed=0):
    """Probabilities that are right more often than not, with entropies and a mutual information below them."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        y = rng.integers(0, CLASSES, shape)
        logits = rng.normal(0, 1.5, (CLASSES, *shape))
        np.put_along_axis(logits, y[None], np.take_along_axis(logits, y[None], 0) + 1.5, 0)
        p = np.exp(logits) / np.exp(logits).sum(0)
        entropy = -(p * np.log(p)).sum(0)
        found.append((p, y, entropy, entropy * rng.uniform(0.01, 0.5, shape)))
    return found


def counted(each):
    counts = VoxelCounts(CLASSES)
    for one in each:
        counts.add(*one)
    return counts


def together(each):
    """All voxels in a row: probabilities (voxels, classes), y, entropy, mutual information."""
    p = np.concatenate([one[0].reshape(CLASSES, -1).T for one in each])
    return p, *(np.concatenate([one[k].ravel() for one in each]) for k in (1, 2, 3))


def test_dice_by_hand():
    label, y = np.array([[1, 1, 0], [2, 0, 0]]), np.array([[1, 0, 0], [2, 2, 0]])
    assert dice(label, y, 1) == pytest.approx(2 * 1 / (2 + 1))
    assert dice(label, y, 2) == pytest.approx(2 * 1 / (1 + 2))
    assert math.isnan(dice(label, y, 3))
    assert dice([1, 1], [0, 0]) == 0
    with pytest.raises(ParameterError, match="the shapes are"):
        dice([1, 1], [1])


def test_scores_are_those_of_all_voxels():
    each = images()
    scores, (p, y, entropy, mutual) = segmentation(counted(each)), together(each)
    wrong = p.argmax(1) != y
    assert scores["voxel_accuracy"] == pytest.approx(1 - wrong.mean())
    assert scores["nll"] == pytest.approx(metrics.nll(p, y))
    assert scores["ece"] == pytest.approx(metrics.ece(p, y))
    assert scores["entropy"] == pytest.approx(entropy.mean())
    assert scores["mutual_information"] == pytest.approx(mutual.mean())
    assert scores["error_auroc"] == pytest.approx(metrics.auroc(entropy[~wrong], entropy[wrong]), abs=2e-3)  # in bins
    near = (p.argmax(1) > 0) | (y > 0)
    expected = metrics.auroc(entropy[~wrong & near], entropy[wrong & near])
    assert scores["error_auroc_foreground"] == pytest.approx(expected, abs=2e-3)
    expected = metrics.auroc(mutual[~wrong], mutual[wrong])
    assert scores["error_auroc_mutual_information"] == pytest.approx(expected, abs=2e-3)
    assert set(scores) <= set(metrics.METRICS)


def test_dice_is_a_mean_over_images_and_structures():
    each = images()
    counts = counted(each)
    rows = np.array([[dice(p.argmax(0), y, c) for c in range(CLASSES)] for p, y, _, _ in each])
    assert np.array_equal(counts.by_image, rows)
    assert counts.dice_of(2) == pytest.approx(rows[:, 2].mean())
    assert counts.dice == pytest.approx(rows[:, 1:].mean())


def test_an_absent_structure_has_no_dice():
    p = np.stack([np.full(4, 0.98), np.full(4, 0.02), np.zeros(4)])
    counts = VoxelCounts(3)
    counts.add(p, np.zeros(4, int), np.zeros(4), np.zeros(4))
    assert (counts.dice_of(1), counts.dice, counts.ece_of(2)) == (None, None, None)
    scores = segmentation(counts)
    assert "dice" not in scores
    assert "error_auroc" not in scores  # no voxel is wrong
    assert scores["voxel_accuracy"] == 1


def test_the_calibration_of_a_structure_by_hand():
    """p of 0.25 on four voxels, one of them true: calibrated; voxels below 1 % do not count."""
    p = np.array([0.25, 0.25, 0.25, 0.25, 0.005])
    counts = VoxelCounts(2)
    counts.add(np.stack([1 - p, p]), [1, 0, 0, 0, 1], np.full(5, 0.5), np.zeros(5))
    assert counts.ece_of(1) == pytest.approx(0)
    assert counts.calibration(1).count.tolist() == [4]
    counts.add(np.stack([1 - p, p]), [0, 0, 0, 0, 0], np.full(5, 0.5), np.zeros(5))
    assert counts.ece_of(1) == pytest.approx(0.125)


def test_the_abstention_curve_is_that_of_risk_and_coverage():
    each = images(count=2)
    curve, (p, y, entropy, _) = counted(each).abstention(), together(each)
    label = p.argmax(1)
    coverage, risk = metrics.risk_coverage(-entropy, label != y)
    assert curve["error"] == pytest.approx(np.interp(curve["coverage"], coverage, risk), abs=0.02)
    assert curve["coverage"][-1] == 1
    assert curve["error"][-1] == pytest.approx((label != y).mean())
    assert curve["dice_1"][-1] == pytest.approx(dice(label, y, 1))
    half = int(np.searchsorted(curve["coverage"], 0.5))
    kept = np.argsort(entropy)[: round(curve["coverage"][half] * len(y))]
    assert curve["dice_1"][half] == pytest.approx(dice(label[kept], y[kept], 1), abs=1e-9)
    counts = counted(each)
    assert counts.at_coverage("error", 1.0) == curve["error"][-1]
    assert counts.at_coverage("error", 0.5) < curve["error"][-1]


def test_what_does_not_fit_is_refused():
    p, y, entropy, mutual = images(1)[0]
    with pytest.raises(ParameterError, match="the shapes are"):
        VoxelCounts(2).add(p, y, entropy, mutual)
    with pytest.raises(ParameterError, match="the shapes are"):
        VoxelCounts(CLASSES).add(p, y[:5], entropy, mutual)
    with pytest.raises(ParameterError, match="y goes from 0 to 3"):
        VoxelCounts(CLASSES).add(p, np.where(y == 2, 3, y), entropy, mutual)
