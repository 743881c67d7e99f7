"""Images in a row, each with words under it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from mcrepar.errors import ParameterError
from mcrepar.plots.style import light, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gallery(images: ArrayLike, captions: Sequence[str], title: str, columns: int = 6) -> Figure:
    """A grid of images.

    Args:
        images: uint8, (n, H, W, C) with one or three channels.
        captions: a text for each, lines parted by a newline.
        title: of the figure.
        columns: how many in a row.

    >>> figure = gallery(np.zeros((2, 8, 8, 1), np.uint8), ["a cat", "a dog"], "Animals")
    """
    pictures = np.asarray(images)
    if pictures.ndim != 4 or not len(pictures) or pictures.shape[3] not in (1, 3) or len(captions) != len(pictures):
        why = f"images have the shape {pictures.shape}, and there are {len(captions)} captions"
        raise ParameterError("gallery(images, captions)", why, "(n, H, W, 1 or 3), n > 0, and n captions")
    from matplotlib.figure import Figure

    rows = -(-len(pictures) // columns)
    height = 1.85 * rows + 0.4
    figure = Figure(figsize=(1.35 * columns, height))
    figure.subplots_adjust(0.01, 0.45 / height, 0.99, 1 - 0.4 / height, 0.08, 0.42)
    figure.suptitle(plain(title), x=0.01, ha="left", fontsize=11, fontweight="bold", color=light("ink"))
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid:
        axes.set_axis_off()
    for axes, picture, caption in zip(grid, pictures, captions, strict=False):
        shade = {"cmap": "gray", "vmin": 0, "vmax": 255} if picture.shape[2] == 1 else {}
        axes.imshow(picture.squeeze(2) if picture.shape[2] == 1 else picture, interpolation="nearest", **shade)
        axes.set_title(plain(caption), fontsize=7.5, color=light("ink"), y=-0.02, va="top", pad=0)
    return figure
