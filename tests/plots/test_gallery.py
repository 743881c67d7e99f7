"""Images in a grid."""

import numpy as np
import pytest

from mcrepar import ParameterError, plots


@pytest.mark.parametrize("channels", [1, 3])
def test_images_and_captions(channels):
    images = np.random.default_rng(0).integers(0, 256, (8, 5, 4, channels)).astype(np.uint8)
    figure = plots.gallery(images, [f"number {k}" for k in range(8)], "Title", columns=6)
    shown = [axes for axes in figure.axes if axes.images]
    assert len(shown) == 8
    for k, axes in enumerate(shown):
        np.testing.assert_array_equal(axes.images[0].get_array(), images[k].squeeze(2) if channels == 1 else images[k])
        assert axes.get_title() == f"number {k}"
    assert plots.png(figure)


@pytest.mark.parametrize(
    ("images", "captions"),
    [
        (np.zeros((0, 4, 4, 1)), []),
        (np.zeros((1, 4, 4)), ["a"]),
        (np.zeros((1, 4, 4, 2)), ["a"]),
        (np.zeros((1, 4, 4, 1)), []),
    ],
)
def test_bad_input_is_refused(images, captions):
    with pytest.raises(ParameterError, match="gallery"):
        plots.gallery(images, captions, "t")
