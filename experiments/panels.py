"""Figures of several panels in the common look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mcrepar.plots.style import dressed, light

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def panels(
    heads: Sequence[tuple[str, str, str]], size: tuple[float, float], **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side.

    Args:
        heads: title, label of x and label of y of every panel.
        size: of the figure in inches.
        **options: of matplotlib's subplots.

    >>> figure, (left, right) = panels([("One", "x", "y"), ("Other", "x", "")], (6, 3), sharey=True)
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1, len(heads), squeeze=False, **options)[0]
    for axes, (title, x, y) in zip(grid, heads, strict=True):
        dressed(axes, x, y, title)
        axes.tick_params(which="minor", labelsize=8.5, labelcolor=light("muted"), color=light("grid"))
        axes.tick_params("x", which="minor", labelbottom=False)  # side by side, those of a logarithm would touch
    return figure, list(grid)
