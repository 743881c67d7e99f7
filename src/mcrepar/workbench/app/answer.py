"""What a view answers: sentences, figures, tables, images and code, as plain data that the page draws.

Colours are names that begin with @: the page takes them from its light or its dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Cell = str | float | int | bool | None
_DIGITS = 7  # of the numbers in a figure; tables keep all


@dataclass(frozen=True)
class Figure:
    """A plot: plotly traces and axes.

    Args:
        name: of the file when it is downloaded.
        title: above the plot.
        alt: what the plot shows, in a sentence, for those who cannot see it.
        traces: of plotly.
        x: the title of the horizontal axis.
        y: the title of the vertical axis.
        x_log: whether the horizontal axis is logarithmic.
        y_log: whether the vertical axis is.
        layout: anything else that plotly's layout takes.
    """

    name: str
    title: str
    alt: str
    traces: Sequence[dict[str, Any]]
    x: str = ""
    y: str = ""
    x_log: bool = False
    y_log: bool = False
    layout: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        axes = {}
        for key, title, log in (("xaxis", self.x, self.x_log), ("yaxis", self.y, self.y_log)):
            kind = "log" if log else "linear"
            # a zoom survives a new answer, unless the scale under it has changed
            axes[key] = {"title": {"text": title}, "type": kind, "uirevision": kind, **self.layout.get(key, {})}
        layout = {**self.layout, **axes}
        return {"name": self.name, "title": self.title, "alt": self.alt, "data": _plain(self.traces),
                "layout": _plain(layout)}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """The numbers behind a figure; what is downloaded as CSV."""

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        rows = [[_finite(cell) for cell in row] for row in self.rows]
        return {"name": self.name, "caption": self.caption, "header": list(self.header), "rows": rows}


@dataclass(frozen=True)
class Picture:
    """One small image, as a data URL, with what is written under it."""

    source: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Gallery:
    """Images in a row."""

    title: str
    pictures: Sequence[Picture]

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {"title": self.title, "pictures": [vars(picture) for picture in self.pictures]}


@dataclass(frozen=True)
class Answer:
    """All that a view shows for some settings.

    Args:
        headline: the result in a sentence.
        notes: further sentences.
        figures: plots.
        tables: the numbers.
        galleries: images.
        code: Python that does the same.
        banner: a warning above everything, such as that data were simulated.
    """

    headline: str
    notes: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    galleries: Sequence[Gallery] = ()
    code: str = ""
    banner: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON that any browser reads: no NaN, no infinity."""
        return {
            "headline": self.headline,
            "notes": list(self.notes),
            "figures": [figure.plain() for figure in self.figures],
            "tables": [table.plain() for table in self.tables],
            "galleries": [gallery.plain() for gallery in self.galleries],
            "code": self.code,
            "banner": self.banner,
        }


def line(name: str, x: Iterable[float], y: Iterable[float], colour: str, **more: Any) -> dict[str, Any]:
    """A trace of points joined by a line; `symbol` and `dash` tell lines apart without their colours."""
    symbol, dash, shape = more.pop("symbol", "circle"), more.pop("dash", "solid"), more.pop("shape", "linear")
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "dash": dash, "shape": shape, "width": 2},
        "marker": {"color": colour, "symbol": symbol, "size": 6},
    }
    return {**trace, **more}


def _plain(value: Any) -> Any:
    """Lists, dictionaries, strings and finite numbers of a few digits; what is not finite becomes a gap."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def _finite(cell: Cell) -> Cell:
    if isinstance(cell, float) and not math.isfinite(cell):
        return "infinite" if math.isinf(cell) else None
    return cell
