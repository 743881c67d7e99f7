"""The paper's Table 1, judged: every claimed pair with its verdict, from the two tables, as text, Markdown or JSON."""

from __future__ import annotations

import dataclasses
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcrepar.distributions.posterior import PosteriorRow
from mcrepar.distributions.posteriors import POSTERIORS, posterior
from mcrepar.distributions.prior import PriorRow
from mcrepar.distributions.priors import PRIORS, prior
from mcrepar.divergence.plan import explain
from mcrepar.divergence.reasons import VERDICTS
from mcrepar.errors import ParameterError


@dataclass(frozen=True)
class Cell:
    """One pair of Table 1."""

    posterior: str  # its name, with the value of a fixed parameter where that matters
    prior: str  # its name
    group: str  # the row of Table 1, "" for a pair that the paper does not list
    claimed: bool  # whether the paper claims a tuple for it
    verdict: str  # ours
    methods: tuple[str, ...]  # those that apply
    default: str | None  # what auto takes
    reason: str  # one sentence
    note: str  # "infinite variance" or the kernel's verdict, where there is one
    has_tuple: bool  # whether it has a tuple of a size independent of M, whether the KL is finite or not
    finite: bool  # whether the KL is finite
    otherwise: str = ""  # the verdict with default parameters, where another is given for the generic ones


def table1(everything: bool = False) -> list[Cell]:
    """The 158 pairs that the paper claims; with `everything` all pairs of the two tables, defaults beside raw ones."""
    cells = []
    for q in POSTERIORS.values():
        for p in PRIORS.values():
            claimed = bool(q.group) and q.group in p.groups
            if claimed or everything:
                cells.append(_cell(q, q.generic, p, claimed))
                if everything and q.generic:
                    cells.append(_cell(q, {}, p, False))
    return cells


def _cell(q: PosteriorRow, fixed: Mapping[str, Any], p: PriorRow, claimed: bool) -> Cell:
    template = posterior(q.name, **fixed)
    plan = explain(template, prior(p.name, **dict(p.generic)))
    note = "infinite variance" if plan.infinite_variance else ""
    if p.kernel and not plan.finite:
        kernel = explain(template, prior(p.name, improper=True)).verdict
        note = f"kernel: {kernel}" if not kernel.startswith("INF") else ""
    details = ", ".join(f"{k}={v}" for k, v in fixed.items())
    name = f"{q.name}({details})" if details else q.name
    return Cell(
        name,
        p.name,
        q.group if claimed else "",
        claimed,
        plan.verdict,
        plan.methods,
        plan.method,
        plan.reason,
        note,
        plan.has_tuple,
        plan.finite,
        _otherwise(q, fixed, p, plan.verdict),
    )


def _otherwise(q: PosteriorRow, fixed: Mapping[str, Any], p: PriorRow, verdict: str) -> str:
    """The verdict on the defaults, where it differs from that on the values with which the table is judged."""
    usual = explain(q.name, p.name).verdict
    if usual == verdict or not (fixed or p.generic):
        return ""
    defaults = [(f"the {side}'s {x.name}", x.default) for side, parameters, judged in
                (("posterior", q.fixed, fixed), ("prior", p.parameters, p.generic)) for x in parameters
                if x.name in judged]  # fmt: skip
    return f"{usual} with {' and '.join(f'{name} = {value:.4g}' for name, value in defaults)}"


# ---- as text


def render_table(cells: Sequence[Cell], fmt: str = "text", *, width: int = 100, colour: bool = False) -> str:
    """One matrix of verdicts per group, posteriors down and priors across, then the legend and the score.

    Args:
        cells: one per pair; a pair that the paper does not claim stands in parentheses.
        fmt: "text", "md" or "json" (every field of every cell, and the counts).
        width: of the text; a wider matrix is continued below.
        colour: whether the text is coloured for a terminal (needs rich).
    """
    if fmt == "json":
        return json.dumps({"score": score(cells), "cells": [dataclasses.asdict(cell) for cell in cells]}, indent=2)
    if fmt == "md":
        return _join(cells, _matrices(cells), _markdown)
    if fmt == "text":
        blocks = (block for matrix in _matrices(cells) for block in matrix.split(width))
        return _join(cells, blocks, _rich if colour else _plain)
    raise ParameterError(f"--format {fmt}", "there is no such format", "text, md or json")


