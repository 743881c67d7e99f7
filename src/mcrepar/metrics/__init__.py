"""Numbers that say how good a prediction is, and how well it knows: numpy arrays in, floats out (docs/metrics.md)."""

from mcrepar.metrics.classification import Reliability, accuracy, adaptive_ece, auc, brier, ece, nll, reliability
from mcrepar.metrics.detection import aupr, auroc, fpr_at_recall
from mcrepar.metrics.regression import interval_coverage, log_likelihood, rmse
from mcrepar.metrics.segmentation import VoxelCounts, dice
from mcrepar.metrics.selective import (
    THRESHOLDS,
    ConfidenceSet,
    augrc,
    aurc,
    confidence_sets,
    coverage_at_risk,
    risk_at_coverage,
    risk_coverage,
    wilson,
)
from mcrepar.metrics.summary import LEVELS, METRICS, MetricRow, classification, detection, regression, segmentation

__all__ = [
    "LEVELS",
    "METRICS",
    "THRESHOLDS",
    "ConfidenceSet",
    "MetricRow",
    "Reliability",
    "VoxelCounts",
    "accuracy",
    "adaptive_ece",
    "auc",
    "augrc",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "classification",
    "confidence_sets",
    "coverage_at_risk",
    "detection",
    "dice",
    "ece",
    "fpr_at_recall",
    "interval_coverage",
    "log_likelihood",
    "nll",
    "regression",
    "reliability",
    "risk_at_coverage",
    "risk_coverage",
    "rmse",
    "segmentation",
    "wilson",
]
