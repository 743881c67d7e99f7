"""Results on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcrepar.workbench.evaluation.report_words import (
    Results,
    foreign_rows,
    metric_rows,
    notes,
    threshold_rows,
    title,
    verdict,
)


def print_results(results: Results, report: Path) -> None:
    """The verdict, the metrics, the confidence sets and where the report is.

    Args:
        results: metrics.json.
        report: the path of report.html.
    """
    from rich.console import Console

    console = Console(highlight=False)
    head, lines = verdict(results)
    if results["data"]["simulated"]:
        console.print("SIMULATED data", style="bold red")
    console.print(head, style="bold", markup=False)
    for line in lines:
        console.print(line, markup=False)
    draws = f"{results['draws']} draws"
    scores = [(r["title"], r["value"], r["mean"], r["better"]) for r in metric_rows(results)]
    _table(console, title(results), ("metric", draws, "mean weights", "better"), scores)
    sets = [(r["tau"], r["share"], r["count"], r["accuracy"], r["interval"]) for r in threshold_rows(results)]
    if sets:
        heads = ("draws that agree", "share of data", "data", "right", "95 % interval")
        _table(console, "confidence sets", heads, sets)
    foreign = [(r["name"], r["count"], r["score"], r["auroc"], r["aupr"], r["fpr95"]) for r in foreign_rows(results)]
    if foreign:
        _table(console, "foreign data", ("set", "data", "told by", "AUROC", "AUPR", "FPR95"), foreign)
    for note in notes(results):
        console.print(f"note: {note}", markup=False)
    console.print(str(report), markup=False, soft_wrap=True)


def _table(console: Any, name: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(name), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for k, head in enumerate(heads):
        numeric = all(row[k][:1] in "<>-0123456789" for row in rows if row[k])
        table.add_column(head, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
