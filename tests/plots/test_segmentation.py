import numpy as np
import pytest

from mcrepar import plots
from mcrepar.errors import ParameterError

CLASSES = ("background", "organ", "a $lesion")


def slices(shape=(10, 14)):
    rng = np.random.default_rng(0)
    truth = np.zeros(shape, np.uint8)
    truth[2:6, 3:9] = 1
    label = truth.copy()
    label[2, 3] = 2
    return rng.integers(0, 255, shape), truth, label, rng.random(shape), 0.1 * rng.random(shape)


def test_five_panels_show_a_slice():
    figure = plots.overlay(*slices(), CLASSES, "an image")
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels][:3] == ["true structures", "segmentation", "wrong voxels"]
    assert len(panels) == 5
    wrong = panels[2].images[1].get_array()
    assert (wrong[..., 3] > 0).sum() == 1  # the one voxel that is wrong
    assert [len(axes.images) for axes in panels] == [1, 1, 2, 2, 2]
    assert plots.png(figure, 50)[1:4] == b"PNG"
    assert "<image" in plots.svg(figure, "a slice", "slice")


def test_a_slice_without_structures_or_errors():
    zeros = np.zeros((6, 5))
    assert plots.png(plots.overlay(zeros, zeros, zeros, zeros, zeros, CLASSES, "nothing"), 50)[1:4] == b"PNG"


def test_slices_of_different_shapes_are_refused():
    parts = list(slices())
    parts[3] = parts[3][:5]
    with pytest.raises(ParameterError, match="slices of one shape"):
        plots.overlay(*parts, CLASSES, "an image")


def test_curves_of_structures():
    (axes,) = plots.structure_calibration({"organ": ([0.1, 0.9], [0.2, 0.8]), "none": ([], [])}).axes
    assert [line.get_label() for line in axes.lines] == ["calibrated", "organ"]
    assert axes.lines[1].get_ydata().tolist() == [0.2, 0.8]
    (axes,) = plots.abstention_curve([0.5, 1.0], {"organ": [0.9, 0.8], "lesion": [np.nan, 0.5]}).axes
    assert axes.lines[0].get_ydata().tolist() == [0.9, 0.8]
    with pytest.raises(ParameterError, match="no line to draw"):
        plots.abstention_curve([0.5, 1.0], {})
