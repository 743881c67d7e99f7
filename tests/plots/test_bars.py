"""Bars and clouds hold the numbers they were given."""

import numpy as np
import pytest

from mcrepar import ParameterError, plots


def test_bars_of_reliability_are_accuracies_and_shares():
    figure = plots.reliability_diagram([0.5, 0.75], [0.75, 1.0], [0.6, 0.9], [0.5, 0.95], [4, 36])
    top, bottom = figure.axes
    assert sorted(bar.get_height() for bar in top.patches) == [0.5, 0.95]
    assert [bar.get_height() for bar in bottom.patches] == [0.1, 0.9]
    pale, strong = sorted(bar.get_alpha() for bar in top.patches)
    assert pale < 0.5 < strong  # four data say little
    confidence = [path.vertices[0, 1] for path in top.collections[0].get_paths()]
    assert confidence == [0.6, 0.9]


def test_histograms_are_shares_in_common_bins():
    rng = np.random.default_rng(0)
    known, outside = rng.uniform(0, 0.2, 1000), rng.uniform(0.1, 1.0, 50)
    stairs = plots.histograms({"known": known, "outside": outside}, "t", "x").axes[0].patches[1::2]
    for values, patch in zip((known, outside), stairs, strict=True):
        shares, edges, _ = patch.get_data()
        assert shares.sum() == pytest.approx(1)
        np.testing.assert_allclose(shares, np.histogram(values, edges)[0] / len(values))
    assert np.array_equal(stairs[0].get_data()[1], stairs[1].get_data()[1])


@pytest.mark.parametrize("values", [[0.0, 0.0], [3.0], [1.5, 1.6], [-1.0, 2.0], [0.1, np.nan]])
def test_histograms_of_any_numbers_hold_all_of_them(values):
    shares, _, _ = plots.histograms({"one": values}, "t", "x").axes[0].patches[0].get_data()
    assert shares.sum() == pytest.approx(1)


def test_predictions_that_miss_are_set_apart():
    y = np.linspace(0, 1, 10)
    figure = plots.predicted_against_true(y, y + 0.1, y - (np.arange(10) < 7) + 0.05, y + 1)
    inside, outside = figure.axes[0].get_lines()[:2]
    assert (len(inside.get_xdata()), len(outside.get_xdata())) == (7, 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: plots.histograms({}, "t", "x"),
        lambda: plots.histograms({"a": []}, "t", "x"),
        lambda: plots.histograms({"a": [np.nan]}, "t", "x"),
        lambda: plots.reliability_diagram([0.5], [1.0], [0.6], [0.5], [4, 36]),
        lambda: plots.predicted_against_true([], [], [], []),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(ParameterError):
        call()


@pytest.mark.parametrize(
    "figure",
    [
        plots.reliability_diagram([0.5, 0.75], [0.75, 1.0], [0.6, 0.9], [0.5, 0.95], [3, 97]),
        plots.histograms({"test": [0.1, 0.2], "out-of-distribution": [0.8, 0.9, 1.0]}, "Entropy", "nats"),
        plots.predicted_against_true([0.0, 1.0], [0.1, 0.8], [-0.5, 0.2], [0.6, 0.9]),
    ],
    ids=["reliability", "histograms", "intervals"],
)
def test_names_lie_inside_the_axes(figure):
    figure.canvas.draw()
    for axes in figure.axes:
        if axes.get_legend() is not None:
            box, room = axes.get_legend().get_window_extent(), axes.get_window_extent()
            assert room.x0 <= box.x0 <= box.x1 <= room.x1, (box, room)
