"""Pictures of predictions: arrays in, matplotlib figures out, written as PNG or as SVG in a page's own colours."""

from mcrepar.plots.bars import histograms, predicted_against_true, reliability_diagram
from mcrepar.plots.curves import (
    interval_calibration,
    risk_coverage,
    threshold_curve,
    training_curve,
    uncertainty_per_example,
)
from mcrepar.plots.gallery import gallery
from mcrepar.plots.segmentation import abstention_curve, overlay, structure_calibration
from mcrepar.plots.style import COLOURS, png, svg

__all__ = [
    "COLOURS",
    "abstention_curve",
    "gallery",
    "histograms",
    "interval_calibration",
    "overlay",
    "png",
    "predicted_against_true",
    "reliability_diagram",
    "risk_coverage",
    "structure_calibration",
    "svg",
    "threshold_curve",
    "training_curve",
    "uncertainty_per_example",
]
