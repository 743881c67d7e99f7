"""One look for every figure, and the two ways to write one down.

matplotlib is imported inside the functions: this module is cheap to import.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcrepar.errors import ParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By name: the colour on a light page, and the one on a dark page. Figures are drawn in the first; `svg` names them.
COLOURS: Mapping[str, tuple[str, str]] = {
    "ink": ("#1d232b", "#e7eaef"),
    "muted": ("#5c6775", "#a3adba"),
    "grid": ("#e4e7eb", "#333b46"),
    "blue": ("#2264c7", "#7db2ff"),
    "orange": ("#b84f06", "#ffa35c"),
    "green": ("#13804a", "#5fd39a"),
    "violet": ("#7a42c9", "#c3a2ff"),
    "red": ("#b8304a", "#ff8a9b"),
}
DARK_PAPER = "#14181d"
SERIES = ("blue", "orange", "green", "violet", "red")
SIZE = (4.5, 3.1)  # inches
MARGINS = {"left": 0.74, "right": 0.27, "bottom": 0.5, "top": 0.36}  # inches around the axes, the same in all figures
MOST_POINTS = 400  # of a line, beyond which no eye sees more


def light(name: str) -> str:
    """The colour of this name on a light page."""
    return COLOURS[name][0]


def panel(title: str, x: str, y: str, size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes in the common look.

    Args:
        title: above it, at the left.
        x: the label of the x axis.
        y: the label of the y axis.
        size: in inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    framed(figure)
    return figure, dressed(figure.add_subplot(), x, y, title)


def framed(figure: Figure, **spaces: float) -> None:
    """Margins of a fixed width around the axes: a layout engine would measure every text twice.

    Args:
        figure: to change.
        **spaces: between its axes, as matplotlib's subplots_adjust takes them.
    """
    width, height = figure.get_size_inches()
    left, bottom = MARGINS["left"] / width, MARGINS["bottom"] / height
    right, top = 1 - MARGINS["right"] / width, 1 - MARGINS["top"] / height
    figure.subplots_adjust(left, bottom, right, top, **spaces)


def dressed(axes: Axes, x: str, y: str, title: str = "") -> Axes:
    """The axes in the common look: a light grid, no box.

    Args:
        axes: to change.
        x: the label of the x axis.
        y: the label of the y axis.
        title: above it, at the left.
    """
    axes.set_facecolor("none")
    axes.set_title(plain(title), loc="left", fontsize=10.5, fontweight="bold", color=light("ink"), pad=8)
    axes.set_xlabel(plain(x), fontsize=9, color=light("muted"))
    axes.set_ylabel(plain(y), fontsize=9, color=light("muted"))
    axes.tick_params(labelsize=8.5, labelcolor=light("muted"), color=light("grid"), length=3)
    axes.grid(True, color=light("grid"), linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(light("grid"))
    return axes


def legend(axes: Axes, **options: Any) -> None:
    """The names of the lines, where there is more than one.

    Args:
        axes: whose lines.
        **options: of matplotlib's legend.
    """
    if len(axes.get_legend_handles_labels()[1]) > 1:
        box = axes.legend(fontsize=8.5, frameon=False, labelcolor=light("ink"), **options)
        box.set_zorder(5)


def percent(axis: Any) -> None:
    """Ticks of shares as percentages, with as many digits as each needs: 97.5 % is not 98 %.

    Args:
        axis: axes.xaxis or axes.yaxis.
    """
    axis.set_major_formatter(lambda share, _: f"{round(100 * share, 6):g} %")


def thinned(*columns: NDArray[Any]) -> list[NDArray[Any]]:
    """At most 400 rows of columns of one length, the first and the last among them.

    Args:
        *columns: arrays of one length.

    >>> [len(c) for c in thinned(np.arange(10_000), np.arange(10_000))]
    [400, 400]
    """
    n = len(columns[0])
    keep = np.unique(np.linspace(0, n - 1, min(n, MOST_POINTS)).round().astype(int))
    return [column[keep] for column in columns]


def line(asked: str, **named: ArrayLike) -> list[NDArray[np.float64]]:
    """Arrays of one length that a line can be drawn through; values that are not finite leave a gap.

    Args:
        asked: the call, for the error.
        **named: the arrays by the name of their argument.
    """
    arrays = [np.asarray(value, dtype=np.float64) for value in named.values()]
    shapes = {name: array.shape for name, array in zip(named, arrays, strict=True)}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 or not shape[0] for shape in shapes.values()):
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ParameterError(asked, f"the shapes are {found}", "arrays of one shape (n,), n > 0")
    return arrays


def plain(text: str) -> str:
    """Text of which matplotlib reads no part as mathematics.

    Args:
        text: of a user.
    """
    shown = f" {text}" if text.startswith("_") else text  # of which it makes no legend
    return shown.replace("$", r"\$")


def png(figure: Figure, dpi: int = 160, dark: bool = False) -> bytes:
    """The figure as a PNG, on white or in the colours of a dark page.

    Args:
        figure: to write; it stays as it is.
        dpi: dots per inch.
        dark: whether the page is dark.

    >>> png(panel("A title", "x", "y")[0], dpi=50)[1:4]
    b'PNG'
    """
    buffer = io.BytesIO()
    with _quiet(), _recoloured(figure) if dark else nullcontext():
        paper = DARK_PAPER if dark else "white"
        figure.savefig(buffer, format="png", dpi=dpi, facecolor=paper, metadata={"Software": None})
    return buffer.getvalue()


@contextmanager
def _recoloured(figure: Figure) -> Iterator[None]:
    """The colours of a light page exchanged for those of a dark one, in every part of a figure, for a while."""
    from matplotlib.colors import to_rgba_array

    there = {tuple(to_rgba_array(here)[0, :3]): to_rgba_array(dark)[0, :3] for here, dark in COLOURS.values()}
    before: list[tuple[Callable[[Any], object], Any]] = []
    for artist in figure.findobj():
        for part in ("color", "facecolor", "edgecolor"):
            get, put = (getattr(artist, f"{verb}_{part}", None) for verb in ("get", "set"))
            if get is None or put is None or (part == "color" and hasattr(artist, "get_facecolor")):
                continue
            old = get()
            new = np.array([[*there.get(tuple(row[:3]), row[:3]), row[3]] for row in to_rgba_array(old)]).reshape(-1, 4)
            if not np.array_equal(new, to_rgba_array(old)):  # to set a colour again may show what was transparent
                before.append((put, old))
                put(new if len(new) > 1 else tuple(new[0]))
    try:
        yield
    finally:
        for put, old in before:
            put(old)


def svg(figure: Figure, label: str, prefix: str) -> str:
    """The figure as an <svg> element for a page, its colours being the page's variables --ink, --blue and so on.

    Text stays text, and nothing outside the element is asked for.

    Args:
        figure: to write.
        label: what it shows, for those who cannot see it.
        prefix: a name of its own, from which the ids are made, so that no two figures of a page share one.

    >>> svg(panel("A title", "x", "y")[0], "nothing yet", "first")[:4]
    '<svg'
    """
    import html

    import matplotlib as mpl

    buffer = io.StringIO()
    with _quiet(), mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    opening = f'<svg {view[0]} role="img" aria-label="{html.escape(label)}">'
    text = opening + text[text.index(">") + 1 :]
    text = re.sub(r'(<g) id="[^"]*"', r"\1", text)  # names of groups, the same in every figure
    for name, (colour, _) in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    return text.strip()


@contextmanager
def _quiet() -> Iterator[None]:
    """A name in letters that the font lacks is drawn as boxes; that is no reason to stop."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def coloured(series: Sequence[str]) -> list[tuple[str, str]]:
    """A colour for each name.

    Args:
        series: at most as many as there are colours; more begin again.

    >>> coloured(["a", "b"])
    [('a', '#2264c7'), ('b', '#b84f06')]
    """
    return [(plain(name), light(SERIES[k % len(SERIES)])) for k, name in enumerate(series)]