def score(cells: Sequence[Cell]) -> dict[str, int]:
    """How many pairs the paper claims, how many have a tuple, a finite KL, both, and how many have each verdict.

    >>> score([])
    {'claimed': 0, 'tuple': 0, 'finite': 0, 'both': 0}
    """
    claimed = [cell for cell in cells if cell.claimed]
    counts = Counter(cell.verdict for cell in claimed)
    return {
        "claimed": len(claimed),
        "tuple": sum(cell.has_tuple for cell in claimed),
        "finite": sum(cell.finite for cell in claimed),
        "both": sum(cell.has_tuple and cell.finite for cell in claimed),
        **{verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
    }


def score_line(cells: Sequence[Cell]) -> str:
    """The score in one sentence."""
    counts = score(cells)
    parts = {True: [], False: []}  # type: dict[bool, list[str]]
    for code, verdict in VERDICTS.items():
        if code in counts:
            label = code if verdict.right else verdict.meaning
            parts[verdict.right].append(f"{label} {counts[code]}")
    detail = f" ({', '.join(parts[True])})" if parts[True] else ""
    return "; ".join([
        f"paper: {counts['claimed']} pairs claimed",
        f"{counts['tuple']} have a tuple of fixed size, {counts['finite']} a finite KL, {counts['both']} both{detail}",
        *([", ".join(parts[False])] if parts[False] else []),
    ])  # fmt: skip


@dataclass(frozen=True)
class _Matrix:
    """A group of Table 1: verdicts with posteriors down and priors across."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def widths(self) -> list[int]:
        return [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]

    def split(self, width: int) -> Iterator[_Matrix]:
        """The matrix in pieces that fit `width`, each with the column of names."""
        first, *others = self.widths
        start, used = 1, first
        for column, size in enumerate(others, start=1):
            if used + size + 2 > width and column > start:
                yield self._columns(start, column)
                start, used = column, first
            used += size + 2
        yield self._columns(start, len(self.header))

    def _columns(self, start: int, stop: int) -> _Matrix:
        title = self.title if start == 1 else f"{self.title} (continued)"
        rows = tuple((row[0], *row[start:stop]) for row in self.rows)
        return _Matrix(title, (self.header[0], *self.header[start:stop]), rows)


def _matrices(cells: Sequence[Cell]) -> Iterator[_Matrix]:
    for group in dict.fromkeys(cell.group for cell in cells):
        inside = [cell for cell in cells if cell.group == group]
        priors = list(dict.fromkeys(cell.prior for cell in inside))
        codes = {(c.posterior, c.prior): _code(c) for c in inside}
        rows = tuple(
            (posterior, *(codes.get((posterior, prior), "") for prior in priors))
            for posterior in dict.fromkeys(cell.posterior for cell in inside)
        )
        yield _Matrix(group, ("posterior \\ prior", *priors), rows)


def _code(cell: Cell) -> str:
    mark = "*" if cell.note.startswith("kernel") else "v" if cell.note else ""
    mark += "+" if cell.has_tuple and not cell.finite else ""
    return f"{cell.verdict}{mark}" if cell.claimed else f"({cell.verdict}{mark})"


def _join(cells: Sequence[Cell], matrices: Iterable[_Matrix], draw: Callable[[_Matrix], str]) -> str:
    present = {cell.verdict for cell in cells}
    legend = [f"{code}: {verdict.meaning}" for code, verdict in VERDICTS.items() if code in present]
    legend.append("v: finite KL, but infinite Monte Carlo variance")
    legend.append("*: right for the improper kernel of the prior")
    legend.append("+: has a tuple of fixed size, though the KL is infinite")
    if not all(cell.claimed for cell in cells):
        legend.append("( ): not claimed by the paper")
    others = [f"{c.posterior.partition('(')[0]} x {c.prior} is {c.otherwise}" for c in cells if c.otherwise]
    notes = [f"With other values: {'; '.join(others)}."] if others else []
    return "\n\n".join([*map(draw, matrices), "; ".join(legend) + ".", *notes, score_line(cells) + "."])


def _markdown(matrix: _Matrix) -> str:
    lines = [matrix.header, ("---",) * len(matrix.header), *matrix.rows]
    return "\n".join([f"### {matrix.title}", "", *("| " + " | ".join(line) + " |" for line in lines)])


def _plain(matrix: _Matrix) -> str:
    lines = [matrix.header, tuple("-" * size for size in matrix.widths), *matrix.rows]
    padded = ("  ".join(c.ljust(s) for c, s in zip(line, matrix.widths, strict=True)).rstrip() for line in lines)
    return "\n".join([matrix.title, *padded])


def _rich(matrix: _Matrix) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(*matrix.header, title=matrix.title, title_justify="left", box=None, pad_edge=False)
    for name, *codes in matrix.rows:
        styles = (VERDICTS[code.strip("()v*+")].colour if code else "" for code in codes)
        table.add_row(
            name, *(f"[{style}]{code}[/]" if style else "" for code, style in zip(codes, styles, strict=True))
        )
    console = Console(file=io.StringIO(), force_terminal=True, width=sum(matrix.widths) + 2 * len(matrix.widths))
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()
