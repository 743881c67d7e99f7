"""log.csv: one row per epoch, rewritten whole from the rows that a checkpoint keeps, so that nothing comes twice."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcrepar.user_files import write_file

Row = dict[str, float | None]
WHOLE = ("epoch", "step")


def columns(score: str) -> tuple[str, ...]:
    """The columns of log.csv; `score` is accuracy or rmse.

    >>> columns("accuracy")[:4]
    ('epoch', 'step', 'loss', 'nll')
    """
    return (
        "epoch", "step", "loss", "nll", "kl", "beta", "lr", score, "val_loss", "val_nll", "val_lpd", f"val_{score}",
        "seconds",
    )  # fmt: skip


@dataclass
class Sums:
    """What is summed over the steps of an epoch on one process.

    Args:
        steps: how many.
        data: how many data they saw.
        loss: of steps.
        nll: of steps.
        kl: of steps.
        score: right answers, or squared errors, of data.
        seconds: of the wall.
    """

    steps: float = 0.0
    data: float = 0.0
    loss: float = 0.0
    nll: float = 0.0
    kl: float = 0.0
    score: float = 0.0
    seconds: float = 0.0


@dataclass
class Position:
    """Where a run stands; with the tensors, all that a checkpoint holds.

    Args:
        epoch: how many are done.
        batch: how many steps of the present epoch are done.
        sums: of the present epoch, on this process.
        rows: of log.csv.
        best: the smallest validation loss, of those that early stopping compares.
        waited: epochs since then.
    """

    epoch: int = 0
    batch: int = 0
    sums: Sums = field(default_factory=Sums)
    rows: list[Row] = field(default_factory=list)
    best: float = float("inf")
    waited: int = 0


def write_log(path: Path, rows: Sequence[Mapping[str, float | None]], score: str) -> None:
    """Write all rows; empty cells where there is no value.

    Args:
        path: of log.csv.
        rows: by column.
        score: accuracy or rmse.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns(score))
    for row in rows:
        writer.writerow([_cell(name, row.get(name)) for name in columns(score)])
    write_file(path, text.getvalue())


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if name in WHOLE else f"{value:.8g}"
