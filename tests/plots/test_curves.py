"""Lines hold the numbers they were given."""

import numpy as np
import pytest

from mcrepar import ParameterError, plots


def curves(figure):
    return {str(drawn.get_label()): drawn.get_xydata() for drawn in figure.axes[0].get_lines()}


def test_training_curves_leave_gaps_out():
    figure = plots.training_curve([1, 2, 3], {"training": [3, 2, 1], "validation": [np.nan, 2.5, 2]}, "Loss", "nats")
    drawn = curves(figure)
    np.testing.assert_array_equal(drawn["training"], [[1, 3], [2, 2], [3, 1]])
    np.testing.assert_array_equal(drawn["validation"], [[2, 2.5], [3, 2]])
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["training", "validation"]


def test_a_long_training_is_thinned_and_an_empty_series_is_no_problem():
    epochs = np.arange(10_000)
    drawn = curves(plots.training_curve(epochs, {"a": epochs * 2.0, "b": epochs * np.nan}, "Loss", "nats"))
    assert len(drawn["a"]) == 400
    assert len(drawn["b"]) == 0


def test_a_threshold_curve_is_constant_to_the_left_of_a_confidence():
    figure = plots.threshold_curve([0.6, 0.9, 1.0], [0.8, 0.9, 1.0], "Right", "share", [0.7, 0.8, 0.9], [0.9, 1, 1])
    steps = figure.axes[0].get_lines()[0]
    assert steps.get_drawstyle() == "steps-pre"
    np.testing.assert_array_equal(steps.get_xydata(), [[0.5, 0.8], [0.6, 0.8], [0.9, 0.9], [1.0, 1.0]])
    bottom, top = figure.axes[0].get_ylim()
    assert bottom < 0.7
    assert top > 1
    assert plots.threshold_curve([0.9], [np.nan], "t", "y").axes[0].get_ylim()[0] == 0
    assert plots.threshold_curve([0.9], [0.99], "t", "y", floor=0.0).axes[0].get_ylim()[0] == 0


def test_risk_coverage_shows_the_best_order():
    coverage = np.arange(1, 101) / 100
    figure = plots.risk_coverage(coverage, np.full(100, 0.2))
    best = curves(figure)["perfect order"]
    np.testing.assert_allclose(best[:80, 1], 0, atol=1e-12)
    assert best[-1, 1] == pytest.approx(0.2)
    assert "5 % errors" in curves(figure)
    assert "5 % errors" not in curves(plots.risk_coverage(coverage, np.full(100, 0.001)))


def test_interval_calibration():
    drawn = curves(plots.interval_calibration([0.5, 0.9], [0.4, 0.8]))
    np.testing.assert_array_equal(drawn["this model"], [[0.5, 0.4], [0.9, 0.8]])


@pytest.mark.parametrize(
    "call",
    [
        lambda: plots.training_curve([1], {}, "t", "y"),
        lambda: plots.training_curve([1, 2], {"a": [1]}, "t", "y"),
        lambda: plots.threshold_curve([], [], "t", "y"),
        lambda: plots.threshold_curve([0.5], [1.0], "t", "y", [0.1, 0.2], [0.3, 0.4]),
        lambda: plots.risk_coverage([0.5], [0.1, 0.2]),
        lambda: plots.interval_calibration([], []),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(ParameterError):
        call()


def test_uncertainties_are_stacked_from_the_most_certain_example_on():
    """The upper edge of the second area is the sorted sum; a constant uncertainty of 0 is drawn too."""
    aleatoric, epistemic = np.array([0.5, 0.1, 0.2]), np.array([0.1, 0.0, 0.7])
    axes = plots.uncertainty_per_example(aleatoric, epistemic, "nats").axes[0]
    lower, upper = (area.get_paths()[0].vertices[:, 1] for area in axes.collections)
    assert lower.max() == pytest.approx(0.5)
    assert sorted({round(float(v), 6) for v in upper} & {0.1, 0.6, 0.9}) == [0.1, 0.6, 0.9]
    assert axes.get_ylim()[1] > 0.9
    plots.uncertainty_per_example([0.0], [0.0], "nats")
    with pytest.raises(ParameterError, match="shapes"):
        plots.uncertainty_per_example([0.0, 1.0], [0.0], "nats")
